"""Which products the GPU benchmark times, the most telling first, and what they need."""

import dataclasses
import itertools
import math
from typing import Any, Literal

import jax.numpy as jnp
from tuning.kernel_problems import layer_of

from pallas_kernels import SparseLayer
from sparsemlp.blocks import divides, format_block

Phase = Literal["forward", "input_gradient", "kernel_gradient", "forward_backward"]
PHASES: tuple[Phase, ...] = ("forward_backward", "forward", "input_gradient", "kernel_gradient")

_SHAPES = ((1024, 4096), (768, 3072), (384, 1536), (4096, 16384))
_SIDES = (64, 128, 32)
_RATIOS = (0.8, 0.9, 0.5, 0.0)
N_FIRST = 12
"""Points that come before PyTorch and most training steps, where there is time for them, and those
that a summary has at most."""
_N_PRODUCTS = {"forward_backward": 3}


@dataclasses.dataclass(frozen=True)
class Point:
    """A masked layer and the rows of its x.

    Attributes:
      shape: `(in, out)`.
      block: rows over outputs, columns over inputs.
      ratio: fraction of blocks that is dropped; 0 is dense, on every engine.
      n_rows: rows of x.
      dtype: of every array.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    ratio: float
    n_rows: int
    dtype: str

    def __str__(self) -> str:
        n_in, n_out = self.shape
        block = format_block(self.block)
        return f"{n_in}x{n_out} {block} {self.ratio:g} M{self.n_rows} {self.dtype}"

    @property
    def layer(self) -> SparseLayer:
        """The layer, its blocks kept as selection would."""
        return layer_of(self.shape, self.block, self.ratio, -1, self.dtype)

    @property
    def density(self) -> float:
        """Fraction of the weights that is kept."""
        return self.layer.n_kept * math.prod(self.block) / math.prod(self.shape)


def all_points() -> list[Point]:
    """Every point, so ordered that the first ones tell most if the time is up.

    First 64x64, 128x128 and 32x32 at ratio 0.8 in bfloat16 on every layer; then the other ratios,
    float32, and the larger number of rows. A dense layer is one point, whatever the block.
    """
    found = []
    for dtype, n_rows in itertools.product(("bfloat16", "float32"), (8192, 32768)):
        for ratio, side, shape in itertools.product(_RATIOS, _SIDES, _SHAPES):
            if ratio or side == _SIDES[0]:
                rank = (dtype == "float32") + (n_rows > 8192) + _RATIOS.index(ratio)
                found.append((rank, Point(shape, (side, side), ratio, n_rows, dtype)))
    return [point for _, point in sorted(found, key=lambda pair: pair[0])]


def tiny_points() -> list[Point]:
    """Points that any machine can interpret: they try the program and measure nothing."""
    return [
        Point((64, 64), (32, 32), 0.5, 40, "bfloat16"),
        Point((64, 64), (32, 32), 0.0, 40, "float32"),
    ]


def n_flops(point: Point, phase: Phase, is_dense: bool) -> int:
    """Operations, two a row and weight: of kept weights, or of all if the product is dense."""
    density = 1.0 if is_dense else point.density
    n_products = _N_PRODUCTS.get(phase, 1)
    return round(2 * n_products * point.n_rows * math.prod(point.shape) * density)


def n_bytes(point: Point, phase: Phase, is_dense: bool) -> int:
    """Bytes that have to pass device memory at least: each operand and result once.

    Weights that are dropped are not read; the kernel's gradient is written whole.
    """
    n_in, n_out = point.shape
    density = 1.0 if is_dense else point.density
    x, y, w = point.n_rows * n_in, point.n_rows * n_out, n_in * n_out
    numbers = {
        "forward": x + y + density * w,
        "input_gradient": x + y + density * w,
        "kernel_gradient": x + y + w,
    }
    own = sum(numbers.values()) if phase == "forward_backward" else numbers[phase]
    return round(own * jnp.dtype(point.dtype).itemsize)


def roofline_seconds(
    point: Point, phase: Phase, is_dense: bool, bytes_per_second: float, flops: float
) -> float:
    """The least time that memory and arithmetic allow, product by product."""
    parts: tuple[Any, ...] = (phase,)
    if phase == "forward_backward":
        parts = ("forward", "input_gradient", "kernel_gradient")
    return sum(
        max(
            n_bytes(point, part, is_dense) / bytes_per_second,
            n_flops(point, part, is_dense) / flops,
        )
        for part in parts
    )


def memory_bytes(point: Point, n_contenders: int) -> int:
    """What the arrays of a point take: its operands, and results of every contender and phase.

    A contender keeps the last result of each loop beside the one that is computed, and a loop an
    operand of its own.
    """
    n_in, n_out = point.shape
    x, y, w = point.n_rows * n_in, point.n_rows * n_out, n_in * n_out
    results = 2 * (x + y + w) * 2
    # Partial sums of a kernel's gradient are float32, a few for each.
    return (x + y + w + max(x, y) + n_contenders * results) * jnp.dtype(
        point.dtype
    ).itemsize + 16 * w


def engine_takes(point: Point, engine: Any) -> str | None:
    """Why an engine cannot compute a point; None if it can."""
    if not divides(point.block, point.shape):
        return "the block does not divide the layer"
    return engine.reason_against(point.layer, "gpu")
