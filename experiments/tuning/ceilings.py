"""What a device reaches: of its memory by a copy, of its arithmetic by a large dense product."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tuning.compiled_loops import N_COPIES, compile_loops
from tuning.device_timing import WARM_SECONDS, time_loops


class Ceilings(NamedTuple):
    """What the device reached in this process.

    Attributes:
      bytes_per_second: of a copy, counting what is read and what is written.
      flops: operations a second of a large dense product by XLA, by dtype.
    """

    bytes_per_second: float
    flops: dict[str, float]


def measured_ceilings(is_tiny: bool = False) -> Ceilings:
    """What a large copy and large dense products reach.

    Args:
      is_tiny: whether small sizes are used, which measure nothing.
    """
    n_numbers, side = (1 << 12, 64) if is_tiny else (1 << 28, 8192)
    a = jax.random.normal(jax.random.key(0), (n_numbers,), jnp.float32)
    functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "copy": (lambda a: -a, (a,)),
    }
    for dtype in ("bfloat16", "float32"):
        square = jax.random.normal(jax.random.key(1), (side, side), jnp.dtype(dtype))
        functions[dtype] = (jnp.matmul, (square, square))
    n_times = 1 if is_tiny else N_COPIES
    loops = compile_loops(functions, n_times)
    warm_seconds = 0.0 if is_tiny else WARM_SECONDS
    timed, failed = time_loops(loops, n_times, 1 if is_tiny else 5, warm_seconds)
    if failed:
        raise RuntimeError(f"the device cannot do a plain copy or product: {failed}")
    return Ceilings(
        2 * a.nbytes / timed["copy"].low,
        {name: 2 * side**3 / timed[name].low for name in ("bfloat16", "float32")},
    )
