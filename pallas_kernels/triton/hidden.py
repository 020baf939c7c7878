"""The hidden units of two layers, computed in registers a run of neighbours at a time.

A run lies in one block column of W1 and in one block row of W2, so one list of kept blocks gives
its pre-activations from x, and another the gradient that reaches it from dy.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Int

from pallas_kernels.lists import BlockLists, list_columns, list_rows
from pallas_kernels.sparse_layer import SparseLayer, Weights
from pallas_kernels.triton.launch import dot, load, quotient_and_rest, store

DEPTH = 64
"""Features contracted by one product at most."""


class Lists(NamedTuple):
    """References to `start` and `across` of `BlockLists`."""

    start: Any
    across: Any

    def bounds(self, line: Array) -> tuple[Array, Array]:
        """The first entry of a line, and the one after its last."""
        return self.start[line], self.start[line + 1]


class Rows(NamedTuple):
    """Some rows of a reference `[rows, features]`.

    Attributes:
      first: the first of them.
      exists: bool `[n]`, False beyond the last row that there is.
    """

    first: Any
    exists: Array

    def load(self, ref: Any, features: Any) -> Array:
        """Some features of these rows, zero in rows that do not exist."""
        return load(self._at(ref, features), self._mask(features))

    def store(self, ref: Any, features: Any, value: Array) -> None:
        """Writes some features of the rows that exist."""
        store(self._at(ref, features), value, self._mask(features))

    def _at(self, ref: Any, features: Any) -> Any:
        return ref.at[pl.ds(self.first, self.exists.size), features]

    def _mask(self, features: Any) -> Array:
        return jnp.broadcast_to(self.exists[:, None], (self.exists.size, features.size))


@dataclasses.dataclass(frozen=True)
class Runs:
    """How hidden units are cut into runs.

    Attributes:
      layers: both layers.
      size: hidden units of a run.
    """

    layers: tuple[SparseLayer, SparseLayer]
    size: int

    @property
    def n(self) -> int:
        """How many there are."""
        return self.layers[0].kernel_shape[1] // self.size

    @property
    def per_column(self) -> int:
        """How many there are in a block column of W1."""
        return self.layers[0].block[0] // self.size

    @property
    def per_row(self) -> int:
        """How many there are in a block row of W2."""
        return self.layers[1].block[1] // self.size

    def units(self, run: Array) -> Any:
        """The hidden units of a run, as an index."""
        return pl.ds(run * self.size, self.size)

    def column(self, run: Array) -> tuple[Array, Array]:
        """The block column of W1 that a run lies in, and the place there in runs."""
        return quotient_and_rest(run, self.per_column)

    def row(self, run: Array) -> tuple[Array, Array]:
        """The block row of W2 that a run lies in, and the place there in runs."""
        return quotient_and_rest(run, self.per_row)

    def before_gelu(self, run: Array, rows: Rows, x: Any, first: Lists, w1: Any, b1: Any) -> Array:
        """`x (W1 * M1) + b1` for some rows of x, `[rows, size]`, float32."""
        _, depth = self.layers[0].block

        def add(entry: Array, total: Array) -> Array:
            for inputs in _parts(first.across[entry] * depth, depth):
                weights = load(w1.at[inputs, self.units(run)])
                total = total + dot(rows.load(x, inputs), weights, (1, 0))
            return total

        zero = jnp.zeros((rows.exists.size, self.size), jnp.float32)
        total = jax.lax.fori_loop(*first.bounds(self.column(run)[0]), add, zero)
        return total + load(b1.at[self.units(run)]).astype(jnp.float32)[None, :]

    def after_gelu_gradient(self, run: Array, rows: Rows, dy: Any, second: Lists, w2: Any) -> Array:
        """`dy (W2 * M2)^T` for some rows of dy, `[rows, size]`, float32."""
        depth, _ = self.layers[1].block

        def add(entry: Array, total: Array) -> Array:
            for outputs in _parts(second.across[entry] * depth, depth):
                weights = load(w2.at[self.units(run), outputs])
                total = total + dot(rows.load(dy, outputs), weights, (1, 1))
            return total

        zero = jnp.zeros((rows.exists.size, self.size), jnp.float32)
        return jax.lax.fori_loop(*second.bounds(self.row(run)[0]), add, zero)


def _parts(first: Array, depth: int) -> list[Any]:
    """A side of a block in parts whose operands do not crowd out the sums of a program."""
    size = min(depth, DEPTH)
    return [pl.ds(first + part * size, size) for part in range(depth // size)]


def cut(layers: tuple[SparseLayer, SparseLayer], largest: int) -> Runs:
    """The longest runs, up to a size, that lie in one block of each layer; sides are powers of two.

    Args:
      layers: both layers.
      largest: hidden units of a run at most, a power of two from 16.
    """
    return Runs(layers, min(layers[0].block[0], layers[1].block[1], largest))


def grids(layers: tuple[SparseLayer, SparseLayer]) -> list[tuple[int, int]]:
    """The shape of each layer's block grid, `(in / cols, out / rows)`."""
    shapes = ((*layer.kernel_shape, *layer.block) for layer in layers)
    return [(n_in // cols, n_out // rows) for n_in, n_out, rows, cols in shapes]


def lists(
    weights: tuple[Weights, Weights], layers: tuple[SparseLayer, SparseLayer]
) -> tuple[BlockLists, BlockLists]:
    """The kept blocks of each hidden column of W1, and of each hidden row of W2."""
    first, second = grids(layers)
    return list_columns(weights[0].kept, first), list_rows(weights[1].kept, second)


def in_groups(grid: Bool[Array, "lines blocks"], size: int) -> Bool[Array, "groups lines size"]:
    """The blocks of each line in groups of neighbours; the last group may have some that are not.

    Args:
      grid: which blocks are kept.
      size: blocks of a group.
    """
    n_lines, n_blocks = grid.shape
    n_groups = pl.cdiv(n_blocks, size)
    padded = jnp.pad(grid, ((0, 0), (0, n_groups * size - n_blocks)))
    return padded.reshape(n_lines, n_groups, size).swapaxes(0, 1)


def chosen_runs(
    chosen: Bool[Array, "groups lines"], per_line: int
) -> tuple[Int[Array, " groups"], Int[Array, "groups runs"]]:
    """How many runs each group has, and them first, ascending.

    Args:
      chosen: which lines of blocks each group has.
      per_line: runs of a line.
    """
    runs = jnp.repeat(chosen, per_line, axis=1)
    order = jnp.argsort(~runs, axis=1, stable=True).astype(jnp.int32)
    return jnp.sum(runs, axis=1, dtype=jnp.int32), order
