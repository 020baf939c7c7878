"""What an engine is: the three products of a block-sparse linear layer.

The reference engine defines the meaning of the others; every engine is held to it by one
conformance test.
"""

import abc
from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Array, Float, Int

from pallas_kernels import dense, neighbours, tuning
from pallas_kernels.device_table import Problem
from pallas_kernels.engine_of_convolutions import EngineOfConvolutions
from pallas_kernels.engine_of_pairs import EngineOfPairs
from pallas_kernels.layout import spread_activation
from pallas_kernels.lists import ListedBlocks, ids_of
from pallas_kernels.neighbours import Neighbours
from pallas_kernels.sparse_layer import Phase, SparseLayer


class Engine(EngineOfPairs, EngineOfConvolutions, abc.ABC):
    """Computes the products of a layer from the kept blocks.

    `kept` is int32 `[k]`: flat ids of the kept blocks, ascending, row-major over the block grid
    `[in / cols, out / rows]`; an engine that `takes_lists` also takes them with their lists. With
    `axis = -1`, x is `[..., in]` and y `[..., out]`; with `axis = -2`, x is `[..., in, channels]`
    and y `[..., out, channels]`.
    """

    name: str
    platforms: tuple[str, ...] = ()
    """Where it is meant to run: there, `auto` says so once if it cannot."""
    measured: bool = True
    """Whether it is known everywhere where this engine is faster than XLA. If not, `auto` takes it
    on devices alone whose table says where (`pallas_kernels.tuning`)."""
    version: int = 1
    """Of its kernels, for such tables: raised when a kernel changes so that they no longer hold."""
    takes_lists: bool = False
    """Whether its products take `ListedBlocks`, and are spared what finds the kept blocks then."""
    narrowest_kept: int | None = None
    """Inputs of the narrowest block of an activation of which `compact_gradient` skips the dropped
    ones; None: it never does."""

    scores: tuple[str, ...] = ()
    """Which scores of blocks `block_scores` can compute."""

    @abc.abstractmethod
    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        """Why this engine cannot compute `layer` on `platform`, and the way out; None if it can.

        Args:
          layer: the layer; where another operand is pruned also a whole kernel, which is not
            `is_masked` and whose blocks mean nothing.
          platform: JAX's name of the backend: `cpu`, `gpu`, `tpu`.
        """

    def pays(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
        """Whether it is expected to be faster than the engines after it, by measurement.

        Args:
          phase: what is to be computed.
          layer: the layer.
          n_rows: rows of x, or samples times channels along the token axis.
        """
        if self.measured:
            return True
        return tuning.pays(layer.problem(self.name, self.version, phase, n_rows))

    def is_measured_here(self) -> bool:
        """Whether it is known where it pays on the device of this process."""
        return self.measured or bool(tuning.entries_here(self.name, self.version))

    def pays_unmasked(self, dtype: str) -> bool:
        """Whether `compact_gradient` and `pruned_input_gradient` are known to be faster than XLA's.

        Where so, the engine is asked for what else concerns pruned operands. On devices with a
        table: if they beat it wherever they were measured.

        Args:
          dtype: of the operands.
        """
        kernels = ("compact_gradient", "pruned_input_gradient")
        return self.measured or tuning.always_pays(self.name, self.version, kernels, dtype)

    def taken(self, kept: Any) -> Any:
        """Kept blocks as this engine takes them: without their lists if it does not."""
        return kept if self.takes_lists or not isinstance(kept, ListedBlocks) else ids_of(kept)

    def configurations(self, problem: Problem) -> Sequence[Any]:
        """How the kernel of a problem can be cut, the heuristic's choice first; none: no choice.

        An engine that expects something of them names the best first. Each is a frozen dataclass
        that `tuning.forced` gives to the kernel.
        """
        return ()

    @abc.abstractmethod
    def product(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`y = x (W * M) + b`."""

    @abc.abstractmethod
    def input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`dx = dy (W * M)^T`."""

    @abc.abstractmethod
    def kernel_gradient(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "in out"]:
        """`dW = (x^T dy) * M`, exactly zero in dropped blocks."""

    def parameter_gradients(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: Any,
        layer: SparseLayer,
    ) -> tuple[Float[Array, "in out"], Float[Array, " out"]]:
        """`dW = (x^T dy) * M` and `db`, dy summed over all but its features."""
        return self.kernel_gradient(x, dy, kept, layer), dense.bias_gradient(dy, layer.axis)

    def block_scores(
        self, kernel: Float[Array, "in out"], block: tuple[int, int], score: str
    ) -> Float[Array, "down across"] | None:
        """The score of every block of a kernel in one pass over it, if this engine has one.

        Args:
          kernel: `[in, out]`, any float dtype; sums are taken in float32.
          block: `(rows, cols)`, rows over outputs.
          score: one of `scores`: `l1`, the sum of sizes, or `l2`, the Frobenius norm.

        Returns:
          Float32 `[in / cols, out / rows]`, right but for rounding: blocks whose scores differ by
          less may change places. Blocks of the same weights have the same score. None: XLA scores.
        """
        return None

    def largest_blocks(
        self, x: Float[Array, "..."], block: tuple[int, int], k: int, axis: Literal[-1, -2]
    ) -> tuple[Float[Array, "k height width"], Int[Array, " k"]] | None:
        """The k blocks of an activation with the largest Frobenius norm, if this engine finds them.

        Args:
          x: `[..., in]`, or `[..., in, channels]` with `axis = -2`.
          block: `(height, width)`: rows over all of x but `axis`, flattened, columns over `axis`.
          k: how many.
          axis: the axis that the layer contracts.

        Returns:
          The blocks and their flat ids, ascending; equal norms keep the lower id. None: rank all of
          them and take the first.
        """
        return None

    def compact_gradient(
        self,
        values: Float[Array, "k height width"],
        ids: Int[Array, " k"],
        dy: Float[Array, "..."],
        n_in: int,
        axis: Literal[-1, -2],
    ) -> Float[Array, "in out"]:
        """`dW = X'^T dy` from the kept blocks of an activation, all others being zero.

        By definition: the dense product. Engines that can use the kept blocks alone.

        Args:
          values: the kept blocks of X', whose rows are those of dy (along the tokens its channels)
            and whose columns are the inputs of the layer.
          ids: int32 `[k]`, flat ids of the kept blocks, ascending, row-major over the block grid.
          dy: `[..., out]`, or `[..., out, channels]` with `axis = -2`.
          n_in: inputs of the layer.
          axis: the axis that the layer contracts.
        """
        shape = list(dy.shape)
        shape[axis] = n_in
        x = spread_activation(values, ids, tuple(shape), axis)
        return dense.kernel_gradient(x, dy, axis)

    def pruned_input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Neighbours,
        axis: Literal[-1, -2],
    ) -> Float[Array, "..."]:
        """`dx = dy' W^T`, dy' being the largest of every few neighbours of dy along the outputs.

        By definition: the dense product of what `keep_largest` leaves. Engines that can skip what
        is dropped.

        Args:
          dy: `[..., out]`, or `[..., out, channels]` with `axis = -2`.
          kernel: the whole kernel.
          kept: which neighbours are kept; a group divides the outputs.
          axis: the axis that the layer contracts, and that the groups run along.
        """
        return dense.input_gradient(self.keep_largest(dy, kept, axis), kernel, axis)

    def keep_largest(
        self, dy: Float[Array, "..."], kept: Neighbours, axis: Literal[-1, -2]
    ) -> Float[Array, "..."]:
        """The largest of every few neighbours of dy along an axis, zeros for the others.

        Args:
          dy: `[..., out]`, or `[..., out, channels]` with `axis = -2`.
          kept: which neighbours are kept; a group divides the axis.
          axis: the axis that the groups run along.
        """
        return neighbours.keep_largest(dy, kept, axis)
