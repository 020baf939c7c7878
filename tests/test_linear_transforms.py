"""The operation under jit, vmap and scan: compiled once, and a loop over its members."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_problem import BLOCK, IN, OUT, RATIO, Problem
from native import needs_native

from sparsemlp import BlockMask, select_blocks, sparse_linear


def rearranged_sizes(function: Any, *arguments: Any) -> list[int]:
    """Sizes of the arrays that a compiled function transposes or copies."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    assert text is not None
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* (?:transpose|copy)\(", text)
    return [math.prod(int(n) for n in shape.split(",") if n) for shape in shapes]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a statement on XLA's CPU compiler")
@pytest.mark.parametrize("is_masked", [True, False], ids=["masked", "dense"])
def test_mixing_tokens_rearranges_no_activation(is_masked):
    batch, tokens, outputs, channels = 5, 16, 32, 24
    x = jnp.ones((batch, tokens, channels))
    kernel, bias = jnp.ones((tokens, outputs)), jnp.ones(outputs)
    mask = select_blocks(kernel, (8, 8), 0.5) if is_masked else None

    def mix(x, kernel, bias):
        return sparse_linear(x, kernel, bias, axis=-2, mask=mask)

    activations = {batch * tokens * channels, batch * outputs * channels}
    assert not activations & set(rearranged_sizes(mix, x, kernel, bias))
    # The same look does find a transpose where there is one.
    assert activations & set(rearranged_sizes(lambda x: x.transpose(2, 0, 1), x))


def test_a_new_mask_does_not_compile_again():
    problem = Problem()
    traces = []

    @jax.jit
    def call(mask: BlockMask) -> jax.Array:
        traces.append(mask)
        return sparse_linear(problem.x, problem.kernel, mask=mask)

    masks = [BlockMask(jnp.array(ids, jnp.int32), (IN, OUT), BLOCK) for ids in ([0, 1], [2, 5])]
    first, second = (np.asarray(call(mask)) for mask in masks)
    assert len(traces) == 1
    assert not np.allclose(first, second)


def test_mapping_over_a_batch_of_masks_kernels_and_inputs_is_a_loop():
    problem = Problem((4,))
    xs = jnp.stack([problem.x, -2 * problem.x])
    kernels = jnp.stack([problem.kernel, problem.kernel[::-1]])
    masks = jax.vmap(lambda kernel: select_blocks(kernel, BLOCK, RATIO))(kernels)

    def gradient(x, kernel, mask):
        def loss(kernel):
            return jnp.sum(jnp.square(sparse_linear(x, kernel, mask=mask)))

        return jax.grad(loss)(kernel)

    mapped = jax.jit(jax.vmap(gradient))(xs, kernels, masks)
    gradient = jax.jit(gradient)
    for x, kernel, kept, got in zip(xs, kernels, masks.kept, mapped, strict=True):
        want = gradient(x, kernel, BlockMask(kept, (IN, OUT), BLOCK))
        scale = float(jnp.abs(want).max())
        np.testing.assert_allclose(got, want, atol=4 * np.finfo(np.float32).eps * 4 * scale)


def test_scanning_over_layers_with_masks_selected_inside_is_a_loop():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, IN)), jnp.float32)
    kernels = jnp.asarray(rng.normal(size=(3, IN, IN)) / math.sqrt(IN), jnp.float32)

    def step(x, kernel):
        return sparse_linear(x, kernel, mask=select_blocks(kernel, (2, 2), 0.5)), None

    def loss(kernels):
        return jnp.sum(jax.lax.scan(step, x, kernels)[0])

    value, gradient = jax.jit(jax.value_and_grad(loss))(kernels)
    masks = [np.asarray(select_blocks(kernel, (2, 2), 0.5).dense()) for kernel in kernels]
    states = [np.asarray(x, np.float64)]
    masked = [
        np.asarray(kernel, np.float64) * mask for kernel, mask in zip(kernels, masks, strict=True)
    ]
    for kernel in masked:
        states.append(states[-1] @ kernel)
    dy, expected = np.ones_like(states[-1]), []
    for state, kernel, mask in zip(states[-2::-1], masked[::-1], masks[::-1], strict=True):
        expected.insert(0, state.T @ dy * mask)
        dy = dy @ kernel.T
    # Three products one after another, of 6 terms each.
    rounding = 3 * 2 * np.finfo(np.float32).eps * math.sqrt(IN)
    np.testing.assert_allclose(value, states[-1].sum(), atol=rounding * abs(states[-1]).sum() * 4)
    np.testing.assert_allclose(gradient, expected, atol=rounding * np.abs(expected).max() * 4)


@needs_native
@pytest.mark.parametrize("wrt", [0, 1])
def test_second_derivatives_by_native_kernels_say_who_has_them(wrt):
    x, kernel = jnp.ones((2, IN)), jnp.ones((IN, OUT))
    mask = select_blocks(kernel, BLOCK, RATIO)

    def twice(engine: str) -> jax.Array:
        def loss(*arrays):
            return jnp.sum(jnp.sin(sparse_linear(*arrays, mask=mask, engine=engine)))

        return jax.hessian(loss, argnums=wrt)(x, kernel)

    assert jnp.any(twice("reference") != 0)
    with pytest.raises(ValueError, match="for second derivatives choose the engine 'reference'"):
        twice("cpu")
