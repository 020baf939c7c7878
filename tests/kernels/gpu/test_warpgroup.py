"""What a warpgroup can do, as JAX interprets it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from test_product_program import INTERPRETED

from pallas_kernels.mosaic import launch, warpgroup


@INTERPRETED
@pytest.mark.parametrize("cluster", [1, 2])
def test_copies_arrive_zero_outside_and_barriers_of_a_cluster_hear_of_all_its_programs(cluster):
    """Program p adds up 64 rows of x from row 64 p on; only 72 rows are there."""
    x = np.arange(72 * 16, dtype=np.float32).reshape(72, 16) / 128

    def kernel(x: Any, bias: Any, y: Any, *, panel: Any, staging: Any, full: Any, met: Any) -> None:
        tile, _ = launch.place(1, cluster)
        rows = pl.ds(tile * 64, 64)
        warpgroup.fetch(x.at[rows], panel, full.at[0])
        warpgroup.wait(full.at[0])
        warpgroup.arrive(met.at[0])
        # One arrival of each program of the cluster, or this waits for ever.
        warpgroup.wait(met.at[0])
        value = warpgroup.as_rows(warpgroup.load_row(bias), 64)
        warpgroup.write(value + panel[...], staging, y.at[rows])
        warpgroup.finish_writes()

    bias = jnp.arange(16, dtype=jnp.float32)
    y = launch.launch(
        "copies",
        kernel,
        [jnp.asarray(x), bias],
        grid=(2 // cluster,),
        cluster=cluster,
        out=jax.ShapeDtypeStruct((128, 16), jnp.float32),
        scratch={
            "panel": launch.shared((64, 16), "float32", 16),
            "staging": launch.shared((64, 16), "float32", 16),
            "full": launch.barriers(1, arrivals=1),
            "met": launch.barriers(1, arrivals=1, cluster=cluster),
        },
        n_warpgroups=1,
        interpret=True,
    )
    want = np.concatenate([x, np.zeros((56, 16), np.float32)]) + np.arange(16)
    np.testing.assert_array_equal(y, want)
