"""The operands of `dW = (x^T dy) * M` on Hopper: how they come to shared memory and lie there."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.gradient_tiles import DEPTH_BYTES, ROWS, GradientTiles, Shape, shape_of
from pallas_kernels.sparse_layer import SparseLayer


@dataclasses.dataclass(frozen=True)
class Cut:
    """How the operands are cut into steps and buffers.

    Attributes:
      shape: which operand is the left one, and how a block is computed.
      n_together: blocks of one line that are computed at once.
      depth: rows of x and dy in one buffer.
      stages: buffers of the ring.
    """

    shape: Shape
    n_together: int
    depth: int
    stages: int

    @property
    def tall(self) -> int:
        """Rows of the result that are computed at once."""
        return self.shape.height * self.n_together

    @property
    def n_compute(self) -> int:
        """Warpgroups that multiply."""
        return self.tall // ROWS


def cut_of(layer: SparseLayer, tiles: GradientTiles) -> Cut:
    """How the operands of a layer's gradient are cut."""
    shape = shape_of(layer, by_rows=tiles.by_rows)
    depth = DEPTH_BYTES // jnp.dtype(layer.dtype).itemsize
    return Cut(shape, tiles.n_together, depth, tiles.stages)


def laid_out(
    x: Float[Array, "rows in"], dy: Float[Array, "rows out"], cut: Cut, *, by_rows: bool
) -> list[Array]:
    """The operand of which each block has a part of its own, and the other one, as they are read.

    What lies along the rows XLA transposes.
    """

    def laid(operand: Array, along_rows: bool) -> Array:
        if along_rows:
            return launch.padded(operand, cut.depth).T
        return launch.padded(operand, launch.TILE_ROWS)

    own, shared = (dy, x) if by_rows else (x, dy)
    shape = cut.shape
    return [laid(own, shape.own_along_rows), laid(shared, shape.shared_along_rows)]


def contiguous(cut: Cut, dtype: str) -> int:
    """How many entries of a row lie side by side in shared memory, of both operands alike."""
    found = cut.depth if jnp.dtype(dtype).itemsize == 4 else min(cut.depth, cut.shape.shared)
    return found if cut.shape.own_along_rows else min(found, cut.shape.own)


def rings(cut: Cut, dtype: str) -> dict[str, Any]:
    """Shared memory for both operands, and the barriers that say when it is filled and read."""
    depth, features, shape = cut.depth, cut.shape.shared, cut.shape
    of_blocks = (cut.tall, depth) if shape.own_along_rows else (cut.n_together, depth, shape.own)
    of_line = (features, depth) if shape.shared_along_rows else (depth, features)

    def ring(*shape: int) -> Any:
        return launch.shared((cut.stages, *shape), dtype, contiguous(cut, dtype))

    return {
        "own": ring(*of_blocks),
        "shared": ring(*of_line),
        "full": launch.barriers(cut.stages, arrivals=cut.n_together + 1),
        "free": launch.barriers(cut.stages, arrivals=cut.n_compute),
    }


class Ring(NamedTuple):
    """What the warpgroups of a program share of the operands.

    Attributes:
      own: `[stages, ...]`, the ring of the operand of which each block has a part of its own; what
        does not lie along the rows is `[stages, n_together, depth, features]`.
      shared: `[stages, ...]`, that of the other one.
      full: for each stage, the barrier that opens when both operands are there.
      free: that opens when no warpgroup reads them any more.
    """

    own: Any
    shared: Any
    full: Any
    free: Any


class Group(NamedTuple):
    """Kept blocks of one line that are computed together.

    Attributes:
      line: which line.
      entry: its first entry in the lists of kept blocks.
      length: how many they are; 0 if there is no such group.
    """

    line: Array
    entry: Array
    length: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Operands:
    """Both operands, as the warpgroups of a program know them.

    Attributes:
      cut: how they are cut.
      ring: where they come to.
      own: the operand of which each block has a part of its own, in global memory.
      shared: the other operand, of whose features a line of blocks has a part, likewise.
    """

    cut: Cut
    ring: Ring
    own: Any
    shared: Any

    def fetch_own(self, step: Array, slot: Array, index: int, block: Array) -> None:
        """Starts the copy of the features of one of the blocks that are computed together.

        Args:
          step: which rows.
          slot: the buffers.
          index: which one of these blocks it is.
          block: where in its line it lies.
        """
        n_features, along_rows = self.cut.shape.own, self.cut.shape.own_along_rows
        place = self._place(step, block * n_features, n_features, along_rows)
        warpgroup.fetch(self.own.at[place], self._own_part(slot, index), self.ring.full.at[slot])

    def fetch_shared(self, step: Array, slot: Array, line: Array) -> None:
        """Starts the copy of the features of a line."""
        n_features, along_rows = self.cut.shape.shared, self.cut.shape.shared_along_rows
        place = self._place(step, line * n_features, n_features, along_rows)
        warpgroup.fetch(self.shared.at[place], self.ring.shared.at[slot], self.ring.full.at[slot])

    def of_warpgroup(self, thread: Array, slot: Array) -> tuple[Any, Any]:
        """The 64 rows of a warpgroup in the left operand, and the right one, of a step."""
        shape, own, shared = self.cut.shape, self.ring.own, self.ring.shared
        first = thread * ROWS
        # A block has one warpgroup's rows, or two's.
        block, inside = (f(first, jnp.int32(shape.height)) for f in (jax.lax.div, jax.lax.rem))
        if shape.is_shared_left:
            return (
                warpgroup.turned(shared.at[slot, :, pl.ds(inside, ROWS)]),
                own.at[slot, block],
            )
        right = shared.at[slot]
        right = warpgroup.turned(right) if shape.shared_along_rows else right
        if shape.own_along_rows:
            return own.at[slot, pl.ds(first, ROWS)], right
        return warpgroup.turned(own.at[slot, block, :, pl.ds(inside, ROWS)]), right

    def _own_part(self, slot: Array, index: int) -> Any:
        """Where the features of one of the blocks that are computed together go."""
        cut, own = self.cut, self.ring.own
        if not cut.shape.own_along_rows:
            return own.at[slot, index]
        if cut.n_together == 1:
            return own.at[slot]
        return own.at[slot, pl.ds(index * cut.shape.own, cut.shape.own)]

    def _place(self, step: Array, feature: Array, n_features: int, along_rows: bool) -> Any:
        """Where in an operand the rows of a step and some features are."""
        rows, features = pl.ds(step * self.cut.depth, self.cut.depth), pl.ds(feature, n_features)
        return (features, rows) if along_rows else (rows, features)
