"""Operands under `shard_map`: over which axes of the mesh they vary, and their random parts."""

import math
from collections.abc import Callable

import jax
from jaxtyping import Array

AXIS = "data"
"""The axis of the mesh over which `parallel` divides a batch."""


def varying_alike(*operands: Array | None) -> list[Array | None]:
    """Operands that all vary over the mesh axes over which any of them does.

    Under `shard_map` the gradient of a custom rule has to vary as its operand does. A replicated
    kernel beside a sharded x is cast here, and JAX sums the gradient of a cast over its axes.
    """
    vary = [frozenset() if a is None else jax.typeof(a).manual_axis_type.varying for a in operands]
    axes = frozenset[str]().union(*vary)
    return [
        a if a is None or own == axes else jax.lax.pcast(a, tuple(axes - own), to="varying")
        for a, own in zip(operands, vary, strict=True)
    ]


def draw_part(
    draw: Callable[[tuple[int, ...]], Array], shape: tuple[int, ...], like: Array
) -> Array:
    """Draws for the samples of all devices and returns this device's part of the first axis.

    Elsewhere than under `shard_map` it draws the shape itself. So a random number of a sample does
    not depend on how many devices share the batch.

    Args:
      draw: random array of a shape; its key is the same on all devices.
      shape: of this device's part.
      like: an array that varies over the axes of the mesh which divide the samples; where JAX does
        not track that, `AXIS` does if it is there.
    """
    axes = tuple(sorted(jax.typeof(like).manual_axis_type.varying)) or _own_axis()
    if not axes or not shape:
        return draw(shape)
    n_devices = math.prod(jax.lax.axis_size(axis) for axis in axes)
    drawn = draw((shape[0] * n_devices, *shape[1:]))
    start = jax.lax.axis_index(axes) * shape[0]
    return jax.lax.dynamic_slice_in_dim(drawn, start, shape[0])


def _own_axis() -> tuple[str, ...]:
    try:
        jax.lax.axis_size(AXIS)
    except NameError:
        return ()
    return (AXIS,)
