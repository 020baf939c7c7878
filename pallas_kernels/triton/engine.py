"""Engine `triton`: Pallas kernels for NVIDIA GPUs that load the kept blocks and no others."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels import apart, dense
from pallas_kernels.device_table import Problem
from pallas_kernels.engine import Engine
from pallas_kernels.gelu import through_gelu
from pallas_kernels.lists import KeptBlocks, ids_of
from pallas_kernels.neighbours import Neighbours
from pallas_kernels.reference import Reference
from pallas_kernels.sparse_layer import SparseLayer, Weights
from pallas_kernels.tensor_cores import reason_against_blocks, reason_against_platform
from pallas_kernels.triton import (
    compact,
    configurations,
    gradient,
    launch,
    mlp,
    mlp_input_gradient,
    mlp_weight_gradient,
    pair_tiles,
    products,
    pruned,
    scores,
)
from pallas_kernels.triton.convolutions import TritonConvolutions

_REFERENCE = Reference()


class Triton(TritonConvolutions, Engine):
    """Computes the products of kept blocks on tensor cores; sums are taken in float32.

    Float32 operands are multiplied in TF32 unless `jax_default_matmul_precision` says otherwise.
    `auto` takes this engine on GPUs whose table of measurements says where it pays.

    Attributes:
      interpret: whether JAX interprets the kernels, on any platform, instead of compiling them: for
        tests.
    """

    name = "triton"
    measured = False
    takes_lists = True
    version = configurations.VERSION
    narrowest_kept = 1
    scores = scores.SCORES

    def __init__(self, interpret: bool = False) -> None:
        self.interpret = interpret

    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        """Why not: another platform, GPU or dtype, blocks that do not fit tensor cores, or JAX."""
        reason = reason_against_platform(layer, platform, interpret=self.interpret)
        if reason is None:
            reason = reason_against_blocks(layer) or launch.missing()
        return reason or (None if self.interpret else launch.unfit())

    def configurations(self, problem: Problem) -> list[Any]:
        """The heuristic's choice, then the search space."""
        if problem.kernel in ("mlp", "mlp_gradients"):
            return pair_tiles.configurations(problem)
        layer = SparseLayer(problem.kernel_shape, problem.block, 1, -1, problem.dtype)
        heuristics = {
            "product": lambda: configurations.product_tiles(layer),
            "input_gradient": lambda: configurations.product_tiles(layer),
            "kernel_gradient": lambda: configurations.gradient_tiles(layer),
            "convolution": lambda: configurations.product_tiles(layer),
            "convolution_input_gradient": lambda: configurations.product_tiles(layer),
            "convolution_gradients": lambda: configurations.gradient_tiles(layer),
            "compact_gradient": configurations.compact_tiles,
            "pruned_input_gradient": configurations.pruned_tiles,
        }
        if problem.kernel not in heuristics:
            return []
        found = [heuristics[problem.kernel](), *configurations.search_space(problem)]
        return list(dict.fromkeys(found))

    def product(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: KeptBlocks,
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`y = x (W * M) + b`."""
        if not x.size or not kept.size:
            return _REFERENCE.product(x, kernel, bias, ids_of(kept), layer)
        return self._multiply(x, kernel, bias, kept, layer)

    def input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: KeptBlocks,
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`dx = dy (W * M)^T`."""
        if not dy.size or not kept.size:
            return _REFERENCE.input_gradient(dy, kernel, ids_of(kept), layer)
        return self._multiply(dy, kernel, None, kept, layer, transposed=True)

    def kernel_gradient(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: KeptBlocks,
        layer: SparseLayer,
    ) -> Float[Array, "in out"]:
        """`dW = (x^T dy) * M`, exactly zero in dropped blocks."""
        if not x.size or not kept.size:
            return _REFERENCE.kernel_gradient(x, dy, ids_of(kept), layer)
        return gradient.kernel_gradient(x, dy, kept, layer, interpret=self.interpret)

    def block_scores(
        self, kernel: Float[Array, "in out"], block: tuple[int, int], score: str
    ) -> Float[Array, "down across"] | None:
        """Norms `l1` and `l2` of blocks whose sides are powers of two, reading the kernel once."""
        if not kernel.size or not scores.takes(block):
            return None
        return scores.block_scores(kernel, block, score, interpret=self.interpret)

    def compact_gradient(
        self,
        values: Float[Array, "k height width"],
        ids: Int[Array, " k"],
        dy: Float[Array, "..."],
        n_in: int,
        axis: Literal[-1, -2],
    ) -> Float[Array, "in out"]:
        """`dW = X'^T dy` from the kept blocks of an activation; along the tokens dy is turned."""
        if not dy.size or not ids.size or not compact.takes(values):
            return super().compact_gradient(values, ids, dy, n_in, axis)
        dy = jnp.moveaxis(dy, axis, -1)
        return compact.compact_gradient(
            values, ids, dy.reshape(-1, dy.shape[-1]), n_in, axis, interpret=self.interpret
        )

    def pruned_input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Neighbours,
        axis: Literal[-1, -2],
    ) -> Float[Array, "..."]:
        """`dx = dy' W^T`, pruning dy in registers; groups that are no powers of two by XLA."""
        if not dy.size or not kernel.size or not pruned.takes(kept):
            return super().pruned_input_gradient(dy, kernel, kept, axis)
        return pruned.pruned_input_gradient(dy, kernel, kept, axis, interpret=self.interpret)

    def fuses(self, first: SparseLayer, second: SparseLayer) -> bool:
        """Layers along the features that keep any block: in one kernel, or nothing kept but x."""
        return first.axis == second.axis == -1 and min(first.n_kept, second.n_kept) > 0

    def mlp(
        self,
        x: Float[Array, "*batch in"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> Float[Array, "*batch out"]:
        """`y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top if `residual`.

        One product after the other, the hidden units written once, after GELU; or one kernel,
        which never writes them, where it was measured to be faster. Nothing is kept for the
        backward pass.
        """
        shape = (*x.shape[:-1], layers[1].kernel_shape[1])
        if not x.size:
            return jnp.zeros(shape, x.dtype)
        rows = x.reshape(-1, x.shape[-1])
        tiles = pair_tiles.mlp_tiles(layers, self._problem(layers, "mlp", rows))
        if tiles is not None:
            y = mlp.mlp(rows, weights, layers, tiles, residual=residual, interpret=self.interpret)
            return y.reshape(shape)
        units = self._multiply(rows, *weights[0], layers[0], with_gelu=True)
        y = self.product(units, *weights[1], layers[1])
        return (rows + y if residual else y).reshape(shape)

    def mlp_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
        """The gradients of x and of both layers; the hidden units are computed again from x.

        One product after the other, or two kernels, which keep them in registers, as `mlp`. In
        the former they are rounded to their dtype before GELU too, which the forward pass spares
        them.
        """
        if not x.size:
            zeros = (Weights(*jax.tree.map(jnp.zeros_like, each[:2])) for each in weights)
            return jnp.zeros_like(x), (next(zeros), next(zeros))
        shape = x.shape
        x, dy = x.reshape(-1, shape[-1]), dy.reshape(-1, dy.shape[-1])
        tiles = pair_tiles.gradient_tiles(layers, self._problem(layers, "mlp_gradients", x))
        if tiles is None:
            (w1, b1, kept1), (w2, _, kept2) = weights
            before = self.product(x, w1, b1, kept1, layers[0])
            units = through_gelu(before, self.input_gradient(dy, w2, kept2, layers[1]))
            dx, gradients = apart.gradients(self, x, dy, units, weights, layers, residual)
            return dx.reshape(shape), gradients
        options = {"interpret": self.interpret}
        rows = x, dy, weights, layers
        dx = mlp_input_gradient.input_gradient(*rows, tiles.inputs, residual=residual, **options)
        dw1, db1, dw2 = mlp_weight_gradient.parameter_gradients(*rows, tiles.shares, **options)
        b1, b2 = weights[0].bias, weights[1].bias
        first = Weights(dw1, None if b1 is None else db1)
        second = Weights(dw2, None if b2 is None else dense.bias_gradient(dy, -1))
        return dx.reshape(shape), (first, second)

    def _problem(
        self, layers: tuple[SparseLayer, SparseLayer], method: str, rows: Array
    ) -> Problem:
        """Of this engine also where a subclass has products of its own."""
        return layers[0].problem(Triton.name, self.version, method, rows.shape[0])

    def _multiply(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: KeptBlocks,
        layer: SparseLayer,
        **options: bool,
    ) -> Float[Array, "..."]:
        return products.multiply(x, kernel, bias, kept, layer, interpret=self.interpret, **options)
