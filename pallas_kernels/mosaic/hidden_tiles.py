"""How the kernel that computes hidden units and their gradient is cut on Hopper."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from jax.experimental import pallas as pl

from pallas_kernels.mosaic import launch, product_tiles
from pallas_kernels.mosaic.product_tiles import Product, Tiles
from pallas_kernels.sparse_layer import SparseLayer


class Hidden(NamedTuple):
    """The two products that give hidden units and their gradient: alike, but for what is kept.

    Attributes:
      units: `x W1`, before GELU.
      gradient: `dy W2^T`, that after it.
    """

    units: Product
    gradient: Product


def hidden_of(layers: tuple[SparseLayer, SparseLayer], n_rows: int) -> Hidden:
    """The products of two layers, the second of which leads back by turned blocks."""
    first, second = layers
    return Hidden(
        product_tiles.product_of(first, n_rows, transposed=False),
        product_tiles.product_of(second, n_rows, transposed=True),
    )


@dataclasses.dataclass(frozen=True)
class HiddenTiles(Tiles):
    """How both products are cut: alike, as one alone, their columns at the same time.

    Each has a ring, and a panel of its own where that is in one piece; pieces take turns in the
    same two buffers. A warpgroup holds two sums of each of its `lines` columns.
    """

    def covers(self, hidden: Hidden) -> bool:
        """Whether this is a cut of these products: all that they contract is in a piece.

        A table knows a pair by its two widths, whichever of them is the hidden one.
        """
        return self.blocks == pl.cdiv(hidden.units.n_blocks, self.pieces)


APART = HiddenTiles(0, 0, 0, 0, 0, 0, 0)
"""Not together: one product after the other, and GELU by XLA."""


def search_space(hidden: Hidden) -> Iterator[HiddenTiles]:
    """Every way to cut both products that fits shared memory and registers."""
    for tiles in product_tiles.search_space(hidden.units, launch.SHARED_MEMORY_BYTES, together=2):
        yield HiddenTiles(*dataclasses.astuple(tiles))
