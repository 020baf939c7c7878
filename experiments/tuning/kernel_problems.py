"""A problem of a kernel as arrays: its operands, and who computes it."""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import ENGINES, Engine, Neighbours, Reference, SparseLayer, Weights, dense
from pallas_kernels.device_table import Problem
from pallas_kernels.engine_of_convolutions import CONVOLUTIONS
from pallas_kernels.lists import ids_of
from sparsemlp import BlockMask
from sparsemlp.blocks import n_kept_blocks
from sparsemlp.mlp import Linear, sparse_mlp
from tuning.convolution_problems import convolution_work, is_convolved
from tuning.work import Work, kept_blocks

PRODUCTS = ("product", "input_gradient", "kernel_gradient")
PAIRS = ("mlp", "mlp_gradients")
"""Of a layer and its like back: result and gradients, and the gradients alone."""
OF_IMAGES = tuple(CONVOLUTIONS.values())
KERNELS = (*PRODUCTS, *PAIRS, "compact_gradient", "pruned_input_gradient", *OF_IMAGES)
COMPARED = (*PRODUCTS, "mlp")
"""The kernels that the GPU benchmark compares before it times anything."""
LAST = ("jax-triton",)
"""Engines that take none of the time of the others: they are checked and timed after them, and
cannot be interpreted."""
CHANNELS = 256
"""Of x along the token axis, if they divide its rows."""


def gpu_engines(interpret: bool = False) -> dict[str, Engine]:
    """The engines of this version that are for GPUs; without one, those that can be interpreted."""
    if interpret:
        # Threads of XLA, if JAX was not used before, else one a core: each warpgroup of an
        # interpreted kernel may wait on one of them for the others.
        os.environ.setdefault("NPROC", "32")
    layer = SparseLayer((256, 256), (64, 64), 3, -1, "bfloat16")
    found = {
        name: engine
        for name, engine in ENGINES.items()
        if name != "reference" and engine.reason_against(layer, "gpu") is None
    }
    found = dict(sorted(found.items(), key=lambda item: item[0] in LAST))
    if not interpret:
        return found
    return {
        name: type(engine)(interpret=True)  # pyright: ignore[reportCallIssue]
        for name, engine in found.items()
        if hasattr(engine, "interpret") and name not in LAST
    }


def layer_of(
    shape: tuple[int, int], block: tuple[int, int], ratio: float, axis: Any, dtype: str
) -> SparseLayer:
    """A layer with the blocks that selection at a ratio keeps."""
    n_blocks = math.prod(shape) // math.prod(block)
    return SparseLayer(shape, block, n_kept_blocks(n_blocks, ratio), axis, dtype)


def random_rows(layer: SparseLayer, n_rows: int, features: int, seed: int) -> jax.Array:
    """Normal numbers in the shape of x with so many features."""
    shape = (n_rows, features)
    if layer.axis == -2:
        channels = CHANNELS if n_rows % CHANNELS == 0 else n_rows
        shape = (n_rows // channels, features, channels)
    return jax.random.normal(jax.random.key(seed), shape, jnp.dtype(layer.dtype))


def work_of(kernel: str, layer: SparseLayer, n_rows: int) -> Work:
    """The work of a kernel.

    Args:
      kernel: one of `KERNELS`. Of `product` the bias is left out: XLA adds it in a pass of its own,
        which in a model computes GELU as well. With `kernel_gradient` goes that of the bias: layers
        have one, and an engine may compute both at once. With `compact_gradient` the block of the
        layer is that of x, with `pruned_input_gradient` it is N and M of the neighbours that are
        kept.
      layer: the layer; of `OF_IMAGES` the matrix of a 3x3 kernel.
      n_rows: rows of x, or samples times channels along the token axis; or pixels.
    """
    if kernel in OF_IMAGES:
        return convolution_work(kernel, layer, n_rows)
    (n_in, n_out), axis, dtype = layer.kernel_shape, layer.axis, jnp.dtype(layer.dtype)
    w = jax.random.normal(jax.random.key(2), (n_in, n_out), dtype) / jnp.asarray(n_in**0.5, dtype)
    x, dy = (random_rows(layer, n_rows, n, seed) for seed, n in enumerate((n_in, n_out)))
    match kernel:
        case "product":
            return Work(
                lambda e: lambda x, w, kept: e.product(x, w, None, e.taken(kept), layer),
                lambda x, w, kept: dense.product(x, w, None, axis),
                (x, w, kept_blocks(layer)),
                n_in,
            )
        case "input_gradient":
            return Work(
                lambda e: lambda dy, w, kept: e.input_gradient(dy, w, e.taken(kept), layer),
                lambda dy, w, kept: dense.input_gradient(dy, w, axis),
                (dy, w, kept_blocks(layer)),
                n_out,
            )
        case "kernel_gradient":
            return Work(
                lambda e: lambda x, dy, kept: e.parameter_gradients(x, dy, e.taken(kept), layer),
                lambda x, dy, kept: (
                    dense.kernel_gradient(x, dy, axis),
                    dense.bias_gradient(dy, axis),
                ),
                (x, dy, kept_blocks(layer)),
                n_rows,
            )
        case "compact_gradient":
            height, width = layer.block
            n_blocks = n_rows * n_in // (height * width)
            ids = np.random.default_rng(0).choice(n_blocks, layer.n_kept, replace=False)
            values = jax.random.normal(jax.random.key(3), (layer.n_kept, height, width), dtype)
            return Work(
                lambda e: lambda values, ids, dy: e.compact_gradient(values, ids, dy, n_in, axis),
                lambda values, ids, dy: Reference().compact_gradient(values, ids, dy, n_in, axis),
                (values, jnp.asarray(np.sort(ids), jnp.int32), dy),
                n_rows,
            )
        case "pruned_input_gradient":
            kept = Neighbours(*layer.block)
            return Work(
                lambda e: lambda dy, w: e.pruned_input_gradient(dy, w, kept, axis),
                lambda dy, w: Reference().pruned_input_gradient(dy, w, kept, axis),
                (dy, w),
                n_out,
            )
        case "mlp" | "mlp_gradients":
            return _pair(layer, n_rows, dtype, with_result=kernel == "mlp")
    raise ValueError(f"there is no kernel {kernel!r}: choose one of {', '.join(KERNELS)}")


def planned_work(
    kernel: str, layer: SparseLayer, n_rows: int
) -> tuple[Work, Callable[[], tuple[Any, ...]]]:
    """The work of a kernel without arrays, and a compiled program that makes them.

    Args:
      kernel: as of `work_of`.
      layer: the layer.
      n_rows: as of `work_of`.

    Returns:
      The work, its operands shapes; and what makes the operands on the device.
    """
    found: list[Work] = []

    def make() -> tuple[Any, ...]:
        found.append(work_of(kernel, layer, n_rows))
        return found[0].operands

    lowered = jax.jit(make).lower()
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), lowered.out_info)
    return found[0]._replace(operands=shapes), lowered.compile()


def _pair(layer: SparseLayer, n_rows: int, dtype: Any, *, with_result: bool) -> Work:
    """Forward, unless without result, and backward of a layer and its like back.

    The narrower sides are outside.
    """
    narrow, hidden = sorted(layer.kernel_shape)
    first = dataclasses.replace(layer, kernel_shape=(narrow, hidden))
    second = dataclasses.replace(layer, kernel_shape=(hidden, narrow))
    x, dy = (random_rows(first, n_rows, narrow, seed) for seed in (0, 1))
    arrays = []
    for seed, own in enumerate((first, second)):
        w = jax.random.normal(jax.random.key(seed), own.kernel_shape, dtype)
        arrays += [w / jnp.asarray(own.kernel_shape[0] ** 0.5, dtype)]
        arrays += [jnp.ones(own.kernel_shape[1], dtype), kept_blocks(own)]

    def sparse(engine: Engine) -> Callable[..., Any]:
        def run(x: Any, dy: Any, w1: Any, b1: Any, k1: Any, w2: Any, b2: Any, k2: Any) -> Any:
            k1, k2 = (engine.taken(kept) for kept in (k1, k2))
            weights = (Weights(w1, b1, k1), Weights(w2, b2, k2))
            gradients = engine.mlp_gradients(x, dy, weights, (first, second), residual=True)
            if not with_result:
                return gradients
            return engine.mlp(x, weights, (first, second), residual=True), gradients

        return run

    def without(x: Any, dy: Any, w1: Any, b1: Any, k1: Any, w2: Any, b2: Any, k2: Any) -> Any:
        def pair(*given: Any) -> Any:
            x, w1, b1, w2, b2 = given
            return sparse_mlp(x, Linear(w1, b1), Linear(w2, b2), residual=True)

        y, pullback = jax.vjp(pair, x, w1, b1, w2, b2)
        return (y, pullback(dy)) if with_result else pullback(dy)

    def masked(x: Any, dy: Any, w1: Any, b1: Any, k1: Any, w2: Any, b2: Any, k2: Any) -> Any:
        both = ((ids_of(k1), first), (ids_of(k2), second))
        masks = [BlockMask(ids, own.kernel_shape, own.block) for ids, own in both]

        def pair(*given: Any) -> Any:
            x, w1, b1, w2, b2 = given
            linears = (Linear(w1, b1, masks[0]), Linear(w2, b2, masks[1]))
            return sparse_mlp(x, *linears, residual=True, engine="reference")

        y, pullback = jax.vjp(pair, x, w1, b1, w2, b2)
        return (y, pullback(dy)) if with_result else pullback(dy)

    # Rounded on the way: hidden units before and after GELU, their gradient before and after.
    operands = (x, dy, *arrays)
    return Work(sparse, without, operands, max(hidden, n_rows), masked, n_roundings=5)


def is_able(engine: Engine, kernel: str, layer: SparseLayer) -> bool:
    """Whether an engine has a kernel for a layer; of `PAIRS`, for it and its like back.

    A pair that drops nothing is not a pair of an engine's, whatever its blocks.
    """
    if kernel in PAIRS:
        if not layer.is_masked:
            return False
        n_in, n_out = sorted(layer.kernel_shape)
        pair = [dataclasses.replace(layer, kernel_shape=s) for s in ((n_in, n_out), (n_out, n_in))]
        able = all(engine.reason_against(each, "gpu") is None for each in pair)
        return able and engine.fuses(pair[0], pair[1])
    if kernel in OF_IMAGES:
        return is_convolved(engine, layer)
    return kernel not in PRODUCTS or engine.reason_against(layer, "gpu") is None


def problem_of(engine: Engine, kernel: str, layer: SparseLayer, n_rows: int) -> Problem:
    """The problem that a kernel's table of measurements knows."""
    found = layer.problem(engine.name, engine.version, kernel, n_rows)
    if kernel == "pruned_input_gradient":
        return dataclasses.replace(found, density=layer.block[0] / layer.block[1])
    if kernel == "compact_gradient":
        kept = layer.n_kept_weights
        return dataclasses.replace(found, density=kept / (n_rows * layer.kernel_shape[0]))
    return found
