"""What selection refuses, and what it says of it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.errors import InputError
from sparsemlp.selection import block_scores, select_blocks, select_grid


def test_a_score_of_ones_own_that_gives_a_number_is_refused():
    def score(_: Any) -> Any:
        return 1.0

    with pytest.raises(InputError, match=r"must give one number for each block"):
        select_blocks(jnp.ones((8, 8)), (4, 4), 0.5, score)


def test_a_score_that_forgets_an_axis_is_refused():
    for select in (
        lambda k: select_blocks(k, (2, 2), 0.5, lambda b: jnp.sum(b, axis=-1)),
        lambda k: select_grid(k, (2, 2), 2, lambda b: jnp.sum(b, axis=-1)),
    ):
        with pytest.raises(InputError, match=r"gives \(2, 3, 2\) .* one number for each block"):
            select(jnp.ones((4, 6)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ((4, 3), 0.5),
            ["block 4x3", "layer/kernel", "6x8", "out 6 % 4 != 0", "in 8 % 3 != 0", "3x2 or 6x4"],
        ),
        (((3, 2), 1.0), ["ratio 1.0", "[0, 1)", "0 for dense"]),
        (((3, 2), -0.5), ["ratio -0.5", "[0, 1)"]),
        (((3, 2), math.nan), ["ratio nan", "[0, 1)"]),
        (((3, 2), 0.5, "l3"), ["score 'l3'", "l2, spectral, l1"]),
    ],
    ids=str,
)
def test_bad_input_names_the_value_the_rule_and_the_way_out(arguments, says):
    with pytest.raises(InputError) as caught:
        select_blocks(jnp.ones((8, 6)), *arguments, name="layer/kernel")
    for part in says:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(4,), (3, 4, 4)])
def test_what_is_no_kernel_is_refused(unchecked, shape):
    with pytest.raises(InputError, match=r"is neither \[in, out\] nor .*jax.vmap"):
        select_blocks(jnp.ones(shape), (2, 2), 0.5)
    with pytest.raises(InputError, match="is neither"):
        select_grid(jnp.ones(shape), (2, 2), 2)


@pytest.mark.parametrize("k", [1.5, True, np.arange(4)], ids=str)
def test_k_that_is_no_integer_is_refused(unchecked, k):
    with pytest.raises(InputError, match="give one integer"):
        select_grid(jnp.ones((4, 4)), (2, 2), k)


def test_a_kernel_sharded_over_explicit_axes_is_refused():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with pytest.raises(InputError, match="explicit axes"):
        select_blocks(jax.device_put(jnp.ones((4, 4)), sharding), (2, 2), 0.5)
    with pytest.raises(InputError, match="explicit axes"):
        block_scores(jax.device_put(jnp.ones((4, 4)), sharding), (2, 2))
