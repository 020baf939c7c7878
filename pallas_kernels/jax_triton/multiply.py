"""The kernel of engine `jax-triton`, in the Triton language; to be imported where Triton is."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect

import triton
import triton.language as tl


def _multiply(
    start,
    across,
    order,
    x,
    kernel,
    bias,
    y,
    n_lines: tl.constexpr,
    n_tiles: tl.constexpr,
    n_rows: tl.constexpr,
    x_sample: tl.constexpr,
    x_row: tl.constexpr,
    x_feature: tl.constexpr,
    y_sample: tl.constexpr,
    y_row: tl.constexpr,
    y_feature: tl.constexpr,
    kernel_depth: tl.constexpr,
    kernel_width: tl.constexpr,
    size: tl.constexpr,
    depth: tl.constexpr,
    width: tl.constexpr,
    has_bias: tl.constexpr,
    precision: tl.constexpr,
):
    """Some rows of one block of features of y, from the kept blocks that meet it."""
    # All along one axis of the grid: of the others a GPU has 65535 programs at most.
    place = tl.program_id(0)
    line = tl.load(order + place % n_lines)
    # Arrays may have more entries than 32 bits count: whatever is multiplied has 64.
    row_tile = (place // n_lines % n_tiles).to(tl.int64)
    sample = (place // n_lines // n_tiles).to(tl.int64)
    rows = row_tile * size + tl.arange(0, size)
    exists = rows[:, None] < n_rows
    inside = tl.arange(0, depth)
    outputs = line.to(tl.int64) * width + tl.arange(0, width)
    x_rows = x + sample * x_sample + rows[:, None] * x_row
    weights_of_line = kernel + outputs[None, :] * kernel_width
    total = tl.zeros((size, width), dtype=tl.float32)
    for entry in range(tl.load(start + line), tl.load(start + line + 1)):
        inputs = tl.load(across + entry).to(tl.int64) * depth + inside
        tile = tl.load(x_rows + inputs[None, :] * x_feature, mask=exists, other=0.0)
        weights = tl.load(weights_of_line + inputs[:, None] * kernel_depth)
        total = tl.dot(tile, weights, total, input_precision=precision)
    if has_bias:
        total += tl.load(bias + outputs).to(tl.float32)[None, :]
    to = y + sample * y_sample + rows[:, None] * y_row + outputs[None, :] * y_feature
    tl.store(to, total.to(y.dtype.element_ty), mask=exists)


# A checker of annotations may stand around the function, which Triton cannot read through.
multiply = triton.jit(inspect.unwrap(_multiply))
