"""The exchange of kept blocks is the sum of whole gradients, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from sparsemlp.distributed.exchange import sum_gradients
from sparsemlp.mask_trees import flatten_masks, select_masks
from sparsemlp.plan import Plan
from sparsemlp.rules import BlockMasking

SHAPES = {"wide": (8, 24), "tall": (24, 8), "window": (3, 3, 4, 8)}
BLOCK = (4, 2)


def tree(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        name: {
            "kernel": jnp.float32(rng.normal(size=shape)),
            "bias": jnp.float32(rng.normal(size=shape[-1])),
        }
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("backward", ["masked", "straight_through", "dense"])
def test_the_sum_is_that_of_whole_gradients(backward):
    """On a mesh of one device; several are tried by `test_parallel`."""
    plan: Plan = {"*/kernel": BlockMasking(BLOCK, 0.6, backward)}
    params, gradients = tree(0), tree(1)
    masks = select_masks(params, plan)
    if backward == "masked":
        for path, mask in flatten_masks(masks).items():
            name = path.split("/")[0]
            kernel = gradients[name]["kernel"]
            dense = mask.dense().reshape(kernel.shape)
            gradients[name]["kernel"] = jnp.where(dense, kernel, 0)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    summed = jax.jit(
        jax.shard_map(
            lambda g, m: sum_gradients(g, m, plan, "data"),
            mesh=mesh,
            in_specs=(P(), P()),
            out_specs=P(),
            check_vma=False,
        )
    )(gradients, masks)
    for found, expected in zip(jax.tree.leaves(summed), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_array_equal(found, expected)
