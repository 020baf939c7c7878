"""The one place that knows how this JAX compiles Pallas kernels by Triton.

JAX calls that way deprecated since 0.11; when it goes, or a kernel moves to another compiler, this
file is what changes.
"""

import dataclasses
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

try:
    from jax.experimental.pallas import triton
except ImportError:
    triton = None

_DEPRECATION = "The Pallas Triton backend is deprecated"


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a kernel is cut for a GPU.

    Attributes:
      rows: rows of x (along the tokens, channels) of one step of a program, at most; a power of two
        from 16.
      warps: warps of 32 threads of one program.
      stages: loads in flight of a loop over blocks.
    """

    rows: int
    warps: int
    stages: int


def missing() -> str | None:
    """Why kernels cannot be compiled by Triton with the installed JAX; None if they can."""
    if triton is None:
        return (
            f"JAX {jax.__version__} no longer compiles Pallas kernels by Triton: install "
            "'jax>=0.11.1,<0.13'"
        )
    return None


def unfit() -> str | None:
    """Why kernels cannot be compiled for the GPU of this process; None if they can, or without one.

    JAX 0.11.1 knows GPUs by name, and not all of them.
    """
    device = jax.devices()[0]
    if triton is None or device.platform != "gpu":
        return None
    capability = device.compute_capability
    if not re.fullmatch(r"([89]|\d\d+)\.\d+", capability):
        return f"it is for NVIDIA GPUs of compute capability 8.0 and later, not {capability}"
    try:
        triton.get_gpu_info()
    except ValueError as error:
        return f"JAX {jax.__version__} does not know this GPU ({error}): install 'jax>=0.11.2'"
    return None


def launch(
    name: str,
    kernel: Callable[..., None],
    operands: Sequence[Array],
    *,
    grid: tuple[int, ...],
    in_specs: Sequence[pl.BlockSpec],
    out_spec: Any,
    out: Any,
    tiles: Tiles,
    interpret: bool,
) -> Any:
    """Runs a kernel once for every point of a grid.

    Args:
      name: what the kernel is called in a profile.
      kernel: takes a reference for each operand, and one for each result.
      operands: arrays.
      grid: how many programs there are, the first axis running fastest.
      in_specs: which part of each operand a program sees.
      out_spec: which part of the result, a `pl.BlockSpec`; of several results a tuple of them.
      out: shape and dtype of the result, a `jax.ShapeDtypeStruct`, or a tuple.
      tiles: warps and stages.
      interpret: whether JAX interprets the kernel, on any platform, instead of compiling it.
    """
    assert triton is not None
    # Said when the kernel is lowered, which is in the caller's compilation.
    warnings.filterwarnings("ignore", message=_DEPRECATION, category=DeprecationWarning)
    most = max((jax.typeof(a) for a in operands), key=lambda t: len(t.manual_axis_type.varying))
    run = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=list(in_specs),
        out_specs=out_spec,
        out_shape=jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(
                a.shape, a.dtype, manual_axis_type=most.manual_axis_type
            ),
            out,
        ),
        compiler_params=triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name=name,
    )
    # The integers of a kernel have 32 bits, also where `jax_enable_x64` makes others longer.
    operands = [a.astype(jnp.int32) if a.dtype.kind == "i" else a for a in operands]
    with jax.enable_x64(False):
        return run(*operands)


def load(ref: Any, mask: Any = None) -> Array:
    """What a reference (`ref.at[...]`) names, zero where the mask is False."""
    assert triton is not None
    if mask is None:
        return triton.load(ref)
    return triton.load(ref, mask=mask, other=jnp.zeros((), ref.dtype))


def store(ref: Any, value: Array, mask: Any) -> None:
    """Writes to a reference where the mask is True."""
    assert triton is not None
    triton.store(ref, value.astype(ref.dtype), mask=mask)


def dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Contracts one axis of each of two matrices, summing in float32.

    Float32 is multiplied in TF32 unless `jax_default_matmul_precision` asks for more.
    """
    axes = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def tile_size(length: int, largest: int) -> int:
    """The smallest power of two from 16 that covers a length, or the largest that is allowed."""
    return min(largest, max(16, 1 << max(0, length - 1).bit_length()))


def quotient_and_rest(a: Array, divisor: int) -> tuple[Array, Array]:
    """Of integers that are not negative; what `//` and `%` become is more than Triton takes."""
    by = jnp.asarray(divisor, a.dtype)
    return jax.lax.div(a, by), jax.lax.rem(a, by)


def whole(a: Array) -> pl.BlockSpec:
    """All of an operand, for every program."""
    return pl.BlockSpec(a.shape, lambda *_: (0,) * a.ndim)


def indices(n: int) -> Array:
    """0 to n - 1, int32 `[n]`; n is a power of two."""
    return jax.lax.broadcasted_iota(jnp.int32, (n,), 0)
