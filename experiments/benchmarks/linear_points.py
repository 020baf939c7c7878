"""Which linear layers are measured: the options, and the rows of the table they ask for."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, get_args

from pallas_kernels import Phase, SparseLayer
from sparsemlp import InputError, parse_block
from sparsemlp.blocks import block_grid, check_ratio, format_block, n_kept_blocks, parse_shape
from sparsemlp.configuration.option_ranges import Precision
from sparsemlp.engines import choose_engine
from sparsemlp.errors import require_known
from sparsemlp.files import check_writable
from sparsemlp.options import open_default

_SHAPES, _RATIOS = ("64x256", "384x1536", "768x3072"), (0.5, 0.8, 0.9)
_ROWS = [
    *((shape, "32x32", ratio) for shape in _SHAPES for ratio in _RATIOS),
    ("384x1536", "16x16", 0.8),
    ("384x1536", "64x64", 0.8),
]
"""Shape, block and ratio of every row of the table where no option chooses them."""

_PRODUCTS: tuple[Phase, ...] = ("product", "input_gradient", "kernel_gradient")


@dataclasses.dataclass(frozen=True)
class Linear:
    """The products of one masked linear layer, each against XLA's dense one."""

    shape: Annotated[tuple[str, ...], open_default("INxOUT ...", " ".join(_SHAPES))] = ()
    """Inputs and outputs of the layer, one or more. With --shape, --block or --ratio all
    combinations are measured; what is not given is then 384x1536, 32x32 and 0.8."""
    block: Annotated[
        tuple[str, ...], open_default("ROWSxCOLS ...", "32x32; on 384x1536 also 16x16 64x64")
    ] = ()
    """Blocks of the mask, ROWSxCOLS: rows over outputs, columns over inputs."""
    ratio: Annotated[
        tuple[float, ...], open_default("FLOAT ...", "0.5 0.8 0.9; 16x16 and 64x64: 0.8")
    ] = ()
    """Fractions of blocks to drop, in (0, 1)."""
    rows: int = 8192
    """Rows of x: images times tokens; with --tokens images times channels."""
    tokens: bool = False
    """Contract the tokens (axis -2) of x [rows / channels, in, channels], as XPatch does."""
    channels: int = 64
    """Channels of x with --tokens."""
    backward: str = "masked"
    """Backward pass: masked, dense, straight_through."""
    engine: str = "auto"
    """Who computes the masked products: auto, or the name of an engine."""
    precision: str = "float32"
    """Dtype of every array: float32 or bfloat16. Products sum in float32."""
    reuse: bool = True
    """Write results over those of the step before, as a training program does; if not, into fresh
    memory, whose page faults can take longer than a product."""
    rounds: int = 9
    """How often each contender takes its turn, of 20 ms or more; the median is over these."""
    out: Annotated[Path | None, open_default("FILE.json", "none")] = None
    """File for the numbers: medians, ratios, environment."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A row of the table: a layer, the ratio behind its mask, and who computes its products."""

    layer: SparseLayer
    ratio: float
    engines: tuple[str, ...]

    def __str__(self) -> str:
        in_features, out_features = self.layer.kernel_shape
        return f"{in_features}x{out_features}, {format_block(self.layer.block)} at {self.ratio:g}"


def choose_points(options: Linear) -> list[Point]:
    """The rows of the table.

    Raises:
      InputError: an option that does not exist, does not fit the others, or measures nothing.
    """
    _check(options)
    rows = _ROWS
    if options.shape or options.block or options.ratio:
        rows = [
            (shape, block, ratio)
            for shape in options.shape or ("384x1536",)
            for block in options.block or ("32x32",)
            for ratio in options.ratio or (0.8,)
        ]
    points: list[Point] = []
    for shape, text, ratio in rows:
        kernel_shape, block = parse_shape(shape), parse_block(text)
        check_ratio(ratio)
        n_blocks = math.prod(block_grid(kernel_shape, block, f"--shape={shape}"))
        n_kept = n_kept_blocks(n_blocks, ratio)
        if n_kept == n_blocks:
            raise InputError(
                f"--ratio={ratio:g} drops none of the {n_blocks} blocks {text} of --shape={shape}: "
                "that is the dense baseline itself, choose a larger ratio in (0, 1)"
            )
        axis = -2 if options.tokens else -1
        layer = SparseLayer(kernel_shape, block, n_kept, axis, options.precision)
        chosen = [choose_engine(options.engine, layer, phase, options.rows) for phase in _PRODUCTS]
        points.append(Point(layer, ratio, tuple(dict.fromkeys(e.name for e in chosen))))
    return points


def _check(options: Linear) -> None:
    if options.rounds < 1:
        raise InputError(f"--rounds={options.rounds} measures nothing: choose 1 or more")
    require_known(f"--precision={options.precision}", options.precision, get_args(Precision))
    if options.rows < 1:
        raise InputError(f"--rows={options.rows} leaves x empty: choose 1 or more")
    if options.tokens and (options.channels < 1 or options.rows % options.channels):
        raise InputError(
            f"--channels={options.channels} does not divide --rows={options.rows}: over tokens, "
            "the rows of x are images times channels"
        )
    if options.out is not None:
        if options.out.suffix != ".json" or not options.out.absolute().parent.is_dir():
            raise InputError(f"--out={options.out} must end in .json, in a folder that exists")
        check_writable(options.out, f"--out={options.out}")
