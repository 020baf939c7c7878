"""How two layers that are fused are cut into programs, pieces and rings on Hopper."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from jax.experimental import pallas as pl

from pallas_kernels.mosaic import launch, product_tiles
from pallas_kernels.mosaic.product_tiles import (
    CLUSTERS,
    COLUMN_REGISTERS,
    MOST_LINES,
    OTHER_REGISTERS,
    RING_BYTES,
    ROWS,
    STAGES,
    Product,
    Tiles,
)
from pallas_kernels.sparse_layer import SparseLayer


class Pair(NamedTuple):
    """The products of two layers, the second of which contracts what the first one computes.

    Attributes:
      first: to the hidden units.
      second: from them.
    """

    first: Product
    second: Product


def pair_of(layers: tuple[SparseLayer, SparseLayer], n_rows: int) -> Pair:
    """The forward products of two layers."""
    first, second = layers
    return Pair(
        product_tiles.product_of(first, n_rows, transposed=False),
        product_tiles.product_of(second, n_rows, transposed=False),
    )


@dataclasses.dataclass(frozen=True)
class MlpTiles:
    """How a fused pair is cut.

    Attributes:
      n_compute: warpgroups that multiply.
      abreast: block columns of either product that they share out.
      cluster: programs of other rows, each of which loads a part of the weights for all.
      pieces: into how many pieces the hidden units are cut.
      blocks: blocks of hidden units in a piece, a multiple of `abreast`.
      inputs: blocks of the first product's inputs, whose panel is one piece.
      lines: block columns of the second product that a warpgroup sums at once, all of its own.
      stages: buffers of either ring.
    """

    n_compute: int
    abreast: int
    cluster: int
    pieces: int
    blocks: int
    inputs: int
    lines: int
    stages: int

    @property
    def first(self) -> Tiles:
        """How the product to the hidden units is cut: one turn after another, its panel whole."""
        shared = self.n_compute, self.abreast, self.cluster
        return Tiles(*shared, pieces=1, blocks=self.inputs, lines=1, stages=self.stages)

    @property
    def second(self) -> Tiles:
        """How the product from them is cut: all columns in one turn, its panel in pieces."""
        shared = self.n_compute, self.abreast, self.cluster
        return Tiles(*shared, self.pieces, self.blocks, self.lines, self.stages)

    @property
    def buffers(self) -> int:
        """For pieces of hidden units."""
        return min(2, self.pieces)

    @property
    def turns(self) -> int:
        """Turns of the first product that compute a piece."""
        return self.blocks // self.abreast

    def covers(self, pair: Pair) -> bool:
        """Whether this is a cut of a pair: all its inputs, hidden units and outputs are computed.

        A table knows a pair by its two widths, whichever of them is the hidden one.
        """
        first, second = pair
        all_units = (self.pieces - 1) * self.blocks < first.n_lines <= self.pieces * self.blocks
        all_outputs = second.n_lines <= self.lines * self.abreast
        return self.inputs == first.n_blocks and all_units and all_outputs


APART = MlpTiles(0, 0, 0, 0, 0, 0, 0, 0)
"""Not fused: one product after the other."""


def is_fusable(layers: tuple[SparseLayer, SparseLayer]) -> bool:
    """Whether the second layer leads back, its blocks those of the first one turned.

    Square ones are. A block of hidden units is one of either layer then, and one of outputs one of
    inputs, which are added to it.
    """
    first, second = layers
    leads_back = first.kernel_shape == second.kernel_shape[::-1]
    return leads_back and first.block == second.block[::-1]


def search_space(pair: Pair) -> Iterator[MlpTiles]:
    """Every way to cut a pair that fits shared memory and registers."""
    first, second = pair
    for n_compute, abreast, cluster in itertools.product(MOST_LINES, MOST_LINES, CLUSTERS):
        lines = pl.cdiv(second.n_lines, abreast)
        if n_compute % abreast or not _fits_registers(pair, n_compute, lines):
            continue
        tall = n_compute // abreast
        if not all(product_tiles.has_work(a, tall, abreast, cluster) for a in pair):
            continue
        slot = abreast * launch.panel_bytes((first.width, first.depth), first.dtype)
        panel = launch.panel_bytes((first.n_blocks, tall * ROWS, first.depth), first.dtype)
        staging = launch.panel_bytes((n_compute * ROWS, second.width), first.dtype)
        unit = launch.panel_bytes((tall * ROWS, first.width), first.dtype)
        for stages in [n for n in STAGES if n * slot in RING_BYTES] or [min(STAGES)]:
            taken = panel + staging + 2 * stages * slot + launch.BARRIERS_BYTES
            cut = _pieces(first.n_lines, abreast, (launch.SHARED_MEMORY_BYTES - taken) // unit)
            if cut is not None:
                yield MlpTiles(n_compute, abreast, cluster, *cut, first.n_blocks, lines, stages)


def _fits_registers(pair: Pair, n_compute: int, lines: int) -> bool:
    """Whether a warpgroup holds the sums of so many columns, and those of some hidden units."""
    first, second = pair
    outputs = lines * (second.width // 2 + COLUMN_REGISTERS)
    sums = outputs + first.width // 2 + COLUMN_REGISTERS
    return lines <= MOST_LINES[n_compute] and sums + OTHER_REGISTERS <= launch.registers(n_compute)


def _pieces(n_units: int, abreast: int, room: int) -> tuple[int, int] | None:
    """How many pieces there are, and blocks in a piece; None if there is no room for two.

    Args:
      n_units: blocks of hidden units.
      abreast: how many are computed at once.
      room: how many shared memory has room for.
    """
    turns = pl.cdiv(n_units, abreast)
    if turns * abreast <= room:
        return 1, turns * abreast
    most = room // (2 * abreast)
    if most < 1:
        return None
    of_piece = pl.cdiv(turns, pl.cdiv(turns, most))
    return pl.cdiv(turns, of_piece), of_piece * abreast
