"""Numbers of kernels on the Hopper in Python (`simulated_hopper`), which NumPy computes.

What JAX computes of two numbers takes it a few hundred times as long.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

type Function = Callable[..., Any]


def _divide(a: Any, b: Any) -> Any:
    return (a - np.fmod(a, b)) // b


def _shift_right_logical(a: Any, b: Any) -> Any:
    return (a.view(np.uint32) >> b.view(np.uint32)).view(np.int32)


def _where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _when(condition: Any) -> Function:
    return lambda branch: branch() if condition else None


_IN_NUMPY: list[tuple[Any, str, Function]] = [
    (jax.lax, "rem", np.fmod),
    (jax.lax, "div", _divide),
    (jax.lax, "shift_right_logical", _shift_right_logical),
    (jnp, "minimum", np.minimum),
    (jnp, "maximum", np.maximum),
    (jnp, "logical_not", np.logical_not),
    (jnp, "logical_or", np.logical_or),
    (jnp, "where", _where),
    (pl, "when", _when),
]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.generic)


def _of_numbers(compute: Function, otherwise: Function) -> Function:
    @functools.wraps(otherwise)
    def function(*values: Any, **options: Any) -> Any:
        use = compute if all(map(_is_number, values)) and not options else otherwise
        return use(*values, **options)

    return function


def take_numbers_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers become NumPy's, and stay it; arrays and what is traced remain JAX's."""
    for module, name, compute in _IN_NUMPY:
        monkeypatch.setattr(module, name, _of_numbers(compute, getattr(module, name)))
    kinds = type(jnp.int32)
    make = kinds.__call__

    def number(kind: Any, value: Any) -> Any:
        return kind.dtype.type(value) if _is_number(value) else make(kind, value)

    monkeypatch.setattr(kinds, "__call__", number)
