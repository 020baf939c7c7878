"""Every product of a sparse convolution against its definition in NumPy float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import unfolded
from native import needs_native

from pallas_kernels import ENGINES
from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMask,
    GradientPruning,
    select_blocks,
    sparse_conv,
    sparse_linear,
)
from sparsemlp.errors import InputError
from sparsemlp.gradient_pruning import prune_gradient
from sparsemlp.image_activations import compact_image

EPS = np.finfo(np.float32).eps
X, N_OUT, SIZE = (2, 4, 6, 4), 8, (3, 3)
MATRIX = (36, 8)
MASK = BlockMask(jnp.array([0, 3, 4, 9, 17], jnp.int32), MATRIX, (4, 4))
PRUNING, POOLING = ActivationPruning((3, 4), 0.5), ActivationPooling((2, 3))
GRADIENT = GradientPruning(2, 4, "rescaled")
SIDES = {1: ((1, 1), (1, 1)), 2: ((0, 1), (0, 1))}
"""What SAME is with strides of 1 and of 2."""


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def operands(stride: int) -> tuple[jax.Array, ...]:
    """The arrays x, kernel, bias, dy."""
    dy = normal(2, 4 // stride, 6 // stride, N_OUT, seed=3)
    return normal(*X), normal(*SIZE, X[3], N_OUT, seed=1), normal(N_OUT, seed=2), dy


@functools.partial(
    jax.jit, static_argnames=("stride", "backward", "activation", "gradient", "engine")
)
def value_and_gradients(
    x, kernel, bias, mask, dy, stride, backward, activation, gradient, engine="auto"
):
    def call(x, kernel, bias):
        return sparse_conv(
            x,
            kernel,
            bias,
            strides=(stride, stride),
            mask=mask,
            backward=backward,
            activation=activation,
            gradient=gradient,
            engine=engine,
            rng=jax.random.key(0),
        )

    y, pull = jax.vjp(call, x, kernel, bias)
    return y, *pull(dy)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("masked", "backward", "activation", "gradient", "engine"),
    [
        (False, "masked", None, None, "auto"),
        (False, "masked", PRUNING, GRADIENT, "auto"),
        (False, "masked", PRUNING, None, "reference"),
        (False, "masked", POOLING, None, "auto"),
        (False, "masked", POOLING, GRADIENT, "reference"),
        (True, "masked", None, GRADIENT, "auto"),
        (True, "masked", PRUNING, GRADIENT, "auto"),
        (True, "masked", None, None, "reference"),
        pytest.param(True, "masked", None, GRADIENT, "cpu", marks=needs_native),
        pytest.param(True, "straight_through", POOLING, None, "cpu", marks=needs_native),
        (True, "dense", POOLING, GRADIENT, "auto"),
        (True, "straight_through", PRUNING, None, "auto"),
    ],
)
def test_each_product_is_that_of_its_operands(
    stride, masked, backward, activation, gradient, engine
):
    x, kernel, bias, dy = operands(stride)
    mask = MASK if masked else None
    found = value_and_gradients(
        x, kernel, bias, mask, dy, stride, backward, activation, gradient, engine
    )
    index, _ = unfolded.windows(X, SIZE, (stride, stride), SIDES[stride])
    m = np.asarray(MASK.dense()) if masked else 1
    w = np.float64(kernel).reshape(MATRIX)
    kept = None if activation is None else compact_image(x, activation, ENGINES["reference"])
    rows = unfolded.unfold(x, index)
    own = rows if kept is None else unfolded.unfold(kept.dense(), index)
    pruned = dy if gradient is None else prune_gradient(dy, gradient)
    flat, used = (np.float64(a).reshape(-1, N_OUT) for a in (dy, pruned))
    back = w if backward == "dense" else w * m
    expected = (
        rows @ (w * m) + np.float64(bias),
        unfolded.fold(used @ back.T, index, X),
        own.T @ flat * (m if backward == "masked" else 1),
        flat.sum(axis=0),
    )
    for name, a, e in zip(("y", "dx", "dw", "db"), found, expected, strict=True):
        a = np.asarray(a).reshape(e.shape)
        terms = {"y": 36, "dx": 72}.get(name, len(flat))
        atol = 4 * EPS * np.sqrt(terms) * 16
        np.testing.assert_allclose(a, e, rtol=0, atol=atol, err_msg=name)
    if masked and backward == "masked":
        assert not np.any(np.asarray(found[2]).reshape(MATRIX)[~np.asarray(m)])


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_a_kernel_of_one_pixel_is_a_linear_layer_bit_for_bit(strides):
    x, kernel, bias = normal(*X), normal(1, 1, X[3], N_OUT, seed=1), normal(N_OUT, seed=2)
    mask = select_blocks(kernel, (4, 2), 0.5)
    rules = {"mask": mask, "gradient": GradientPruning(2, 4)}
    if strides == (1, 1):
        rules["activation"] = ActivationPruning((4, 4), 0.5)

    def convolved(x, kernel, bias):
        return sparse_conv(x, kernel, bias, strides=strides, **rules)

    def linear(x, kernel, bias):
        chosen = x[:, :: strides[0], :: strides[1]]
        return sparse_linear(chosen, kernel[0, 0], bias, **rules)

    results = []
    for layer in (convolved, linear):
        y, pull = jax.vjp(jax.jit(layer), x, kernel, bias)
        results.append((y, *pull(jnp.ones_like(y))))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("activation", "gradient"),
    [
        (ActivationPruning((2, 2), 0.0), GradientPruning(4, 4)),
        (ActivationPooling((1, 1)), GradientPruning(4, 4, "random")),
    ],
    ids=str,
)
def test_rules_that_drop_nothing_change_no_bit(activation, gradient):
    x, kernel, bias, dy = operands(1)
    found = value_and_gradients(x, kernel, bias, None, dy, 1, "masked", activation, gradient)
    plain = value_and_gradients(x, kernel, bias, None, dy, 1, "masked", None, None)
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("activation", [PRUNING, POOLING], ids=["pruning", "pooling"])
@pytest.mark.parametrize("stride", [1, 2])
def test_nothing_of_the_images_survives_but_what_their_rule_keeps(activation, stride):
    x, kernel, bias, _ = operands(stride)

    def residual_shapes(activation):
        _, pull = jax.vjp(
            lambda x: sparse_conv(x, kernel, bias, strides=(stride, stride), activation=activation),
            x,
        )
        return {leaf.shape for leaf in jax.tree.leaves(pull)}

    assert x.shape in residual_shapes(None)
    assert x.shape not in residual_shapes(activation)


@pytest.mark.parametrize(
    ("padding", "sides"),
    [
        ("VALID", ((0, 0), (0, 0))),
        (1, ((1, 1), (1, 1))),
        (((0, 1), (2, 0)), ((0, 1), (2, 0))),
    ],
)
def test_padding(padding, sides):
    x, kernel, _, _ = operands(1)
    index, shape = unfolded.windows(X, SIZE, (1, 1), sides)
    y = sparse_conv(x, kernel, padding=padding)
    expected = unfolded.unfold(x, index) @ np.float64(kernel).reshape(MATRIX)
    np.testing.assert_allclose(y, expected.reshape(*shape, N_OUT), atol=4 * EPS * 6 * 16)


def test_rules_work_under_vmap_and_shard_map():
    x, kernel, bias, dy = operands(1)
    rules = {"activation": PRUNING, "gradient": GradientPruning(2, 4, "random")}
    rng = jax.random.key(0)

    def gradients(x, kernel, bias, dy, rng):
        pull = jax.vjp(lambda *a: sparse_conv(*a, rng=rng, **rules), x, kernel, bias)[1]
        return pull(dy)

    expected = jax.jit(gradients)(x, kernel, bias, dy, rng)
    split, whole = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(split, whole, whole, split, whole),
        out_specs=(split, whole, whole),
    )
    mapped = jax.vmap(gradients, in_axes=(0, None, None, 0, None))
    twice = jax.jit(mapped)(jnp.stack([x, x]), kernel, bias, jnp.stack([dy, dy]), rng)
    for found in (jax.jit(sharded)(x, kernel, bias, dy, rng), jax.tree.map(lambda a: a[1], twice)):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=16 * EPS * np.abs(b).max())


def test_bfloat16_in_bfloat16_out():
    x, kernel, bias, dy = (a.astype(jnp.bfloat16) for a in operands(1))
    rules = (1, "masked", PRUNING, GRADIENT)
    found = value_and_gradients(x, kernel, bias, MASK, dy, *rules)
    assert {a.dtype for a in found} == {jnp.dtype(jnp.bfloat16)}
    wide = [a.astype(jnp.float32) for a in (x, kernel, bias, dy)]
    for a, b in zip(found, value_and_gradients(*wide[:3], MASK, wide[3], *rules), strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.05 * np.abs(b).max())


def test_strides_in_a_list_and_names_in_small_letters_are_the_same():
    x, kernel, _, _ = operands(1)
    wanted, found = (
        sparse_conv(x, kernel, strides=strides, padding=padding)
        for strides, padding in (((2, 1), "SAME"), ([2, 1], "same"))
    )
    np.testing.assert_array_equal(found, wanted)


def test_wide_integers_change_nothing():
    x, kernel, _, dy = operands(1)
    rule = ActivationPruning((4, 4), 0.5)

    def gradient() -> jax.Array:
        return jax.grad(lambda k: jnp.vdot(sparse_conv(x, k, activation=rule), dy))(kernel)

    wanted = gradient()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(gradient(), wanted)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": normal(2, 4, 4)}, r"x of shape \(2, 4, 4\) does not fit"),
        ({"x": normal(2, 4, 4, 3)}, r"must be \[batch, height, width, 4\]"),
        ({"kernel": normal(4, 8)}, r"kernel of shape \(4, 8\) is not \[down, across, in, out\]"),
        ({"bias": normal(7)}, r"bias of shape \(7,\) does not fit 8 outputs"),
        ({"padding": "FULL"}, "padding 'FULL' is unknown: SAME, VALID, or numbers"),
        ({"strides": 2}, r"strides 2 are not \(down, across\)"),
        ({"mask": jnp.ones((36, 8), bool)}, "mask of type ArrayImpl is not understood"),
        ({"x": normal(1, 2, 6, 4), "padding": 0}, "2x6 pixels is smaller than the kernel 3x3"),
        ({"engine": "fast"}, "engine 'fast' is unknown"),
        ({"mask": MASK, "engine": "mosaic"}, "'mosaic' masks .* of 3x3: choose auto, or of cpu"),
        ({"backward": "none"}, "backward 'none' is unknown"),
        ({"gradient": GradientPruning(2, 16)}, "2:16 does not divide the 8 entries"),
        (
            {"mask": BlockMask(jnp.arange(1), (4, 8), (4, 4))},
            r"mask is for a kernel \[in, out\] = \(4, 8\), not for \(3, 3, 4, 8\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    x, kernel, bias, _ = operands(1)
    arguments = {"x": x, "kernel": kernel, "bias": bias} | changes
    with pytest.raises(InputError, match=message):
        sparse_conv(**arguments)


def test_blocks_of_a_kernel_are_those_of_its_matrix():
    kernel = normal(*SIZE, X[3], N_OUT)
    mask = select_blocks(kernel, (4, 2), 0.75)
    assert mask.kernel_shape == MATRIX
    assert mask.n_kept == math.ceil(36 * 0.25)
    flat = select_blocks(kernel.reshape(MATRIX), (4, 2), 0.75)
    np.testing.assert_array_equal(mask.kept, flat.kept)
