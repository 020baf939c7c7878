"""Selection: exactly the k best blocks, whatever the block, the ratio, the score and the ties."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from block_norms import NORMS, numpy_scores
from engine_doubles import Noting, put_first

from sparsemlp.blocks import Block
from sparsemlp.masks import BlockMask
from sparsemlp.selection import (
    SCORES,
    block_scores,
    select_blocks,
    select_grid,
)

SIDES = (2, 4, 8, 16, 32, 64)
BLOCKS: list[Block] = [
    (1, 1),
    *((1, n) for n in SIDES),
    *((n, 1) for n in SIDES),
    *((n, n) for n in SIDES),
]
RATIOS = [tenths / 10 for tenths in range(1, 10)]
KERNEL_SHAPES = [(64, 64), (64, 256), (256, 64)]


@functools.partial(jax.jit, static_argnames=("block", "ratio", "score"))
def select(kernel: jax.Array, block: Block, ratio: float, score: str = "l2") -> BlockMask:
    return select_blocks(kernel, block, ratio, score)


def random_kernel(shape: tuple[int, int], seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_the_grid_of_the_thesis_has_19_blocks():
    assert len(set(BLOCKS)) == 19


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_exactly_k_blocks_are_kept_at_every_ratio_on_the_shapes_of_the_model(block):
    for shape in KERNEL_SHAPES:
        n_blocks = shape[0] * shape[1] // (block[0] * block[1])
        for ratio in RATIOS:
            kernel = jax.ShapeDtypeStruct(shape, jnp.float32)
            mask = jax.eval_shape(
                functools.partial(select_blocks, block=block, ratio=ratio), kernel
            )
            assert mask.kept.shape == (math.ceil(n_blocks * (1 - ratio)),), (shape, ratio)
            assert mask.kept.dtype == jnp.int32


@pytest.mark.parametrize(
    ("block", "published"),
    [
        ((1, 1), (12.97, 7.21, 2.88, 1.44)),
        ((8, 8), (13.01, 7.21, 2.93, 1.48)),
        ((64, 64), (14.41, 8.01, 4.80, 4.80)),
    ],
    ids=str,
)
def test_loaded_weights_are_those_of_the_published_table(block, published):
    for ratio, billions in zip((0.1, 0.5, 0.8, 0.9), published, strict=True):
        select_one = functools.partial(select_blocks, block=block, ratio=ratio)
        masks = [
            jax.eval_shape(select_one, jax.ShapeDtypeStruct(shape, jnp.float32))
            for shape in KERNEL_SHAPES
        ]
        depth, steps = 5, 391 * 200
        weights = sum(mask.n_kept for mask in masks) * block[0] * block[1]
        assert round(weights * depth * steps / 1e9, 2) == billions


@pytest.mark.parametrize("score", ["l1", "l2", "spectral"])
@pytest.mark.parametrize(
    ("shape", "block", "ratio"),
    [
        ((64, 256), (32, 32), 0.8),
        ((256, 64), (64, 64), 0.5),
        ((64, 64), (4, 1), 0.7),
        ((64, 64), (1, 16), 0.3),
        ((24, 30), (3, 4), 0.6),
        ((24, 30), (10, 2), 0.9),
    ],
    ids=str,
)
def test_no_dropped_block_outscores_a_kept_one(score, shape, block, ratio):
    kernel = random_kernel(shape)
    mask = select(kernel, block, ratio, score)
    kept = np.asarray(mask.kept)
    assert np.all(np.diff(kept) > 0)
    scores = numpy_scores(np.asarray(kernel), block, score)
    chosen = np.zeros(len(scores), bool)
    chosen[kept] = True
    assert chosen.sum() == math.ceil(len(scores) * (1 - ratio))
    # Both scores are float32 sums of up to rows * cols terms.
    rounding = 4 * np.finfo(np.float32).eps * math.sqrt(block[0] * block[1])
    assert scores[chosen].min() >= scores[~chosen].max() * (1 - rounding)


def test_the_three_scores_are_three_different_norms():
    # Columns of a 2x2 tile: l1 prefers the flat tile, spectral the one of rank one, l2 the rest.
    flat = np.array([[1.5, -1.5], [1.5, 1.5]])
    lone = np.array([[2.95, 0.0], [0.0, 0.0]])
    pair = np.array([[2.2, 0.0], [0.0, 2.2]])
    tiles = [flat, lone, pair]
    kernel = jnp.asarray(np.concatenate(tiles, axis=1), jnp.float32)
    best = {score: int(np.argmax([NORMS[score](tile) for tile in tiles])) for score in NORMS}
    assert sorted(best.values()) == [0, 1, 2]
    assert {score: int(select(kernel, (2, 2), 0.7, score).kept[0]) for score in SCORES} == best


@pytest.mark.parametrize("score", ["l1", "l2", "spectral"])
@pytest.mark.parametrize("block", [(1, 1), (2, 2), (16, 4), (1, 32)], ids=str)
def test_a_constant_kernel_keeps_the_first_blocks(score, block):
    mask = select(jnp.full((32, 64), 0.1), block, 0.6, score)
    np.testing.assert_array_equal(mask.kept, np.arange(mask.n_kept))


def test_ties_go_to_the_lower_id_also_when_only_some_blocks_tie():
    rng = np.random.default_rng(3)
    for _ in range(5):
        kernel = rng.integers(-2, 3, size=(12, 16)).astype(np.float32)
        mask = select(jnp.asarray(kernel), (2, 1), 0.5, "l1")
        scores = numpy_scores(kernel, (2, 1), "l1")
        expected = np.sort(np.argsort(-scores, kind="stable")[: mask.n_kept])
        np.testing.assert_array_equal(mask.kept, expected)


def test_a_4x1_block_spans_four_outputs_of_one_input():
    kernel = jnp.zeros((4, 8)).at[2, 4:8].set(1.0)
    mask = select(kernel, (4, 1), 7 / 8)
    np.testing.assert_array_equal(mask.dense(), kernel == 1)


def test_a_1x4_block_spans_four_inputs_of_one_output():
    kernel = jnp.zeros((8, 4)).at[4:8, 2].set(1.0)
    mask = select(kernel, (1, 4), 7 / 8)
    np.testing.assert_array_equal(mask.dense(), kernel == 1)


def test_ratio_zero_keeps_all():
    mask = select(random_kernel((4, 6)), (3, 2), 0.0)
    np.testing.assert_array_equal(mask.kept, np.arange(4))
    assert mask.density == 1


def test_the_three_forms_of_a_selected_mask_agree():
    mask = select(random_kernel((24, 30)), (3, 4), 0.6)
    grid = np.asarray(mask.grid())
    np.testing.assert_array_equal(np.flatnonzero(grid), mask.kept)
    np.testing.assert_array_equal(mask.dense(), np.kron(grid, np.ones((4, 3), bool)))
    assert mask.density == np.asarray(mask.dense()).mean() == grid.mean()


def test_a_score_of_ones_own_ranks_the_blocks():
    def peak(blocks: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(blocks), axis=(-2, -1))

    kernel = np.ones((4, 6), np.float32)
    kernel[3, 5] = -9
    np.testing.assert_array_equal(
        select_blocks(jnp.asarray(kernel), (3, 2), 0.7, peak).kept, [0, 3]
    )


def test_a_score_sees_tiles_of_the_kernel_with_inputs_first():
    seen = []

    def first_weight(blocks: jax.Array) -> jax.Array:
        seen.append(blocks)
        return blocks[..., 0, 0]

    kernel = jnp.arange(24.0).reshape(4, 6)
    select_blocks(kernel, (3, 2), 0.5, first_weight)
    (blocks,) = seen
    assert blocks.shape == (2, 2, 2, 3)
    np.testing.assert_array_equal(blocks[1, 0], kernel[2:4, 0:3])


def test_new_kernels_do_not_compile_again():
    traces = []

    @jax.jit
    def kept(kernel: jax.Array) -> jax.Array:
        traces.append(kernel)
        return select_blocks(kernel, (2, 2), 0.5).kept

    results = {tuple(kept(random_kernel((8, 8), seed)).tolist()) for seed in range(4)}
    assert len(traces) == 1
    assert len(results) == 4


def test_selection_maps_over_stacked_kernels():
    stacked = jnp.stack([random_kernel((8, 8), seed) for seed in range(3)])
    mapped = jax.vmap(lambda kernel: select_blocks(kernel, (2, 4), 0.6))(stacked)
    assert mapped.density == 4 / 8
    for kernel, kept in zip(stacked, mapped.kept, strict=True):
        np.testing.assert_array_equal(kept, select(kernel, (2, 4), 0.6).kept)


@pytest.mark.parametrize("score", ["l1", "l2", "spectral"])
def test_no_gradient_flows_through_the_selection(score):
    # One tile is zero, where the derivative of a norm is not finite.
    kernel = random_kernel((4, 6)).at[:2, :3].set(0)

    def masked_sum(kernel: jax.Array) -> jax.Array:
        return jnp.sum(kernel * select_blocks(kernel, (3, 2), 0.5, score).dense())

    gradient = jax.grad(masked_sum)(kernel)
    np.testing.assert_array_equal(gradient, select(kernel, (3, 2), 0.5, score).dense())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_kernels_are_ranked_by_their_float32_values(dtype):
    kernel = random_kernel((16, 16)).astype(dtype)
    np.testing.assert_array_equal(
        select(kernel, (4, 2), 0.5).kept, select(kernel.astype(jnp.float32), (4, 2), 0.5).kept
    )


def test_a_large_weight_does_not_overflow_the_score_of_a_half_precision_kernel():
    # 300 squared lies beyond float16's 65504: scores in float16 would all be infinite.
    kernel = jnp.full((4, 4), 300, jnp.float16).at[2:, 2:].set(301)
    np.testing.assert_array_equal(select(kernel, (2, 2), 0.7).kept, [0, 3])


@pytest.mark.parametrize("score", ["l2", "l1", "spectral"])
@pytest.mark.parametrize("nan", [np.nan, np.copysign(np.nan, -1)], ids=["plus", "minus"])
def test_a_nan_in_the_kernel_is_kept_for_the_loss_to_show(nan, score):
    """Of either sign: processors give the difference of two infinities a minus."""
    kernel = random_kernel((4, 4)).at[2, 0].set(np.float32(nan))
    assert 2 in np.asarray(select_blocks(kernel, (2, 2), 0.7, score=score).kept)
    assert bool(select_grid(kernel, (2, 2), 1, score).grid()[1, 0])


@pytest.mark.parametrize("dtype", ["int32", "bfloat16"])
def test_scores_are_float32_whatever_a_function_gives(dtype):
    def count(blocks: jax.Array) -> jax.Array:
        return jnp.sum(blocks > 0, axis=(-2, -1)).astype(dtype)

    kernel = random_kernel((8, 8))
    assert block_scores(kernel, (2, 2), count).dtype == jnp.float32
    assert select_blocks(kernel, (2, 2), 0.5, count).n_kept == 8


def test_the_engine_that_is_asked_for_scores_the_blocks(monkeypatch):
    put_first(monkeypatch, Noting())
    mask = select_blocks(jnp.ones((4, 4)), (2, 2), 0.75, engine="noting")
    assert mask.kept.tolist() == [3]


def test_a_score_that_cannot_be_differentiated_may_be_part_of_a_loss():
    def score(blocks: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(blocks.shape[:2], blocks.dtype)
        return jax.pure_callback(lambda b: np.abs(b).sum((-2, -1)), shape, blocks)

    kernel = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)), jnp.float32)

    def loss(kernel: jax.Array) -> jax.Array:
        mask = select_blocks(kernel, (4, 4), 0.5, score=score)
        return jnp.sum(jnp.where(mask.dense(), kernel, 0))

    mask = select_blocks(kernel, (4, 4), 0.5, score="l1").dense()
    np.testing.assert_array_equal(jax.grad(loss)(kernel), mask)
