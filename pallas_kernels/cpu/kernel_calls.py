"""A native kernel as a function of JAX arrays, also under `vmap`."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from pallas_kernels.cpu import library
from pallas_kernels.sparse_layer import SparseLayer


# Functions are made once for what they do: JAX compiles what it maps anew for each new function.
@functools.lru_cache(maxsize=1024)
def over_rows(
    name: str, shape: tuple[int, ...], options: tuple[tuple[str, Any], ...]
) -> custom_vmap:
    """A kernel whose result has the rows of the first operand.

    Under `vmap` over that alone its axis joins the rows.

    Args:
      name: of the kernel.
      shape: of the result, without axes of `vmap`.
      options: its attributes.
    """

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        leading = operands[0].shape[: operands[0].ndim - len(shape)]
        return library.call(name, [(*leading, *shape)], operands, dict(options))

    @call.def_vmap
    def rule(size: int, in_batched: list[bool], *operands: Array) -> tuple:
        del size
        if not any(in_batched[1:]):
            return call(*operands), [True]
        return _in_turn(call, in_batched, operands)

    return call


@functools.lru_cache(maxsize=1024)
def at_once(
    name: str,
    shapes: tuple[tuple[int, ...], ...],
    options: tuple[tuple[str, Any], ...],
    dtypes: tuple[np.dtype, ...] | None = None,
) -> custom_vmap:
    """A kernel that needs all of its operands; `vmap` calls it once for each member of a batch.

    Args:
      name: of the kernel.
      shapes: of its results.
      options: its attributes.
      dtypes: of its results; that of the first operand by default.
    """

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        return library.call(name, shapes, operands, dict(options), dtypes)

    @call.def_vmap
    def rule(size: int, in_batched: list[bool], *operands: Array) -> tuple:
        del size
        return _in_turn(call, in_batched, operands)

    return call


def _in_turn(
    call: custom_vmap, in_batched: Sequence[bool], operands: Sequence[Array]
) -> tuple[list[Array], list[bool]]:
    """One call for each member of a batch."""
    results = _mapped(call, tuple(in_batched), tuple(operands))
    return results, [True] * len(results)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _mapped(
    call: custom_vmap, in_batched: tuple[bool, ...], operands: tuple[Array, ...]
) -> list[Array]:
    batch = [a for a, is_batched in zip(operands, in_batched, strict=True) if is_batched]

    def one(members: list[Array]) -> list[Array]:
        rest = iter(members)
        return call(*(next(rest) if b else a for a, b in zip(operands, in_batched, strict=True)))

    return jax.lax.map(one, batch)


def block_options(layer: SparseLayer) -> dict:
    """The sides of the blocks of a kernel, as attributes."""
    return {"rows": np.int64(layer.block[0]), "cols": np.int64(layer.block[1])}


def or_empty(bias: Array | None, x: Array) -> Array:
    """A bias or scale as an operand: empty for None."""
    return jnp.zeros(0, x.dtype) if bias is None else bias
