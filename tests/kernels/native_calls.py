"""Calls of the native kernels through XLA that are right, to be made wrong one thing at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

F32 = jnp.float32


class Call(NamedTuple):
    """One call of a handler; what it is called with, by name and in order."""

    handler: str
    operands: dict[str, Any]
    results: dict[str, Any]
    options: dict[str, Any]

    def but(self, **changes: Any) -> "Call":
        """The same call with operands, results or options changed; None leaves one out."""
        call = Call(self.handler, *map(dict, self[1:]))
        for name, value in changes.items():
            (found,) = (part for part in call[1:] if name in part)
            found[name] = value
            if value is None:
                del found[name]
        return call

    def __call__(self) -> list[np.ndarray]:
        results = list(self.results.values())
        run = jax.ffi.ffi_call(self.handler, results)
        return [np.asarray(a) for a in run(*self.operands.values(), **self.options)]


def ones(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.ones(shape, dtype)


def ids(*kept: Any, dtype: Any = np.int32) -> np.ndarray:
    return np.array(kept, dtype)


def result(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def int64s(**values: int) -> dict[str, np.int64]:
    return {name: np.int64(value) for name, value in values.items()}


def multiply() -> Call:
    """A kernel [in, out] = [8, 6] in blocks of 3x2: a grid of 4x2."""
    return Call(
        "sparsemlp_multiply",
        {"x": ones(5, 8), "kernel": ones(8, 6), "bias": ones(6), "kept": ids(0, 2, 3)},
        {"y": result(5, 6)},
        {**int64s(rows=3, cols=2, axis=-1), "transposed": False},
    )


def over_tokens() -> Call:
    return multiply().but(x=ones(5, 8, 7), y=result(5, 6, 7), axis=np.int64(-2))


def transposed() -> Call:
    return multiply().but(x=ones(5, 6), bias=ones(0), y=result(5, 8), transposed=True)


def gradient() -> Call:
    return Call(
        "sparsemlp_gradient",
        {"x": ones(5, 8), "dy": ones(5, 6), "kept": ids(0, 2, 3)},
        {"dw": result(8, 6), "db": result(6)},
        int64s(rows=3, cols=2, axis=-1),
    )


def gradient_over_tokens() -> Call:
    return gradient().but(x=ones(5, 8, 7), dy=ones(5, 6, 7), axis=np.int64(-2))


def mlp() -> Call:
    """[8, 6] in blocks of 3x2, then [6, 8] in blocks of 4x3: grids of 4x2 and 2x2."""
    operands = {
        "x": ones(5, 8),
        "w1": ones(8, 6),
        "b1": ones(6),
        "kept1": ids(0, 2, 3),
        "w2": ones(6, 8),
        "b2": ones(8),
        "kept2": ids(1, 2),
    }
    options = {**int64s(rows1=3, cols1=2, rows2=4, cols2=3), "residual": True}
    return Call("sparsemlp_mlp", operands, {"y": result(5, 8)}, options)


def mlp_gradient() -> Call:
    _, operands, _, options = mlp()
    operands = {"x": operands.pop("x"), "dy": ones(5, 8), **operands}
    results = {
        "dx": result(5, 8),
        "dw1": result(8, 6),
        "db1": result(6),
        "dw2": result(6, 8),
        "db2": result(8),
    }
    options = {**options, "straight_through": False}
    return Call("sparsemlp_mlp_gradient", operands, results, options)


def straight_through_gradient() -> Call:
    return mlp_gradient().but(straight_through=True)


def convolution() -> Call:
    """Two images of 4x5 pixels, a kernel of 2x2x2 to 6 in blocks of 3x2: a grid of 4x2."""
    return Call(
        "sparsemlp_convolution",
        {"x": ones(2, 4, 5, 2), "kernel": ones(2, 2, 2, 6), "bias": ones(6), "kept": ids(0, 2, 3)},
        {"y": result(2, 3, 2, 6)},
        int64s(rows=3, cols=2, stride_down=1, stride_across=2, above=0, left=0),
    )


def convolution_input_gradient() -> Call:
    _, operands, _, options = convolution()
    operands = {"dy": ones(2, 3, 2, 6), "kernel": operands["kernel"], "kept": operands["kept"]}
    name = "sparsemlp_convolution_input_gradient"
    return Call(name, operands, {"dx": result(2, 4, 5, 2)}, options)


def convolution_gradient() -> Call:
    _, operands, _, options = convolution()
    operands = {"x": operands["x"], "dy": ones(2, 3, 2, 6), "kept": operands["kept"]}
    results = {"dw": result(2, 2, 2, 6), "db": result(6)}
    return Call("sparsemlp_convolution_gradient", operands, results, options)


def pruned() -> Call:
    """A kernel [in, out] = [8, 6], the 2 largest of 3, samples of 5 rows."""
    return Call(
        "sparsemlp_pruned",
        {"x": ones(10, 6), "kernel": ones(8, 6)},
        {"dx": result(10, 8)},
        int64s(n=2, m=3, positions=5),
    )


def keep_largest() -> Call:
    """The 2 largest of 3 along 6 features, samples of 5 rows."""
    return Call(
        "sparsemlp_keep_largest",
        {"x": ones(10, 6)},
        {"pruned": result(10, 6)},
        int64s(n=2, m=3, axis=-1, positions=5),
    )


def pruned_mlp() -> Call:
    """The layers of `mlp` for 6 rows, both activations in blocks of 3x2 and 2x3."""
    _, operands, _, options = mlp()
    operands = {**operands, "x": ones(6, 8), "scale": ones(8), "shift": ones(8)}
    results = {"y": result(6, 8), "norms1": result(2, 4), "norms2": result(3, 2)}
    sides = int64s(height1=3, width1=2, height2=2, width2=3)
    return Call("sparsemlp_pruned_mlp", operands, results, {**options, **sides})


def pruned_mlp_gradient() -> Call:
    """Of the first activation two blocks are kept, of the second three; samples of 2 rows."""
    _, operands, _, options = pruned_mlp()
    operands = {"x": operands.pop("x"), "dy": ones(6, 8), **operands, "after": ones(8)}
    names = ("x", "w1", "b1", "w2", "b2", "scale", "shift", "after")
    results = {f"d{name}": result(*operands[name].shape) for name in names}
    operands |= {"kept_x": ids(1, 6), "kept_hidden": ids(0, 3, 5)}
    options |= int64s(n1=1, m1=2, n2=2, m2=4, positions1=0, positions2=2)
    flags = {"straight_through": False, "pools1": False, "pools2": False}
    return Call("sparsemlp_pruned_mlp_gradient", operands, results, {**options, **flags})


EVERY_CALL = pytest.mark.parametrize(
    "make",
    [multiply, over_tokens, transposed, gradient, gradient_over_tokens, mlp, mlp_gradient],
    ids=lambda make: make.__name__,
)


def all_of(make: Callable[[], Call], dtype: Any) -> Call:
    """The call with all operands and results but ids of another dtype."""
    call = make()
    operands = {
        name: a if name.startswith("kept") else a.astype(dtype) for name, a in call.operands.items()
    }
    results = {name: result(*r.shape, dtype=dtype) for name, r in call.results.items()}
    return call._replace(operands=operands, results=results)


def refused(call: Call) -> str:
    """What the error says that a call ends with."""
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call()
    return str(caught.value)
