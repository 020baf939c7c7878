"""Runs the Triton kernel of engine `jax-triton` on NumPy arrays, by Triton's own interpreter.

As a program, in a process of its own with `TRITON_INTERPRET=1`: it computes both products of a
layer along both axes, and exits with an error unless they are what the reference engine computes.
"""

import math
import os
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels import Reference, SparseLayer
from pallas_kernels.jax_triton.products import plan
from pallas_kernels.lists import list_columns, list_rows
from pallas_kernels.triton.launch import Tiles

EPS = float(np.finfo(np.float32).eps)


class Tensor:
    """As much of a PyTorch tensor as the interpreter asks of its arguments."""

    def __init__(self, array: Any) -> None:
        self.array = np.ascontiguousarray(array)
        self.dtype = self.array.dtype

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def new_empty(self, size: int, device: str) -> "Tensor":
        return Tensor(np.empty(size, self.dtype))

    def set_(self, storage: "Tensor", *place: Any) -> None:
        self.array = storage.array

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return self.array.strides

    def copy_(self, other: "Tensor") -> None:
        assert self.array is other.array


def check(axis: Any, *, transposed: bool) -> None:
    """Raises AssertionError unless the product is that of the reference engine."""
    from pallas_kernels.jax_triton.multiply import multiply

    rng, (n_in, n_out), block = np.random.default_rng(0), (64, 96), (16, 32)
    kept = np.array([0, 1, 2, 3, 4, 7], np.int32)  # of 2x6: three columns are empty
    layer = SparseLayer((n_in, n_out), block, kept.size, axis, "float32")
    n_x, n_y = (n_out, n_in) if transposed else (n_in, n_out)
    shape, y_shape = (((3, 25, n) if axis == -1 else (3, n, 25)) for n in (n_x, n_y))
    x, kernel, bias = (
        rng.normal(size=s).astype(np.float32) for s in (shape, (n_in, n_out), (n_out,))
    )
    lists = (list_rows if transposed else list_columns)(jnp.asarray(kept), (2, 6))
    constants, n_programs = plan(shape, layer, Tiles(16, 4, 2), transposed=transposed)
    n_tiles = math.ceil(75 / 16) if axis == -1 else 3 * math.ceil(25 / 16)
    assert n_programs == (2 if transposed else 6) * n_tiles
    y = Tensor(np.full(y_shape, np.nan, np.float32))
    arrays = [Tensor(a) for a in (lists.start, lists.across, lists.order, x, kernel, bias)]
    options: dict[str, Any] = {"has_bias": not transposed, "precision": "ieee"}
    multiply[(n_programs,)](*arrays, y, **constants, **options)
    if transposed:
        want = Reference().input_gradient(
            jnp.asarray(x), jnp.asarray(kernel), jnp.asarray(kept), layer
        )
    else:
        x_, kernel_, bias_, kept_ = (jnp.asarray(a) for a in (x, kernel, bias, kept))
        want = Reference().product(x_, kernel_, bias_, kept_, layer)
    scale = 4 * EPS * math.sqrt(n_x) * float(np.abs(want).max())
    np.testing.assert_allclose(y.array, want, rtol=0, atol=scale)


if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    for along in (-1, -2):
        for backward in (False, True):
            check(along, transposed=backward)
