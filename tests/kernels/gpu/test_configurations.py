"""Search spaces hold what a GPU can run, and another configuration computes the same."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES, Neighbours, SparseLayer, Triton
from pallas_kernels.device_table import Problem
from pallas_kernels.triton.configurations import SHARED_BYTES, SUMS_OF_A_THREAD, search_space
from pallas_kernels.triton.launch import Tiles
from pallas_kernels.tuning import forced

PRODUCTS = ("product", "input_gradient", "kernel_gradient")
BLOCKS = ((16, 16), (32, 16), (32, 32), (64, 64), (128, 128))


def problem(kernel: str, block: tuple[int, int], dtype: str = "bfloat16") -> Problem:
    return Problem("triton", 1, kernel, dtype, block, (384, 1536), -1, 0.2, 8192)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kernel", "blocks"),
    [
        *((kernel, BLOCKS) for kernel in PRODUCTS),
        ("compact_gradient", ((8, 8), (16, 32))),
        ("pruned_input_gradient", ((2, 4), (1, 8), (16, 32))),
    ],
)
def test_a_search_space_has_choices_and_their_sides_are_powers_of_two(kernel, blocks, dtype):
    for block in blocks:
        own = problem(kernel, block, dtype)
        space = list(search_space(own))
        assert len(space) == len(set(space)) > 1
        for tiles in space:
            values = dataclasses.asdict(tiles)
            assert values.pop("stages") in (2, 3, 4)
            values.pop("programs", None)
            assert all(value & (value - 1) == 0 for value in values.values())
        found = Triton().configurations(own)
        assert set(space) <= set(found)
        assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("kernel", "side", "fastest"),
    [
        ("product", 32, (128, 4, 3)),
        ("product", 64, (128, 4, 3)),
        ("input_gradient", 128, (64, 4, 3)),
        ("kernel_gradient", 32, (64, 4, 3, 512)),
        ("kernel_gradient", 64, (32, 4, 4, 512)),
        ("kernel_gradient", 128, (32, 8, 4, 264)),
    ],
)
def test_what_was_fastest_on_an_h200_comes_first(kernel, side, fastest):
    first = Triton().configurations(problem(kernel, (side, side)))[0]
    assert dataclasses.astuple(first) == fastest


def test_256_rows_and_8_warps_are_tried():
    for block in ((32, 32), (64, 64)):
        space = list(search_space(problem("product", block)))
        assert {Tiles(256, 8, stages) for stages in (2, 3, 4)} <= set(space)
        assert space[0].rows == 128


def test_kernels_without_choices_have_none():
    assert Triton().configurations(problem("block_norms", (32, 32))) == []


@pytest.mark.parametrize("block", BLOCKS)
def test_the_loads_in_flight_fit_shared_memory_and_the_sums_the_registers(block):
    rows, cols = block
    for tiles in search_space(problem("product", block, "float32")):
        assert tiles.stages * (tiles.rows + rows) * cols * 4 <= SHARED_BYTES
        assert tiles.rows * rows <= 32 * tiles.warps * SUMS_OF_A_THREAD


CALLS: dict[str, tuple[tuple[int, int], Any]] = {
    "product": ((32, 16), lambda e, x, dy, w, kept, layer: e.product(x, w, w[0], kept, layer)),
    "kernel_gradient": (
        (32, 16),
        lambda e, x, dy, w, kept, layer: e.kernel_gradient(x, dy, kept, layer),
    ),
    "compact_gradient": (
        (8, 8),
        lambda e, x, dy, w, kept, layer: e.compact_gradient(
            x[:24, :8].reshape(3, 8, 8), kept, dy, 64, -1
        ),
    ),
    "pruned_input_gradient": (
        (2, 4),
        lambda e, x, dy, w, kept, layer: e.pruned_input_gradient(dy, w, Neighbours(2, 4), -1),
    ),
}


@pytest.mark.parametrize("kernel", CALLS)
def test_another_configuration_computes_the_same(kernel):
    block, call = CALLS[kernel]
    layer = SparseLayer((64, 128), (32, 16), 3, -1, "float32")
    rng = np.random.default_rng(0)
    x, dy, w = (
        jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((72, 64), (72, 128), (64, 128))
    )
    kept = jnp.asarray([0, 2, 7], jnp.int32)
    space = Triton().configurations(problem(kernel, block, "float32"))

    @jax.jit
    def run(*arrays: Any) -> Any:
        with forced(space[-1]):
            return call(ENGINES["triton"], *arrays, layer)

    wanted = np.asarray(call(ENGINES["reference"], x, dy, w, kept, layer))
    # Sums of up to 128 products of normal numbers, in another order.
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(run(x, dy, w, kept), wanted, rtol=0, atol=4 * eps * 128)
