"""What is kept of an activation, and dW from it, against NumPy float64 definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES
from sparsemlp import ActivationPooling, ActivationPruning, sparse_linear
from sparsemlp.activations import PooledActivation, PrunedActivation, compact, keep_only_compact
from sparsemlp.blocks import n_kept_blocks
from sparsemlp.errors import InputError

EPS = np.finfo(np.float32).eps
AXES = pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
SHAPE, OUT = (2, 6, 8), 5


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def operands(axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The arrays x `SHAPE` and dy of a layer along an axis."""
    dy_shape = (*SHAPE[:2], OUT) if axis == -1 else (SHAPE[0], OUT, SHAPE[2])
    return normal(*SHAPE), normal(*dy_shape, seed=1)


def features_last(a: np.ndarray, axis: int) -> np.ndarray:
    """All other axes as rows, the contracted one as columns."""
    turned = np.moveaxis(a.astype(np.float64), axis, -1)
    return turned.reshape(-1, turned.shape[-1])


def pruned(rows: np.ndarray, block: tuple[int, int], ratio: float) -> np.ndarray:
    """A matrix without its blocks of smallest norm, found by a stable sort."""
    height, width = block
    across = rows.shape[1] // width
    places = [
        np.s_[i * height : (i + 1) * height, j * width : (j + 1) * width]
        for i in range(rows.shape[0] // height)
        for j in range(across)
    ]
    norms = [np.linalg.norm(rows[place]) for place in places]
    order = sorted(range(len(places)), key=lambda i: (-norms[i], i))
    kept = np.zeros_like(rows)
    for i in order[: n_kept_blocks(len(places), ratio)]:
        kept[places[i]] = rows[places[i]]
    return kept


def pooled(x: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """An activation in which every window is its mean."""
    means = np.zeros(x.shape)
    for t in range(0, x.shape[-2], window[0]):
        for f in range(0, x.shape[-1], window[1]):
            place = np.s_[..., t : t + window[0], f : f + window[1]]
            means[place] = np.float64(x[place]).mean(axis=(-2, -1), keepdims=True)
    return means


@functools.partial(jax.jit, static_argnames=("rule", "axis", "engine"))
def kernel_gradient(x, dy, rule, axis, engine="reference"):
    kept = compact(x, rule, axis)
    assert kept is not None
    return kept.kernel_gradient(dy, ENGINES[engine])


def assert_product(found, x_rows, dy_rows) -> None:
    """Within the rounding of a sum of so many float32 products."""
    bound = 4 * EPS * np.sqrt(len(x_rows)) * (abs(x_rows).T @ abs(dy_rows))
    np.testing.assert_array_less(abs(found - x_rows.T @ dy_rows), bound + 1e-30)


@AXES
@pytest.mark.parametrize("block", [(2, 2), (4, 1), (1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.97])
def test_dw_uses_the_largest_blocks_of_the_activation(axis, block, ratio):
    x, dy = operands(axis)
    found = kernel_gradient(x, dy, ActivationPruning(block, ratio), axis)
    rows = pruned(features_last(x, axis), block, ratio)
    assert_product(found, rows, features_last(dy, axis))


@AXES
@pytest.mark.parametrize("window", [(2, 1), (1, 2), (2, 2), (6, 8), (3, 4)], ids=str)
def test_dw_uses_the_means_of_the_windows(axis, window):
    x, dy = operands(axis)
    found = kernel_gradient(x, dy, ActivationPooling(window), axis)
    assert_product(found, features_last(pooled(x, window), axis), features_last(dy, axis))


def test_equal_blocks_keep_those_that_come_first():
    kept = compact(jnp.ones((4, 4)), ActivationPruning((2, 2), 0.5), -1)
    assert isinstance(kept, PrunedActivation)
    np.testing.assert_array_equal(kept.ids, [0, 1])


@AXES
def test_what_is_kept_is_the_blocks_and_their_ids_and_nothing_else(axis):
    x = jnp.asarray(normal(4, 16, 16), jnp.bfloat16)
    kept = compact(x, ActivationPruning((8, 8), 0.8), axis)
    leaves = jax.tree.leaves(kept)
    n_blocks = n_kept_blocks(x.size // 64, 0.8)
    assert [(leaf.shape, leaf.dtype) for leaf in leaves] == [
        ((n_blocks, 8, 8), jnp.bfloat16),
        ((n_blocks,), jnp.int32),
    ]


def test_pooling_keeps_one_number_a_window():
    kept = compact(jnp.asarray(normal(4, 16, 16)), ActivationPooling((2, 4)), -1)
    assert [leaf.shape for leaf in jax.tree.leaves(kept)] == [(4, 8, 4)]


@AXES
def test_the_dense_form_has_the_kept_entries_in_their_places(axis):
    x = normal(*SHAPE)
    kept = compact(jnp.asarray(x), ActivationPruning((2, 2), 0.5), axis)
    assert isinstance(kept, PrunedActivation)
    dense = np.asarray(kept.dense())
    expected = pruned(features_last(x, axis), (2, 2), 0.5)
    np.testing.assert_array_equal(features_last(dense, axis), expected)


@AXES
@pytest.mark.parametrize(
    "rule", [ActivationPruning((2, 2), 0.0), ActivationPooling((1, 1))], ids=str
)
def test_a_rule_that_drops_nothing_keeps_the_activation_itself(axis, rule):
    assert compact(jnp.ones(SHAPE), rule, axis) is None


@pytest.mark.parametrize(
    ("rule", "axis", "says"),
    [
        (ActivationPruning((5, 2), 0.5), -1, r"5x2 .* 12 rows \(batch x the other axes\) % 5 = 2"),
        (ActivationPruning((2, 3), 0.5), -1, r"8 features % 3 = 2; .* that does is 2"),
        (ActivationPruning((3, 2), 0.5), -2, r"16 rows \(batch x channels\) % 3 = 1"),
        (ActivationPruning((2, 4), 0.5), -2, r"6 tokens % 4 = 2; .* that does is 3"),
        (ActivationPooling((4, 2)), -1, r"pooling window 4x2 .* 6 tokens % 4 = 2"),
        (ActivationPooling((2, 3)), -2, r"8 features % 3 = 2"),
    ],
)
def test_a_block_or_window_that_does_not_divide_is_named(rule, axis, says):
    with pytest.raises(InputError, match=says):
        compact(jnp.ones(SHAPE), rule, axis)


def test_a_function_keeps_its_inputs_and_compact_activations_alone():
    x, w = jnp.asarray(normal(8, 16)), jnp.asarray(normal(16, 12, seed=1))
    rule = ActivationPruning((4, 4), 0.5)

    def branch(x, w):
        return jnp.tanh(sparse_linear(jnp.tanh(x), w, activation=rule))

    def kept(function):
        return {leaf.shape for leaf in jax.tree.leaves(jax.vjp(function, x, w)[1])}

    assert (8, 12) in kept(branch)
    assert kept(keep_only_compact(branch)) == {x.shape, w.shape, (4, 4, 4), (4,)}
    gradients = [
        jax.jit(jax.grad(lambda x, w, f=f: jnp.sum(f(x, w)), argnums=(0, 1)))(x, w)
        for f in (branch, keep_only_compact(branch))
    ]
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=16 * EPS * float(jnp.max(jnp.abs(a))))


def test_rows_without_tokens_are_pooled_over_features_alone():
    with pytest.raises(InputError, match=r"\(4, 8\) has no tokens to pool 2 of"):
        compact(jnp.ones((4, 8)), ActivationPooling((2, 2)), -1)
    kept = compact(jnp.ones((4, 8)), ActivationPooling((1, 2)), -1)
    assert [leaf.shape for leaf in jax.tree.leaves(kept)] == [(4, 4)]


def test_means_of_float64_are_float64():
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 8)))
        kept = compact(x, ActivationPooling((2, 4)), -1, ENGINES["reference"])
        assert isinstance(kept, PooledActivation)
        expected = np.asarray(x).reshape(1, 4, 2, 2, 4).mean(axis=(2, 4))
        np.testing.assert_allclose(kept.means, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_score_ranks_the_blocks_whoever_finds_them(engine):
    """The block of one large entry has the larger l2 norm, that of equal ones the larger l1."""
    x = jnp.zeros((2, 4)).at[0, 0].set(3.0).at[:, 2:].set(1.0)
    for score, (kept,) in (("l2", [0]), ("l1", [1])):
        rule = ActivationPruning((2, 2), 0.5, score)
        found = compact(x, rule, -1, ENGINES[engine])
        assert isinstance(found, PrunedActivation)
        assert found.ids.tolist() == [kept]
