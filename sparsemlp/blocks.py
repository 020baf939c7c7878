"""Block geometry: how a weight is cut into tiles and how many of them are kept.

A block is `(rows, cols)` in the literature's `[out, in]` orientation: rows run over output
features, columns over input features. Kernels are stored the Flax way, `[in, out]`, so a tile of a
kernel is `(cols, rows)`, and the block grid of a kernel is `[in / cols, out / rows]`.
"""

import math
import numbers
import re

import numpy as np

from sparsemlp.errors import InputError

Block = tuple[int, int]


def parse_block(
    text: str,
    what: str = "block",
    sides: str = "ROWSxCOLS",
    meaning: str = "rows over outputs and columns over inputs",
) -> Block:
    """Reads a block written `ROWSxCOLS`, as `32x32` or `4x1`.

    Args:
      text: what is written.
      what: what an error calls it.
      sides: what an error calls its sides.
      meaning: what an error says that they run over.

    Raises:
      InputError: the text is not two positive integers with an `x` between them.
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*x\s*(\d{1,9})\s*", text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise InputError(
            f"{what} {text!r} is not {sides}: two positive integers with an x between them, "
            f"{meaning}, such as 32x32 or 4x1"
        )
    return int(match[1]), int(match[2])


def parse_shape(text: str) -> tuple[int, int]:
    """Reads the shape of a layer, which options `--shape` write `INxOUT`, as `64x256`.

    Raises:
      InputError: the text is not two positive integers with an `x` between them.
    """
    return parse_block(text, "--shape", "INxOUT", "inputs and outputs of the layer")


def format_block(block: Block) -> str:
    """Writes a block the way `parse_block` reads it."""
    rows, cols = block
    return f"{rows}x{cols}"


def check_block(block: Block, what: str = "block", sides: str = "(rows, cols)") -> None:
    """Raises InputError, which calls it `what`, unless `block` is two positive integers."""
    if (
        not isinstance(block, tuple)
        or len(block) != 2
        or not all(isinstance(side, numbers.Integral) and side > 0 for side in block)
    ):
        raise InputError(f"{what} {block!r} is not {sides}: two positive integers")


def check_ratio(ratio: float) -> None:
    """Raises InputError unless `0 <= ratio < 1`."""
    is_narrow = isinstance(ratio, np.floating) and ratio.dtype.itemsize < 8
    if is_narrow or not isinstance(ratio, numbers.Real):
        raise InputError(
            f"ratio {ratio!r} of type {type(ratio).__name__} is no number of Python's, in whose "
            "precision blocks are counted: write it as one, such as 0.8"
        )
    if not 0 <= ratio < 1:
        raise InputError(
            f"ratio {ratio!r} is outside [0, 1): it is the fraction of blocks to drop, 0 for dense"
        )


def block_grid(
    kernel_shape: tuple[int, int], block: Block, name: str = "kernel"
) -> tuple[int, int]:
    """The shape of the block grid of a kernel.

    Args:
      kernel_shape: `(in, out)`.
      block: `(rows, cols)` in `[out, in]` orientation.
      name: what to call the kernel in an error.

    Returns:
      `(in / cols, out / rows)`.

    Raises:
      InputError: a side of the block does not divide its side of the kernel, or there is nothing
        to divide.
    """
    check_block(block)
    if 0 in kernel_shape:
        raise InputError(
            f"{name}, whose [out, in] is {kernel_shape[1]}x{kernel_shape[0]}, is empty: it has no "
            "blocks, leave it without a mask"
        )
    if not divides(block, kernel_shape):
        raise InputError(
            f"{why_indivisible(block, kernel_shape, name)}; nearest that do: "
            f"{nearest_that_divide(block, kernel_shape)}"
        )
    return kernel_shape[0] // block[1], kernel_shape[1] // block[0]


def matrix_shape(kernel_shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape `(in, out)` of a kernel as a matrix.

    A convolution's `[down, across, in, out]` is `[down * across * in, out]`, the matrix that
    multiplies unfolded images.
    """
    return math.prod(kernel_shape[:-1]), kernel_shape[-1]


def divides(block: Block, kernel_shape: tuple[int, int]) -> bool:
    """Whether a block `(rows, cols)` divides a kernel `(in, out)`."""
    return kernel_shape[0] % block[1] == 0 and kernel_shape[1] % block[0] == 0


def why_indivisible(block: Block, kernel_shape: tuple[int, int], name: str) -> str:
    """Says which sides of a kernel `(in, out)` a block does not divide."""
    (rows, cols), (in_features, out_features) = block, kernel_shape
    sides = (("out", out_features, rows), ("in", in_features, cols))
    broken = [
        f"{side} {features} % {size} != 0" for side, features, size in sides if features % size
    ]
    return (
        f"block {format_block(block)} does not divide {name}, whose [out, in] is "
        f"{out_features}x{in_features}: {' and '.join(broken)}"
    )


def nearest_blocks(kernel_shape: tuple[int, int], block: Block) -> list[Block]:
    """The next smaller and the next larger block whose sides divide a kernel `(in, out)`."""
    in_features, out_features = kernel_shape
    below: list[int] = []
    above: list[int] = []
    for features, size in ((out_features, block[0]), (in_features, block[1])):
        divisors = [d for d in range(1, features + 1) if features % d == 0]
        below.append(max(d for d in divisors if d <= size))
        above.append(min((d for d in divisors if d >= size), default=features))
    return list(dict.fromkeys([(below[0], below[1]), (above[0], above[1])]))


def nearest_that_divide(block: Block, *kernel_shapes: tuple[int, int]) -> str:
    """The nearest blocks that divide all of these kernels `(in, out)`, to be read."""
    n_in, n_out = (math.gcd(*sides) for sides in zip(*kernel_shapes, strict=True))
    return " or ".join(map(format_block, nearest_blocks((n_in, n_out), block)))


def n_kept_blocks(n_blocks: int, ratio: float) -> int:
    """How many of `n_blocks` are kept: `ceil(n_blocks * (1 - ratio))` in Python floats.

    The floats are the definition, as in Bespalov 2025: 0.7 of 960 blocks keeps 289, not 288.
    """
    check_ratio(ratio)
    return math.ceil(n_blocks * (1 - float(ratio)))
