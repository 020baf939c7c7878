"""PyTorch's product of a matrix in BSR: its operands, its parameters, and which are the fastest."""

import importlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tuning.watch import reason_of

from gpu.points import Point
from sparsemlp.blocks import Block
from sparsemlp.files import Record


class Product(NamedTuple):
    """What multiplies a matrix in BSR by x with some parameters, both, and what comes out."""

    multiply: Callable[[Any, Any, Record | None], Any]
    sparse: Any
    x: Any
    wanted: Any

    def call(self, choice: Record | None) -> Any:
        """The product with these parameters, None for PyTorch's own choice."""
        return self.multiply(self.sparse, self.x, choice)

    def reason_against(self, choice: Record | None) -> str:
        """Why the parameters are of no use; empty if the product is right.

        Bfloat16 rounds the result; TF32 the operands, in one of the two products.
        """
        try:
            off = (self.call(choice) - self.wanted).abs().max().item()
        except Exception as error:
            return reason_of(error)
        return "" if off <= 0.02 * self.wanted.abs().max().item() else f"off by {off:.3g}"


def parameters(n_rows: int, height: int) -> list[Record | None]:
    """PyTorch's own choice, None, and others: rows of x in a tile, and how deep it is pipelined.

    Args:
      n_rows: rows of x.
      height: of a block of the matrix in BSR, and of the tile that PyTorch chooses.
    """
    tiles = [tile for tile in sorted({height, 64, 128}) if n_rows % tile == 0]
    return [None] + [
        {"SPLIT_N": n_rows // tile, "GROUP_SIZE_ROW": 4, "num_stages": stages, "num_warps": warps}
        for tile, (stages, warps) in itertools.product(tiles, ((3, 4), (4, 4), (3, 8)))
    ]


def fastest(
    product: Product,
    choices: Sequence[Record | None],
    seconds: Callable[[Callable[[], Any], float, int], float],
) -> Record:
    """Times a product with the parameters that are the fastest in a first, short look.

    Args:
      product: the product.
      choices: parameters; those of no use are left out.
      seconds: measures a call: with a share of the usual repetitions, and in how many rounds.

    Returns:
      `microseconds`, `parameters`, and `own_microseconds` with PyTorch's own choice in the short
      look, None if that was of no use.

    Raises:
      ValueError: none is of use; what is told is the reason against the first.
    """
    reasons = [product.reason_against(choice) for choice in choices]
    right = [choice for choice, reason in zip(choices, reasons, strict=True) if not reason]
    if not right:
        raise ValueError(reasons[0])
    looks = [seconds(lambda c=choice: product.call(c), 0.25, 2) for choice in right]
    best = right[looks.index(min(looks))]
    own = 1e6 * looks[right.index(None)] if None in right else None
    microseconds = 1e6 * seconds(lambda: product.call(best), 1.0, 7)
    return {"microseconds": microseconds, "parameters": best, "own_microseconds": own}


def masked_weight(torch: Any, point: Point) -> Any:
    """A weight `[in, out]` with zeros in dropped blocks, drawn at random."""
    (n_in, n_out), (rows, cols) = point.shape, point.block
    n_blocks = (n_in // cols) * (n_out // rows)
    rng = np.random.default_rng(0)
    grid = np.zeros(n_blocks, np.float32)
    grid[rng.choice(n_blocks, point.layer.n_kept, replace=False)] = 1
    mask = torch.from_numpy(grid.reshape(n_in // cols, n_out // rows))
    mask = mask.repeat_interleave(cols, 0).repeat_interleave(rows, 1)
    return torch.randn(n_in, n_out) / n_in**0.5 * mask


def to_bsr(matrix: Any, block: Block) -> Any:
    """A matrix in BSR; PyTorch warns that this is in beta, once a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return matrix.contiguous().to_sparse_bsr(block)


def bsr_dense_addmm(torch: Any) -> Any:
    """PyTorch's product of a matrix in BSR, as `Product` calls it."""
    operations = importlib.import_module("torch.sparse._triton_ops")

    def multiply(sparse: Any, dense: Any, choice: Record | None) -> Any:
        shape = (sparse.shape[0], dense.shape[1])
        zero = torch.empty(shape, device=dense.device, dtype=dense.dtype)
        return operations.bsr_dense_addmm(zero, sparse, dense, beta=0, meta=choice)

    return multiply


def matmul(torch: Any) -> Any:
    """PyTorch's own product, likewise: to try the program where there is no GPU."""

    def multiply(sparse: Any, dense: Any, choice: Record | None) -> Any:
        return torch.matmul(sparse, dense)

    return multiply
