"""Layers and MLPs for the native kernels, at the level of calls, and what they compute."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import reference_mlp

from pallas_kernels import SparseLayer, Weights
from pallas_kernels.cpu import calls, pair_calls
from pallas_kernels.layout import dense_mask


def kernel_shape(block: tuple[int, int], n_in: int = 19, n_out: int = 35) -> tuple[int, int]:
    """Whole blocks, at least so many inputs and outputs."""
    rows, cols = block
    return (-(-n_in // cols) * cols, -(-n_out // rows) * rows)


def random_ids(rng: np.random.Generator, shape: tuple[int, int], block: tuple[int, int]) -> Any:
    n_blocks = (shape[0] // block[1]) * (shape[1] // block[0])
    kept = rng.choice(n_blocks, max(1, n_blocks // 3), replace=False)
    return jnp.asarray(np.sort(kept), jnp.int32)


def float64(a: Any) -> np.ndarray:
    return np.asarray(a).astype(np.float64)


@functools.partial(jax.jit, static_argnums=0)
def products(layer: SparseLayer, x, dy, kernel, bias, kept) -> tuple[jax.Array, ...]:
    """The arrays y, dx, dW, db."""
    y = calls.multiply(x, kernel, bias, kept, layer, transposed=False)
    dx = calls.multiply(dy, kernel, None, kept, layer, transposed=True)
    return y, dx, *calls.gradient(x, dy, kept, layer, with_bias=True)


class Mlp(NamedTuple):
    """An MLP at the level of calls, and its operands."""

    layers: tuple[SparseLayer, SparseLayer]
    residual: bool
    x: Any
    dy: Any
    weights: tuple[Weights, Weights]


def draw_mlp(
    blocks: tuple[tuple[int, int], tuple[int, int]],
    dtype: str = "float32",
    with_bias: bool = True,
    batch: tuple[int, ...] = (37,),
    stack: tuple[int, ...] = (),
) -> Mlp:
    """Random operands; hidden units of the least number that both blocks divide, or twice."""
    rng = np.random.default_rng(0)
    (rows1, cols1), (rows2, cols2) = blocks
    hidden = int(np.lcm(rows1, cols2)) * (2 if np.lcm(rows1, cols2) < 40 else 1)
    n_in = int(np.lcm(cols1, rows2)) * (1 if np.lcm(cols1, rows2) > 15 else 20)
    shapes = ((n_in, hidden), (hidden, n_in))

    def normal(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * rng.normal(size=(*stack, *shape)), dtype)

    weights, layers = [], []
    for shape, block in zip(shapes, blocks, strict=True):
        kept = random_ids(rng, shape, block)
        bias = normal(shape[1]) if with_bias else None
        stacked = jnp.broadcast_to(kept, (*stack, *kept.shape))
        weights.append(Weights(normal(*shape, scale=shape[0] ** -0.5), bias, stacked))
        layers.append(SparseLayer(shape, block, len(kept), -1, dtype))
    x, dy = normal(*batch, n_in), normal(*batch, n_in)
    return Mlp((layers[0], layers[1]), True, x, dy, (weights[0], weights[1]))


def value_and_gradients(made: Mlp, x: Any, dy: Any, weights: Any) -> dict[str, jax.Array]:
    """Result and gradients by name; None for that of an absent bias."""
    y = pair_calls.mlp(x, weights, made.layers, made.residual)
    dx, (first, second) = pair_calls.mlp_gradients(x, dy, weights, made.layers, made.residual)
    gradients = {"dw1": first.kernel, "db1": first.bias, "dw2": second.kernel, "db2": second.bias}
    return {"y": y, "dx": dx, **gradients}


def assert_right(made: Mlp, found: dict[str, Any], x: Any, dy: Any, weights: Any) -> None:
    dtype = made.layers[0].dtype
    layers = []
    for layer, w in zip(made.layers, weights, strict=True):
        bias = np.zeros(layer.kernel_shape[1]) if w.bias is None else float64(w.bias)
        mask = np.asarray(dense_mask(w.kept, layer.kernel_shape, layer.block))
        layers.append(reference_mlp.Layer(float64(w.kernel), bias, mask))
    n_in = made.layers[0].kernel_shape[0]
    one, nothing = np.ones(n_in), np.zeros(n_in)
    first, second = layers
    want = reference_mlp.mlp(
        float64(x), float64(dy), first, second, one, nothing, one, made.residual
    )
    longest = max(x.size // n_in, *(max(layer.kernel_shape) for layer in made.layers))
    for name, got in found.items():
        if got is not None:
            assert got.dtype == jnp.dtype(dtype), name
            reference_mlp.assert_near(got, want[name], reference_mlp.share(dtype, longest), name)
    for name, layer in zip(("dw1", "dw2"), layers, strict=True):
        np.testing.assert_array_equal(np.asarray(found[name])[~layer.mask], 0)
