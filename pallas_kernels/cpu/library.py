"""The library of native kernels: built, loaded and registered with JAX at its first use."""

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from pallas_kernels.cpu.build import BuildError, build_library

SOURCE = Path(__file__).parent / "native" / "handlers.cc"
_HANDLERS = (
    "sparsemlp_multiply",
    "sparsemlp_gradient",
    "sparsemlp_convolution",
    "sparsemlp_convolution_input_gradient",
    "sparsemlp_convolution_gradient",
    "sparsemlp_compact",
    "sparsemlp_largest_blocks",
    "sparsemlp_pruned",
    "sparsemlp_keep_largest",
    "sparsemlp_mlp",
    "sparsemlp_mlp_gradient",
    "sparsemlp_pruned_mlp",
    "sparsemlp_pruned_mlp_gradient",
)


@functools.cache
def load_library() -> ctypes.CDLL | BuildError:
    """Builds, loads and registers the kernels, once a process; the reason if that fails."""
    try:
        built = build_library(SOURCE)
    except BuildError as error:
        return error
    try:
        library = ctypes.CDLL(str(built))
    except OSError as error:
        return BuildError(
            f"the built kernels do not load: {error}; remove {built} if it is damaged, or set "
            "SPARSEMLP_CACHE_DIR to a folder from which programs may run"
        )
    for name in _HANDLERS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return library


def peak_flops() -> float:
    """Float32 operations a second that all cores of this process reach in registers, measured.

    Raises:
      BuildError: the kernels cannot be built here.
    """
    measure = _loaded().sparsemlp_peak_flops
    measure.restype = ctypes.c_double
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return float(measure(ctypes.c_int(cores or 1)))


def _loaded() -> ctypes.CDLL:
    library = load_library()
    if isinstance(library, BuildError):
        raise library
    return library


def call(
    name: str,
    shapes: Sequence[Sequence[int]],
    operands: Sequence[Array],
    options: dict,
    dtypes: Sequence[Any] | None = None,
) -> list[Array]:
    """Calls a kernel; its results vary over the mesh axes of the operand that varies over most.

    Args:
      name: one of the handlers.
      shapes: of its results.
      operands: its arrays, in their order.
      options: its attributes.
      dtypes: of its results; that of the first operand by default.

    Raises:
      BuildError: the kernels cannot be built here.
      ValueError: when it is differentiated.
    """
    _loaded()
    most = max((jax.typeof(a) for a in operands), key=lambda t: len(t.manual_axis_type.varying))
    mesh = most.sharding.mesh
    result = functools.partial(
        jax.ShapeDtypeStruct,
        sharding=None if mesh.empty else NamedSharding(mesh, PartitionSpec()),
        manual_axis_type=most.manual_axis_type,
    )
    dtypes = [operands[0].dtype] * len(shapes) if dtypes is None else dtypes
    results = [result(tuple(s), dtype=d) for s, d in zip(shapes, dtypes, strict=True)]

    @jax.custom_jvp
    def compute(*operands: Array) -> list[Array]:
        return list(jax.ffi.ffi_call(name, results)(*operands, **options))

    @compute.defjvp
    def _refuse(*_: Any) -> NoReturn:
        raise ValueError(
            f"the native kernel {name!r} has no derivative, so that engine 'cpu' has first ones "
            "alone: for second derivatives choose the engine 'reference'"
        )

    return compute(*operands)
