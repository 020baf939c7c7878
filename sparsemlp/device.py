"""Whether the device of this process still answers, and what is said if not, or out of memory."""

import contextlib
import traceback
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from sparsemlp.errors import (
    DeviceLostError,
    InputError,
    NotFiniteError,
    OutOfMemoryError,
    WorkerError,
    in_a_line,
)

_NOT_OF_A_DEVICE = (InputError, NotFiniteError, WorkerError, OSError)
"""Errors that say themselves what is wrong, as that a disk is full."""
_FULL = "RESOURCE_EXHAUSTED"
"""How JAX begins what it says of memory that is not there."""


def device_answers() -> bool:
    """False where nothing can be computed any more: a kernel that faults breaks all later calls."""
    try:
        jax.block_until_ready(jnp.zeros(()) + 1)
    except Exception:
        return False
    return True


@contextlib.contextmanager
def answering_device(way_out: str) -> Iterator[None]:
    """Says so where something failed and the device answers no more.

    Args:
      way_out: how to go on, the end of the message.

    Raises:
      DeviceLostError: in the place of what JAX raises; the traceback was printed.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, _NOT_OF_A_DEVICE) or device_answers():
            raise
        traceback.print_exception(error)
        reason = f"{type(error).__name__}: {in_a_line(error)}"[:300]
        raise DeviceLostError(f"the device answers no more after {reason}; {way_out}") from error


@contextlib.contextmanager
def training_memory() -> Iterator[None]:
    """Says what would need less memory where a training has not enough; a decorator as well.

    Raises:
      OutOfMemoryError: in the place of what JAX raises, or numpy.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        told = in_a_line(error)
        if not isinstance(error, MemoryError) and _FULL not in told:
            raise
        # The frames that failed hold arrays, which whoever goes on needs the room of.
        traceback.clear_frames(error.__traceback__)
        first = str(error).strip().splitlines()[:1] or ["out of memory"]
        raise OutOfMemoryError(
            f"the memory is full: {first[0].removeprefix(f'{_FULL}: ').rstrip('.')}; choose a "
            "smaller --batch-size or model, or --accumulate, --remat or --precision=bfloat16, "
            "which need less"
        ) from error
