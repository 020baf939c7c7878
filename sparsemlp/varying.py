"""Operands under `shard_map`: over which axes of the mesh they vary, and their random parts."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sparsemlp.errors import InputError

AXIS = "data"
"""The axis of the mesh over which `parallel` divides a batch."""


class _Part(NamedTuple):
    """Some of a device's samples: the index of their first one, and how many it has in all."""

    first: Array
    n_samples: int


_PART: contextvars.ContextVar[_Part | None] = contextvars.ContextVar("part", default=None)


@contextlib.contextmanager
def computing_part(first: Array, n_samples: int) -> Iterator[None]:
    """While this is entered, `draw_part` draws for some of a device's samples, not for all.

    It holds for what is traced in it, as the axes of a mesh hold inside `shard_map`.

    Args:
      first: index of the first of them among the samples of the device, int32; traced.
      n_samples: how many samples the device has.
    """
    token = _PART.set(_Part(first, n_samples))
    try:
        yield
    finally:
        _PART.reset(token)


def varying_alike[Operands](operands: Operands) -> Operands:
    """A pytree of operands that all vary over the mesh axes over which any of them does.

    Under `shard_map` the gradient of a custom rule has to vary as its operand does. A replicated
    kernel beside a sharded x is cast here, and JAX sums the gradient of a cast over its axes.

    Raises:
      InputError: as `refuse_explicit_axes`.
    """
    arrays, structure = jax.tree.flatten(operands)
    refuse_explicit_axes(*arrays)
    vary = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    axes = frozenset[str]().union(*vary)
    alike = [
        a if own == axes else jax.lax.pcast(a, tuple(axes - own), to="varying")
        for a, own in zip(arrays, vary, strict=True)
    ]
    return jax.tree.unflatten(structure, alike)


def refuse_explicit_axes(*operands: Array) -> None:
    """Raises InputError for an operand whose type says how it is sharded.

    With such types every product and reshape has to say how its result is.
    """
    for a in operands:
        axes = tuple(filter(None, jax.typeof(a).sharding.spec))
        if axes:
            raise InputError(
                f"an operand is sharded over the explicit axes {axes} of a mesh, which is not "
                "supported: call the model inside jax.shard_map, or, with engine='reference', make "
                "the mesh with axis_types=(jax.sharding.AxisType.Auto,) for each axis"
            )


def draw_part(
    draw: Callable[[tuple[int, ...]], Array], shape: tuple[int, ...], like: Array
) -> Array:
    """Draws for the samples of the whole batch and returns those that are computed here.

    Under `shard_map` these are the device's, inside `computing_part` some of them; elsewhere it
    draws the shape itself. So a random number of a sample does not depend on how many devices share
    the batch, nor in how many parts they compute it.

    Args:
      draw: random array of a shape; its key is the same on all devices and for all parts.
      shape: of what is computed here, samples first. Samples beyond those of the device, which
        fill up its last part, get zeros or what is another's.
      like: an array that varies over the axes of the mesh which divide the samples; where JAX does
        not track that, `AXIS` does if it is there.
    """
    axes = tuple(sorted(jax.typeof(like).manual_axis_type.varying)) or _own_axis()
    part = _PART.get()
    if not shape or not (axes or part):
        return draw(shape)
    own = shape[0] if part is None else part.n_samples
    drawn = draw((own * math.prod(jax.lax.axis_size(axis) for axis in axes), *shape[1:]))
    start = jax.lax.axis_index(axes) * own if axes else jnp.int32(0)
    if part is not None:
        beyond = -own % shape[0]
        drawn = jnp.pad(drawn, ((0, beyond), *((0, 0) for _ in shape[1:])))
        start = start + part.first
    return jax.lax.dynamic_slice_in_dim(drawn, start, shape[0])


def _own_axis() -> tuple[str, ...]:
    try:
        index = jax.lax.axis_index(AXIS)
    except NameError:
        return ()
    # Where JAX tracks it an index varies, and what does not is whole on every device.
    return () if jax.typeof(index).manual_axis_type.varying else (AXIS,)
