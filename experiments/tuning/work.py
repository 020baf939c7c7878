"""What is timed and checked of a kernel, and the kept blocks that it is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pallas_kernels import Engine, SparseLayer
from pallas_kernels.lists import ListedBlocks, listed


class Work(NamedTuple):
    """What is timed and checked.

    Attributes:
      sparse: `sparse(engine)(*operands)`.
      dense: XLA's way without a mask, or without what an engine can skip: `dense(*operands)`.
      operands: arrays.
      n_terms: how many products a number of the result sums, at most.
      reference: what defines the result, with the mask: `reference(*operands)`.
      n_roundings: how often a number is rounded to the operands' dtype on its way.
    """

    sparse: Callable[[Engine], Callable[..., Any]]
    dense: Callable[..., Any]
    operands: tuple[Any, ...]
    n_terms: int
    reference: Callable[..., Any] | None = None
    n_roundings: int = 1


def kept_blocks(layer: SparseLayer) -> ListedBlocks:
    """Kept blocks, drawn at random, as uneven over the lines as selection leaves them.

    They have their lists, which a training step makes once for all products and all layers alike.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    down, across = n_in // cols, n_out // rows
    drawn = np.random.default_rng(0).choice(down * across, layer.n_kept, replace=False)
    return listed(jnp.asarray(np.sort(drawn), jnp.int32), (down, across))
