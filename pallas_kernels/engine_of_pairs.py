"""What an engine may compute besides the products of a layer: two layers in one go."""

from jaxtyping import Array, Float, Int

from pallas_kernels.pruning import Pruning, Scales
from pallas_kernels.sparse_layer import SparseLayer, Weights


class EngineOfPairs:
    """Two layers along the features with a GELU between them, in one go; here, no pair is.

    Their hidden activations are computed again for the backward pass.
    """

    def fuses(self, first: SparseLayer, second: SparseLayer) -> bool:
        """Whether `mlp` and `mlp_gradients` can compute this pair of layers."""
        return False

    def mlp(
        self,
        x: Float[Array, "*batch in"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> Float[Array, "*batch out"]:
        """`y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top if `residual`."""
        raise NotImplementedError

    def mlp_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
        """The gradients of x and of both layers' kernels and biases, zero in dropped blocks."""
        raise NotImplementedError

    def fuses_straight_through(self, first: SparseLayer, second: SparseLayer) -> bool:
        """Whether `mlp` and `straight_through_gradients` can compute this pair of layers."""
        return False

    def straight_through_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
        """As `mlp_gradients`, but `dW = x^T dy` of each layer in all blocks."""
        raise NotImplementedError

    def fuses_pruned(
        self, layers: tuple[SparseLayer, SparseLayer], pruning: tuple[Pruning, Pruning]
    ) -> bool:
        """Whether `pruned_mlp` and `pruned_mlp_gradients` can compute this pair of layers."""
        return False

    def pays_pruned(
        self,
        layers: tuple[SparseLayer, SparseLayer],
        pruning: tuple[Pruning, Pruning],
        straight_through: bool,
        n_rows: int,
    ) -> bool:
        """Whether they are expected to be faster than one layer after the other, by measurement."""
        return False

    def pruned_mlp(
        self,
        x: Float[Array, "*batch in"],
        weights: tuple[Weights, Weights],
        scales: Scales,
        layers: tuple[SparseLayer, SparseLayer],
        pruning: tuple[Pruning, Pruning],
        residual: bool,
    ) -> tuple[Float[Array, "*batch out"], list[Float[Array, "_ _"] | None]]:
        """`y = after (gelu(a (W1 * M1) + b1) (W2 * M2) + b2)` with `a = scale x + shift`.

        Args:
          x: `[..., in]`.
          weights: of both layers.
          scales: around them.
          layers: which blocks they have; a whole kernel keeps all of them.
          pruning: what of their activations is pruned.
          residual: whether x is added.

        Returns:
          y, and of each layer whose activation is pruned the Frobenius norms of its blocks,
          float32 `[rows / height, in / width]`; None of the other.
        """
        raise NotImplementedError

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
        """The gradients of x, of both layers and of the scales.

        Args:
          x: `[..., in]`.
          dy: `[..., out]`.
          weights: of both layers.
          scales: around them.
          kept: of each pruned activation the kept blocks, int32 `[k]`, flat ids, ascending.
          layers: which blocks they have.
          pruning: what of their activations and their outputs' gradients is pruned.
          residual: whether x was added.
          straight_through: whether gradients are those of whole kernels.
        """
        raise NotImplementedError
