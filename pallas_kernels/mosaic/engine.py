"""Engine `mosaic`: Pallas kernels for Hopper and Ampere that load the kept blocks and no others."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from pallas_kernels.engine import Engine
from pallas_kernels.gelu import gelu
from pallas_kernels.lists import KeptBlocks, ids_of
from pallas_kernels.mosaic import (
    ampere_gradient,
    ampere_products,
    gradient,
    launch,
    mlp,
    mlp_cost,
    products,
    search_space,
)
from pallas_kernels.mosaic.ampere import shared_memory_bytes
from pallas_kernels.mosaic.ampere_product_tiles import fits
from pallas_kernels.mosaic.gradient_cost import gradient_tiles_of
from pallas_kernels.mosaic.mlp_tiles import APART, MlpTiles, is_fusable, pair_of
from pallas_kernels.mosaic.product_cost import tiles_of
from pallas_kernels.mosaic.product_tiles import product_of
from pallas_kernels.reference import Reference
from pallas_kernels.sparse_layer import SparseLayer, Weights
from pallas_kernels.tuning import Problem, configure

DTYPES = ("float32", "bfloat16")
SIDES = (16, 32, 64, 128)
"""Sides of blocks: of one step of tensor cores at least, and at most what registers hold."""
HOPPER = "9.0"
"""Compute capability of the GPUs that have `wgmma`; later ones have others in its place."""
AMPERE = "8."
"""What that of GPUs begins with whose kernels copy by `cp.async` and multiply by `mma.sync`."""
_TF32 = (None, "default", "fastest", "tensorfloat32", "bfloat16", "TF32_TF32_F32")
_REFERENCE = Reference()


class Mosaic(Engine):
    """Computes the products of kept blocks by warpgroups; sums are taken in float32.

    Hopper has kernels of its own; those of Ampere (and of Ada, compute capability 8.9) compute
    bfloat16 alone, the one dtype of ours that JAX multiplies there. Float32 operands are multiplied
    in TF32, whose 10 bits tensor cores take by cutting off the rest; where
    `jax_default_matmul_precision` asks for more, this engine declines. Along the tokens XLA
    transposes x, dy and the results, so that features lie side by side. Nothing was measured on a
    GPU yet: `auto` leaves this engine out.

    Attributes:
      interpret: whether JAX interprets the kernels, on any platform, instead of compiling them, and
        looks for races: for tests.
      capability: compute capability of the GPU whose kernels are taken, as `8.0`; None: of the
        device that JAX computes on.
    """

    name = "mosaic"
    measured = False
    takes_lists = True
    version = search_space.VERSION

    def __init__(self, interpret: bool = False, capability: str | None = None) -> None:
        self.interpret = interpret
        self.capability = capability

    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        """Why not: another platform, GPU or dtype, blocks that do not fit, JAX, more than TF32.

        Interpreted products of float32 are exact.
        """
        if platform != "gpu" and not self.interpret:
            return (
                f"it is for NVIDIA GPUs and the platform is {platform!r}; where there is one, "
                "pip install -e '.[cuda13]' makes JAX use it"
            )
        if layer.dtype not in DTYPES:
            return f"it computes {' and '.join(DTYPES)}, not {layer.dtype}"
        capability = self._capability()
        is_ampere = capability.startswith(AMPERE)
        if not is_ampere and capability != HOPPER:
            return (
                f"it is for GPUs of compute capability {HOPPER} (Hopper) and {AMPERE}x (Ampere, "
                f"Ada), not {capability}: engine 'triton' is for others too"
            )
        if is_ampere and layer.dtype != "bfloat16":
            return (
                f"on a GPU of compute capability {capability} it computes bfloat16, not "
                f"{layer.dtype}: engine 'triton' computes both"
            )
        is_masked = layer.n_kept * math.prod(layer.block) < math.prod(layer.kernel_shape)
        rows, cols = layer.block
        if is_masked and not set(layer.block) <= set(SIDES):
            sides = ", ".join(map(str, SIDES))
            return f"sides of blocks have to be of {sides}, not {rows}x{cols}"
        if is_masked and is_ampere and not fits(layer.block, shared_memory_bytes(capability)):
            return (
                f"on a GPU of compute capability {capability} blocks of {rows}x{cols} are too "
                "small to be copied by a warpgroup or too large for shared memory: engine 'triton' "
                "takes them"
            )
        precision = jax.config.jax_default_matmul_precision
        if layer.dtype == "float32" and precision not in _TF32 and not self.interpret:
            return (
                "it multiplies float32 in TF32, and jax_default_matmul_precision is "
                f"{precision!r}: engine 'triton' goes by that"
            )
        return launch.missing(self.interpret)

    def configurations(self, problem: Problem) -> list[Any]:
        """The shortest time on paper first; none on Ampere, whose cuts are fixed."""
        if self._capability().startswith(AMPERE):
            return []
        return search_space.configurations(problem)

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
        return self._multiply(x, kernel, bias, kept, layer, transposed=False)

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
        x, dy = (jnp.moveaxis(a, layer.axis, -1) for a in (x, dy))
        x, dy = (a.reshape(-1, a.shape[-1]) for a in (x, dy))
        if self._capability().startswith(AMPERE):
            return ampere_gradient.kernel_gradient(x, dy, kept, layer, interpret=self.interpret)
        problem = layer.problem(self.name, self.version, "kernel_gradient", x.shape[0])
        tiles = configure(problem, gradient_tiles_of(layer, x.shape[0]))
        return gradient.kernel_gradient(x, dy, kept, layer, tiles, interpret=self.interpret)

    def fuses(self, first: SparseLayer, second: SparseLayer) -> bool:
        """Layers along the features that keep any block."""
        return first.axis == second.axis == -1 and min(first.n_kept, second.n_kept) > 0

    def mlp(
        self,
        x: Float[Array, "*batch in"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> Float[Array, "*batch out"]:
        """`y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top if `residual`.

        On Hopper one kernel, which never writes the hidden units, where that costs less on paper or
        was measured to; else they are written once, after GELU. Nothing is kept for the backward
        pass.
        """
        if not x.size:
            return jnp.zeros((*x.shape[:-1], layers[1].kernel_shape[1]), x.dtype)
        rows = x.reshape(-1, x.shape[-1])
        tiles = self._mlp_tiles(layers, rows.shape[0])
        if tiles != APART:
            y = mlp.mlp(rows, weights, layers, tiles, residual=residual, interpret=self.interpret)
            return y.reshape(x.shape)
        kernel, bias, kept = weights[0]
        hidden = self._multiply(x, kernel, bias, kept, layers[0], transposed=False, with_gelu=True)
        y = self.product(hidden, *weights[1], layers[1])
        return x + y if residual else y

    def mlp_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
        """The gradients of x and of both layers; the hidden units are computed again from x."""
        (w1, b1, kept1), (w2, b2, kept2) = weights
        shape, width = x.shape, dy.shape[-1]
        x, dy = x.reshape(-1, shape[-1]), dy.reshape(-1, width)
        before = self.product(x, w1, b1, kept1, layers[0])
        hidden, slope = gelu(before.astype(jnp.float32))
        dhidden = self.input_gradient(dy, w2, kept2, layers[1]).astype(jnp.float32) * slope
        # Where a kernel reads them turned, XLA would turn all on the way to them, in float32, and
        # it would keep that for the sum of the bias as well.
        hidden, dhidden = jax.lax.optimization_barrier(
            with_layout_constraint(
                (hidden.astype(x.dtype), dhidden.astype(x.dtype)), Layout((0, 1))
            )
        )
        dw1, db1 = self.parameter_gradients(x, dhidden, kept1, layers[0])
        dw2, db2 = self.parameter_gradients(hidden, dy, kept2, layers[1])
        dx = self.input_gradient(dhidden, w1, kept1, layers[0])
        first = Weights(dw1, None if b1 is None else db1)
        second = Weights(dw2, None if b2 is None else db2)
        dx = dx + dy if residual else dx
        return dx.reshape(shape), (first, second)

    def _mlp_tiles(self, layers: tuple[SparseLayer, SparseLayer], n_rows: int) -> MlpTiles:
        """How two layers are fused on Hopper, if they are."""
        if self._capability().startswith(AMPERE) or not is_fusable(layers):
            return APART
        pair = pair_of(layers, n_rows)
        problem = layers[0].problem(self.name, self.version, "mlp", n_rows)
        heuristic = mlp_cost.by_cost(pair)[0]
        tiles = configure(problem, heuristic)
        return tiles if tiles == APART or tiles.covers(pair) else heuristic

    def _multiply(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: KeptBlocks,
        layer: SparseLayer,
        *,
        transposed: bool,
        with_gelu: bool = False,
    ) -> Float[Array, "..."]:
        x = jnp.moveaxis(x, layer.axis, -1)
        rows, capability = x.reshape(-1, x.shape[-1]), self._capability()
        if capability.startswith(AMPERE):
            memory_bytes = shared_memory_bytes(capability)
            multiply = functools.partial(ampere_products.multiply, memory_bytes=memory_bytes)
        else:
            method = "input_gradient" if transposed else "product"
            problem = layer.problem(self.name, self.version, method, rows.shape[0])
            product = product_of(layer, rows.shape[0], transposed=transposed)
            multiply = functools.partial(
                products.multiply, tiles=configure(problem, tiles_of(product))
            )
        y = multiply(
            rows,
            kernel,
            bias,
            kept,
            layer,
            transposed=transposed,
            with_gelu=with_gelu,
            interpret=self.interpret,
        )
        return jnp.moveaxis(y.reshape(*x.shape[:-1], y.shape[-1]), -1, layer.axis)

    def _capability(self) -> str:
        """That of the GPU whose kernels are taken; of a Hopper where there is no GPU."""
        return self.capability or getattr(jax.devices()[0], "compute_capability", HOPPER)
