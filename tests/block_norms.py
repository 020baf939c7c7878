"""Norms of blocks as NumPy computes them, in float64."""

import numpy as np

from sparsemlp.blocks import Block

NORMS = {
    "l1": lambda tile: np.abs(tile).sum(),
    "l2": lambda tile: np.linalg.norm(tile),
    "spectral": lambda tile: np.linalg.norm(tile, ord=2),
}


def numpy_scores(kernel: np.ndarray, block: Block, score: str) -> np.ndarray:
    """The float64 norm of each tile of a kernel `[in, out]`, by flat id."""
    rows, cols = block
    weight = np.asarray(kernel, np.float64)
    return np.array(
        [
            NORMS[score](weight[i : i + cols, o : o + rows])
            for i in range(0, weight.shape[0], cols)
            for o in range(0, weight.shape[1], rows)
        ]
    )
