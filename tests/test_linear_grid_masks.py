"""The operation under a mask of booleans, where ratio and backward pass are data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_problem import AXES, BLOCK, IN, MODES, OUT, Problem, turned, value_and_gradients

from sparsemlp import BlockMask, GridMask, sparse_linear
from sparsemlp.errors import InputError


def grid_mask(mask: BlockMask, backward: str | None = None) -> GridMask:
    """The same blocks as a grid; with a backward mode as data."""
    in_dx_and_dw = {
        None: (None, None),
        "masked": (jnp.bool_(True), jnp.bool_(True)),
        "dense": (jnp.bool_(False), jnp.bool_(False)),
        "straight_through": (jnp.bool_(True), jnp.bool_(False)),
    }
    return GridMask(mask.grid(), mask.kernel_shape, mask.block, *in_dx_and_dw[backward])


@AXES
@pytest.mark.parametrize("backward", MODES)
def test_a_grid_mask_gives_the_bits_of_the_reference_engine(backward, axis):
    problem = Problem()
    arrays = (turned(problem.x, axis), problem.kernel, problem.bias)

    @functools.partial(jax.jit, static_argnames="backward")
    def run(mask, dy, backward):
        def call(*arrays):
            return sparse_linear(
                *arrays, axis=axis, mask=mask, backward=backward, engine="reference"
            )

        y, pull = jax.vjp(call, *arrays)
        return y, *pull(dy)

    dy = turned(problem.dy, axis)
    expected = run(problem.mask, dy, backward)
    # The flags say the mode, whatever the layer says.
    other = MODES[MODES.index(backward) - 1]
    as_data = run(grid_mask(problem.mask, backward), dy, other)
    for found in (run(grid_mask(problem.mask), dy, backward), as_data):
        for a, b in zip(found, expected, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_members_of_different_ratios_and_modes_are_mapped_over():
    problem = Problem()
    ids = [jnp.arange(k, dtype=jnp.int32) for k in (1, 3, 6)]
    masks = [BlockMask(kept, (IN, OUT), BLOCK) for kept in ids]
    grids = [grid_mask(mask, mode) for mask, mode in zip(masks, MODES, strict=True)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *grids)
    run = functools.partial(
        value_and_gradients, problem.x, problem.kernel, problem.bias, dy=problem.dy, axis=-1
    )
    found = jax.vmap(lambda mask: run(mask=mask, backward="masked"))(stacked)
    for index, (mask, mode) in enumerate(zip(masks, MODES, strict=True)):
        expected = run(mask=mask, backward=mode)
        for a, b in zip(found, expected, strict=True):
            scale = float(jnp.max(jnp.abs(b)))
            # Sums of at most 8 products, in another order.
            atol = 8 * np.finfo(np.float32).eps * scale
            np.testing.assert_allclose(a[index], b, rtol=0, atol=atol)


@pytest.mark.parametrize("engine", ["cpu", "triton"])
def test_a_grid_mask_is_for_the_reference_engine_alone(engine):
    problem = Problem()
    with pytest.raises(InputError, match=rf"engine '{engine}' needs .* choose reference or auto"):
        sparse_linear(problem.x, problem.kernel, mask=grid_mask(problem.mask), engine=engine)
