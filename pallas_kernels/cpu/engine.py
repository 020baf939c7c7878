"""Engine `cpu`: native code that reads the kept blocks and nothing else of a kernel."""

import math
from typing import Literal

from jaxtyping import Array, Float, Int

from pallas_kernels.cpu import calls, library, pair_calls
from pallas_kernels.cpu.build import BuildError
from pallas_kernels.cpu.convolutions import CpuConvolutions
from pallas_kernels.cpu.crossover import hands_over, pays
from pallas_kernels.engine import Engine
from pallas_kernels.neighbours import Neighbours
from pallas_kernels.pruning import Pruning, Scales
from pallas_kernels.reference import Reference
from pallas_kernels.sparse_layer import Phase, SparseLayer, Weights

DTYPES = ("float32", "bfloat16")
NARROWEST = 4
"""Inputs of the narrowest block of an activation that native code computes. Measured with 8 rows,
64x256 and 8192 rows of x on a Xeon: from here on it beats the dense product at every ratio from
0.1; at 2 inputs from 0.5, at 1 from 0.8."""
MOST_KEPT = 16
"""Of a group of neighbours, that native code takes. Where measured it beat the pruning and dense
product by XLA that it replaces: 2:4, 1:8, 4:8 (16 rows to 8192, 3->64 to 384->1536, bfloat16 in two
cases), 1:2 to 7:8, 2:16, 4:32, 16:32 (8192 rows of 64->256 and 256->64). 2 cores of a Xeon with
AVX-512."""
MOST_NEIGHBOURS = 32
"""In a group, that native code finds the largest of."""
NARROWEST_FUSED = 8
"""Side of the narrowest block of a kernel that the pair of layers with pruned operands takes."""
MOST_ROWS = 64
"""That the same pair computes at once at least: whole blocks of both layers' activations, and whole
samples where gradients are rescaled."""
MOST_WEIGHTS, MOST_WEIGHTS_OF_MANY_ROWS, MANY_ROWS = 1 << 19, 600_000, 8192
"""Of a kernel with which the pair was measured to beat its two layers, one after the other, where
activations are pruned, and with so many rows: a whole 384x1536 does with 8192 rows, not with 2048.
2 cores of an AMD EPYC, 8x8 blocks at 0.5 and 0.8."""
MOST_WEIGHTS_BESIDE_DW = 1 << 17
"""The same where gradients of neighbours alone are pruned, 2:4, or dW is that of a whole kernel."""
_REFERENCE = Reference()


class Cpu(CpuConvolutions, Engine):
    """Computes the products of kept blocks in registers, on XLA's own thread pool.

    Sums are taken in float32. Results do not depend on the number of threads. A layer whose blocks
    are so small that this never pays, by measurement, is computed by `Reference`.
    """

    name = "cpu"
    platforms = ("cpu",)
    narrowest_kept = NARROWEST

    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        """Why not: another platform or dtype, or no compiler; the last with what to install."""
        if platform not in self.platforms:
            return f"it is native code for processors and the platform is {platform!r}"
        if layer.dtype not in DTYPES:
            return f"it computes {' and '.join(DTYPES)}, not {layer.dtype}"
        loaded = library.load_library()
        return str(loaded) if isinstance(loaded, BuildError) else None

    def pays(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
        """Whether measurement found it faster than what would be done instead."""
        return pays(phase, layer, n_rows)

    def product(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`y = x (W * M) + b`."""
        if hands_over(layer):
            return _REFERENCE.product(x, kernel, bias, kept, layer)
        return calls.multiply(x, kernel, bias, kept, layer, transposed=False)

    def input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`dx = dy (W * M)^T`."""
        if hands_over(layer):
            return _REFERENCE.input_gradient(dy, kernel, kept, layer)
        return calls.multiply(dy, kernel, None, kept, layer, transposed=True)

    def kernel_gradient(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "in out"]:
        """`dW = (x^T dy) * M`, exactly zero in dropped blocks."""
        if hands_over(layer):
            return _REFERENCE.kernel_gradient(x, dy, kept, layer)
        return calls.gradient(x, dy, kept, layer, with_bias=False)[0]

    def parameter_gradients(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> tuple[Float[Array, "in out"], Float[Array, " out"]]:
        """dW, and db from the same pass over dy."""
        if hands_over(layer):
            return _REFERENCE.parameter_gradients(x, dy, kept, layer)
        return calls.gradient(x, dy, kept, layer, with_bias=True)

    def largest_blocks(
        self, x: Float[Array, "..."], block: tuple[int, int], k: int, axis: Literal[-1, -2]
    ) -> tuple[Float[Array, "k height width"], Int[Array, " k"]]:
        """The k blocks with the largest norm, in one pass over x and another over them."""
        return calls.largest_blocks(x, block, k, axis)

    def compact_gradient(
        self,
        values: Float[Array, "k height width"],
        ids: Int[Array, " k"],
        dy: Float[Array, "..."],
        n_in: int,
        axis: Literal[-1, -2],
    ) -> Float[Array, "in out"]:
        """`dW = X'^T dy` from the kept blocks of an activation; narrow ones are left to XLA."""
        if values.shape[2] < NARROWEST:
            return super().compact_gradient(values, ids, dy, n_in, axis)
        return calls.compact_gradient(values, ids, dy, n_in, axis)

    def pruned_input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Neighbours,
        axis: Literal[-1, -2],
    ) -> Float[Array, "..."]:
        """`dx = dy' W^T` from the kept entries alone, where that pays.

        Along the tokens XLA multiplies what is kept: there the lanes of a vector are channels, and
        each has zeros of its own, so nothing can be skipped.
        """
        if axis == -1 and _skips(dy, kept):
            return calls.pruned_input_gradient(dy, kernel, kept)
        return super().pruned_input_gradient(dy, kernel, kept, axis)

    def keep_largest(
        self, dy: Float[Array, "..."], kept: Neighbours, axis: Literal[-1, -2]
    ) -> Float[Array, "..."]:
        """What is kept of dy and zeros, in one pass over it; by XLA what native code does not do.

        That is more than 32 neighbours, and rescaling along tokens over more than one other axis.
        """
        if kept.m > MOST_NEIGHBOURS or (kept.rescaled and axis == -2 and dy.ndim > 3):
            return super().keep_largest(dy, kept, axis)
        return calls.keep_largest(dy, kept, axis)

    def fuses(self, first: SparseLayer, second: SparseLayer) -> bool:
        """Any two layers along the features, unless one is left to `Reference`."""
        along_features = first.axis == second.axis == -1
        return along_features and not hands_over(first) and not hands_over(second)

    def mlp(
        self,
        x: Float[Array, "*batch in"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> Float[Array, "*batch out"]:
        """`y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top if `residual`."""
        return pair_calls.mlp(x, weights, layers, residual)

    def mlp_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
        """The gradients of x and of both layers; the hidden units are computed again from x."""
        return pair_calls.mlp_gradients(x, dy, weights, layers, residual)

    def fuses_straight_through(self, first: SparseLayer, second: SparseLayer) -> bool:
        """The same pairs as with the masked backward."""
        return self.fuses(first, second)

    def straight_through_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
        """The gradients of x, and of all blocks of both layers' kernels."""
        return pair_calls.mlp_gradients(x, dy, weights, layers, residual, straight_through=True)

    def fuses_pruned(
        self, layers: tuple[SparseLayer, SparseLayer], pruning: tuple[Pruning, Pruning]
    ) -> bool:
        """Pairs that `fuses`, but for narrow blocks, and what needs many rows at once."""
        sides = [side for layer in layers for side in layer.block]
        widths = [own.ranked[1] for own in pruning if own.ranked]
        groups = [own.gradient.m for own in pruning if own.gradient]
        return (
            self.fuses(*layers)
            and min(sides) >= NARROWEST_FUSED
            and min(widths, default=NARROWEST) >= NARROWEST
            and max(groups, default=0) <= MOST_NEIGHBOURS
            and math.lcm(*(own.unit for own in pruning)) <= MOST_ROWS
        )

    def pays_pruned(
        self,
        layers: tuple[SparseLayer, SparseLayer],
        pruning: tuple[Pruning, Pruning],
        straight_through: bool,
        n_rows: int,
    ) -> bool:
        """Where what a panel of rows takes of both kernels was measured to be little enough.

        That is their kept weights, and with straight-through gradients all of them. Measured with
        32x32 blocks of 64x256, 384x1536 and 768x3072, with and without masks.
        """
        most = MOST_WEIGHTS if n_rows < MANY_ROWS else MOST_WEIGHTS_OF_MANY_ROWS
        if straight_through or not any(own.activation for own in pruning):
            most = MOST_WEIGHTS_BESIDE_DW
        taken = [
            math.prod(layer.kernel_shape) if straight_through else layer.n_kept_weights
            for layer in layers
        ]
        return max(taken) <= most

    def pruned_mlp(
        self,
        x: Float[Array, "*batch in"],
        weights: tuple[Weights, Weights],
        scales: Scales,
        layers: tuple[SparseLayer, SparseLayer],
        pruning: tuple[Pruning, Pruning],
        residual: bool,
    ) -> tuple[Float[Array, "*batch out"], list[Float[Array, "_ _"] | None]]:
        """The pair, with the norms of the blocks of its activations taken where they are made."""
        return pair_calls.pruned_mlp(x, weights, scales, layers, pruning, residual)

    def pruned_mlp_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        scales: Scales,
        kept: tuple[Int[Array, " k1"] | None, Int[Array, " k2"] | None],
        layers: tuple[SparseLayer, SparseLayer],
        pruning: tuple[Pruning, Pruning],
        residual: bool,
        straight_through: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights], Scales]:
        """The gradients; activations are computed again, and their dropped blocks passed over."""
        return pair_calls.pruned_mlp_gradients(
            x, dy, weights, scales, kept, layers, pruning, residual, straight_through
        )


def _skips(dy: Array, kept: Neighbours) -> bool:
    """Whether native code is expected to be faster: its vectors rescale rows of one sample."""
    return kept.n <= MOST_KEPT and not (kept.rescaled and dy.size < 16 * dy.shape[0] * dy.shape[-1])
