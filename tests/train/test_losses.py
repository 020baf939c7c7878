"""The loss against its definition in float64, and the NumPy ResMLP against differences of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_resmlp import (
    Tree,
    mean_cross_entropy,
    resmlp_forward,
    resmlp_loss_gradients,
)

from sparsemlp.train.losses import cross_entropy

DIM, TOKENS, HIDDEN, CLASSES, PATCH, DEPTH = 4, 6, 8, 3, 2, 2


def soft_targets(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    targets = rng.random(shape)
    return targets / targets.sum(axis=-1, keepdims=True)


def test_cross_entropy_equals_the_definition_in_float64():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 7)).astype(np.float32) * 30
    targets = soft_targets(rng, (5, 7)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    expected = -(targets * exact).sum(axis=1)
    with jax.numpy_dtype_promotion("strict"):
        loss = cross_entropy(jnp.asarray(logits), jnp.asarray(targets))
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(loss, expected, atol=4 * eps * np.abs(exact).max() * 7)


def test_cross_entropy_survives_huge_logits():
    logits = jnp.array([[1e38, -1e38], [1e38, 1e38]], jnp.float32)
    targets = jnp.array([[1.0, 0.0], [0.5, 0.5]], jnp.float32)
    np.testing.assert_allclose(cross_entropy(logits, targets), [0, np.log(2)], rtol=1e-6)


def test_cross_entropy_of_bfloat16_logits_is_that_of_their_float32_values():
    logits = jax.random.normal(jax.random.key(0), (4, 10)).astype(jnp.bfloat16)
    targets = jnp.full((4, 10), 0.1, jnp.bfloat16)
    loss = cross_entropy(logits, targets)
    assert loss.dtype == jnp.float32
    widened = cross_entropy(logits.astype(jnp.float32), targets.astype(jnp.float32))
    np.testing.assert_array_equal(loss, widened)


def test_gradient_is_softmax_minus_target():
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)
    targets = jnp.asarray(soft_targets(rng, (3, 5)), jnp.float32)
    gradient = jax.grad(lambda x: cross_entropy(x, targets).sum())(logits)
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits) - targets, atol=1e-6)


def random_resmlp(rng: np.random.Generator) -> Tree:
    def linear(n_in: int, n_out: int) -> Tree:
        return {"kernel": rng.normal(size=(n_in, n_out)) / 2, "bias": rng.normal(size=n_out)}

    def affine() -> Tree:
        return {"scale": rng.normal(size=DIM), "bias": rng.normal(size=DIM)}

    def block() -> Tree:
        return {
            "affine1": affine(),
            "XPatch": linear(TOKENS, TOKENS),
            "scale1": {"scale": rng.normal(size=DIM)},
            "affine2": affine(),
            "XChannel1": linear(DIM, HIDDEN),
            "XChannel2": linear(HIDDEN, DIM),
            "scale2": {"scale": rng.normal(size=DIM)},
        }

    blocks = {f"block_{i}": block() for i in range(DEPTH)}
    ends = {"norm": affine(), "head": linear(DIM, CLASSES)}
    return {"embed": linear(PATCH * PATCH * 3, DIM), **blocks, **ends}


def random_masks(rng: np.random.Generator, params: Tree) -> Tree:
    return {
        f"block_{i}": {
            name: {"kernel": rng.random(params[f"block_{i}"][name]["kernel"].shape) < 0.6}
            for name in ("XPatch", "XChannel1", "XChannel2")
        }
        for i in range(DEPTH)
    }


def apply_masks(params: Tree, masks: Tree) -> Tree:
    masked = {name: dict(value) for name, value in params.items()}
    for block, layers in masks.items():
        for name, mask in layers.items():
            kernel = params[block][name]["kernel"] * mask["kernel"]
            masked[block][name] = {**params[block][name], "kernel": kernel}
    return masked


@pytest.fixture(scope="module")
def problem() -> tuple[Tree, Tree, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    params = random_resmlp(rng)
    images = rng.normal(size=(2, 2 * PATCH, 3 * PATCH, 3))
    return params, random_masks(rng, params), images, soft_targets(rng, (2, CLASSES))


def test_reference_gradient_of_masked_equals_finite_differences(problem):
    params, masks, images, targets = problem
    loss, grads = resmlp_loss_gradients(params, images, targets, masks, "masked")
    assert loss == mean_cross_entropy(resmlp_forward(params, images, masks), targets)
    step = 1e-5
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    by_path = dict(jax.tree_util.tree_flatten_with_path(grads)[0])
    assert len(by_path) == len(leaves)
    for path, value in leaves:
        for index in np.ndindex(value.shape):
            original = value[index]
            sides = []
            for moved in (original + step, original - step):
                value[index] = moved
                sides.append(mean_cross_entropy(resmlp_forward(params, images, masks), targets))
            value[index] = original
            difference = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose(
                by_path[path][index], difference, rtol=1e-6, atol=1e-8, err_msg=str(path)
            )


def test_reference_straight_through_is_the_gradient_of_the_masked_kernels(problem):
    params, masks, images, targets = problem
    loss, grads = resmlp_loss_gradients(params, images, targets, masks, "straight_through")
    expected = resmlp_loss_gradients(apply_masks(params, masks), images, targets)
    assert loss == expected[0]
    jax.tree.map(np.testing.assert_array_equal, grads, expected[1])


def test_reference_dense_leaves_the_mask_out_of_both_gradients(problem):
    params, masks, images, targets = problem
    last = {f"block_{DEPTH - 1}": {"XChannel2": masks[f"block_{DEPTH - 1}"]["XChannel2"]}}
    _, dense = resmlp_loss_gradients(params, images, targets, last, "dense")
    _, through = resmlp_loss_gradients(params, images, targets, last, "straight_through")
    block = f"block_{DEPTH - 1}"
    jax.tree.map(
        np.testing.assert_array_equal, dense[block]["XChannel2"], through[block]["XChannel2"]
    )
    assert not np.allclose(dense[block]["XChannel1"]["bias"], through[block]["XChannel1"]["bias"])


def test_reference_modes_agree_when_everything_is_kept(problem):
    params, masks, images, targets = problem
    kept = jax.tree.map(np.ones_like, masks)
    modes = ("masked", "dense", "straight_through")
    expected = resmlp_loss_gradients(params, images, targets)[1]
    for mode in modes:
        grads = resmlp_loss_gradients(params, images, targets, kept, mode)[1]
        jax.tree.map(np.testing.assert_array_equal, grads, expected)
