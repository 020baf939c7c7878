"""Errors whose message is for the user, fit to be printed as it is."""

import errno
from collections.abc import Collection
from typing import Any

_WAYS_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable"),
}


class InputError(ValueError):
    """A value that breaks a rule of this library.

    The message names the offending value, the rule, and the way out, so that a program can print it
    as it is and exit with code 2. It is one line; for a model string two more show the place.
    """


class OutOfMemoryError(InputError):
    """What was asked for needs more memory than the device has; one line says what needs less."""


def in_a_line(error: BaseException) -> str:
    """What an error says, in one line, or what it is if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def refusal(error: OSError) -> str:
    """Why the system refused a write, and the way out: `No space left on device; make room there`.

    Args:
      error: as the system raised it.
    """
    return f"{error.strerror or error}; {_WAYS_OUT.get(error.errno or 0, 'see to that')}"


def require_known[T](told: str, value: object, known: Collection[T]) -> T:
    """The value, which has to be one of those that are known.

    Args:
      told: what the error calls it, its name and value: `score 'l3'`, `--model=resnet`.
      value: what was chosen.
      known: what can be chosen.

    Raises:
      InputError: it is none of them.
    """
    for each in known:
        if each == value:
            return each
    raise InputError(f"{told} is unknown: choose one of {', '.join(map(str, known))}")


def check_sizes(model: object, **least: int) -> None:
    """Raises InputError unless each of these attributes of a model is at least so large."""
    for name, smallest in least.items():
        value = getattr(model, name)
        if value < smallest:
            raise InputError(f"{name}={value} is too small: it must be at least {smallest}")


def check_images(model: Any, shape: tuple[int, ...]) -> None:
    """Raises InputError unless images of this shape are those that a model takes."""
    one = model.image_size, model.image_size, model.channels
    if shape[1:] == one:
        return
    wanted = ", ".join(map(str, one))
    told = f"images of shape {shape} do not fit this model, which takes [batch, {wanted}]"
    if shape == one:
        raise InputError(f"{told}: there is no batch axis, give images[None] of a single one")
    raise InputError(f"{told}: set image_size and channels")


class SaveError(OSError):
    """A write that the disk refused; everything that was saved before is as it was.

    The message is one line that names what, where, why, and how to go on.
    """


class NotFiniteError(ArithmeticError):
    """The loss or a parameter became NaN or infinite; one line says when and what is left."""


class DeviceLostError(RuntimeError):
    """The device answers nothing any more in this process; one line says how to go on."""


class WorkerError(RuntimeError):
    """A helping process that died or failed; the message is one line that says how."""
