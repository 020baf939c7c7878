"""Every engine under `grad`, `vmap` and `scan`."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import (
    AXES,
    BACKWARDS,
    EVERY_ENGINE,
    OUTPUTS,
    PATTERNS,
    SMALL,
    Shape,
    assert_conforms,
    draw,
    expected,
    skip_unless_able,
    small_mask,
    value_and_gradients,
)

from sparsemlp import BlockMask, sparse_linear


@EVERY_ENGINE
@AXES
@pytest.mark.parametrize("is_compiled", [True, False], ids=["jit", "no jit"])
def test_an_engine_has_the_gradient_of_a_scalar_with_and_without_jit(engine, axis, is_compiled):
    mask = small_mask(PATTERNS["one block in each row and column"])
    skip_unless_able(engine, mask, axis, "float32")
    operands = draw(SMALL, axis, "float32", mask)

    def loss(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = sparse_linear(x, kernel, bias, axis=axis, mask=mask, engine=engine)
        return jnp.vdot(y, operands.dy), y

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, y), gradients = (jax.jit(gradient) if is_compiled else gradient)(*operands[:3])
    assert_conforms((y, *gradients), expected(operands, axis, "masked"), "float32")


@EVERY_ENGINE
@AXES
@pytest.mark.parametrize("backward", BACKWARDS)
def test_mapping_an_engine_over_x_alone_is_a_longer_batch(engine, axis, backward):
    mask = small_mask(PATTERNS["one block in each row and column"])
    skip_unless_able(engine, mask, axis, "float32")
    shape = SMALL._replace(batch=(3, 5), groups=(3, 2))
    operands = draw(shape, axis, "float32", mask)

    def call(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return sparse_linear(
            x, kernel, bias, axis=axis, mask=mask, backward=backward, engine=engine
        )

    @jax.jit
    def mapped(x, kernel, bias, dy):
        y, pull = jax.vjp(jax.vmap(call, in_axes=(0, None, None)), x, kernel, bias)
        return y, *pull(dy)

    actual = mapped(*operands[:3], operands.dy)
    assert_conforms(actual, expected(operands, axis, backward), "float32")


@EVERY_ENGINE
@AXES
@pytest.mark.parametrize("backward", BACKWARDS)
def test_mapping_an_engine_over_layers_is_one_layer_after_another(engine, axis, backward):
    masks = small_mask(np.array(list(PATTERNS.values())))
    skip_unless_able(engine, masks, axis, "float32")
    stacked = draw(SMALL, axis, "float32", masks, stack=(len(PATTERNS),))
    one = functools.partial(value_and_gradients, engine=engine, axis=axis, backward=backward)
    actual = jax.jit(jax.vmap(one))(stacked)
    for index in range(len(PATTERNS)):
        layer, found = jax.tree.map(lambda a, i=index: a[i], (stacked, actual))
        assert_conforms(found, expected(layer, axis, backward), "float32")


@EVERY_ENGINE
@AXES
def test_scanning_an_engine_over_layers_is_one_layer_after_another(engine, axis):
    size, block, depth = 64, (16, 16), 3
    shape = Shape((size, size), (5,), (2,), 3)
    kept = jnp.asarray([[0, 1, 2, 3, 9], [3, 7, 8, 11, 15], [0, 5, 10, 12, 15]], jnp.int32)
    masks = BlockMask(kept, shape.kernel, block)
    skip_unless_able(engine, masks, axis, "float32")
    layers = draw(shape, axis, "float32", masks, stack=(depth,))
    x, kernels, dy = layers.x[0], layers.kernel / math.sqrt(size), layers.dy[0]

    @functools.partial(jax.jit, static_argnums=0)
    def run(engine: str, x, kernels, biases, masks, dy) -> tuple:
        def step(x, layer):
            kernel, bias, mask = layer
            return sparse_linear(x, kernel, bias, axis=axis, mask=mask, engine=engine), None

        def stack(x, kernels, biases):
            return jax.lax.scan(step, x, (kernels, biases, masks))[0]

        y, pull = jax.vjp(stack, x, kernels, biases)
        return y, *pull(dy)

    operands = (x, kernels, layers.bias, masks, dy)
    actual = run(engine, *operands)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (x, kernels, layers.bias))
        wanted = run("reference", *wide, masks, np.asarray(dy, np.float64))
        wanted = [np.asarray(a) for a in wanted]
    for name, got, want in zip(OUTPUTS, actual, wanted, strict=True):
        assert want.dtype == np.float64
        # Up to 2 * depth products one after another, each as in `expected`; none grows the error.
        scale = 2 * depth * 4 * np.finfo(np.float32).eps / 2 * math.sqrt(size)
        np.testing.assert_allclose(got, want, rtol=0, atol=scale * abs(want).max(), err_msg=name)
    dropped = ~np.asarray(jax.vmap(BlockMask.dense)(masks))
    np.testing.assert_array_equal(np.asarray(actual[2])[dropped], 0)
