"""Engine `mosaic`: Pallas kernels for Hopper and Ampere that load the kept blocks and no others."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import apart
from pallas_kernels.device_table import Problem
from pallas_kernels.engine import Engine
from pallas_kernels.lists import KeptBlocks, ids_of
from pallas_kernels.mosaic import (
    ampere_gradient,
    ampere_products,
    hidden,
    hopper,
    search_space,
    support,
)
from pallas_kernels.mosaic.ampere import shared_memory_bytes
from pallas_kernels.mosaic.support import AMPERE, HOPPER
from pallas_kernels.reference import Reference
from pallas_kernels.sparse_layer import SparseLayer, Weights

_REFERENCE = Reference()


class Mosaic(Engine):
    """Computes the products of kept blocks by warpgroups; sums are taken in float32.

    Hopper has kernels of its own; those of Ampere (and of Ada, compute capability 8.9) compute
    bfloat16 alone, the one dtype of ours that JAX multiplies there. Float32 operands are multiplied
    in TF32, whose 10 bits tensor cores take by cutting off the rest; where
    `jax_default_matmul_precision` asks for more, this engine declines. Along the tokens XLA
    transposes x, dy and the results, so that features lie side by side. `auto` takes this engine
    where a table of the GPU says that it pays.

    Attributes:
      interpret: whether JAX interprets the kernels, on any platform, instead of compiling them, and
        looks for races: for tests.
      capability: compute capability of the GPU whose kernels are taken, as `8.0`; None: of the
        device that JAX computes on.
    """

    name = hopper.ENGINE
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
        return support.reason_against(layer, platform, self._capability(), interpret=self.interpret)

    def configurations(self, problem: Problem) -> list[Any]:
        """The shortest time on paper first; none on Ampere, whose cuts are fixed."""
        if self._on_ampere():
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
        by = ampere_gradient if self._on_ampere() else hopper
        x, dy = _rows(x, layer), _rows(dy, layer)
        return by.kernel_gradient(x, dy, kept, layer, interpret=self.interpret)

    def parameter_gradients(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: KeptBlocks,
        layer: SparseLayer,
    ) -> tuple[Float[Array, "in out"], Float[Array, " out"]]:
        """`dW = (x^T dy) * M` and `db`: on Hopper by one kernel where that is so cut."""
        found = None
        if x.size and kept.size and not self._on_ampere():
            rows = _rows(x, layer), _rows(dy, layer)
            found = hopper.parameter_gradients(*rows, kept, layer, interpret=self.interpret)
        return super().parameter_gradients(x, dy, kept, layer) if found is None else found

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
        if not self._on_ampere():
            rows = x.reshape(-1, x.shape[-1])
            fused = hopper.fused_mlp(
                rows, weights, layers, residual=residual, interpret=self.interpret
            )
            if fused is not None:
                return fused.reshape(x.shape)
        kernel, bias, kept = weights[0]
        units = self._multiply(x, kernel, bias, kept, layers[0], transposed=False, with_gelu=True)
        y = self.product(units, *weights[1], layers[1])
        return x + y if residual else y

    def mlp_gradients(
        self,
        x: Float[Array, "*batch in"],
        dy: Float[Array, "*batch out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
        residual: bool,
    ) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
        """The gradients of x and of both layers; the hidden units are computed again from x.

        On Hopper one kernel gives them and their gradient, where that costs less on paper or was
        measured to; else there are two products, the second of which reads the result of the first
        and computes GELU. Then the hidden units are rounded to their dtype before GELU too, which
        the forward pass spares them.
        """
        shape, width = x.shape, dy.shape[-1]
        x, dy = x.reshape(-1, shape[-1]), dy.reshape(-1, width)
        units = self._hidden_units(x, dy, weights, layers)
        dx, gradients = apart.gradients(self, x, dy, units, weights, layers, residual)
        return dx.reshape(shape), gradients

    def _hidden_units(
        self,
        x: Float[Array, "rows in"],
        dy: Float[Array, "rows out"],
        weights: tuple[Weights, Weights],
        layers: tuple[SparseLayer, SparseLayer],
    ) -> tuple[Float[Array, "rows units"], Float[Array, "rows units"]]:
        """Hidden units after GELU, and the gradient before it."""
        if x.size and not self._on_ampere():
            return hopper.hidden_units(x, dy, weights, layers, interpret=self.interpret)
        (w1, b1, kept1), (w2, _, kept2) = weights
        before = self.product(x, w1, b1, kept1, layers[0])
        return hidden.through_gelu(before, self.input_gradient(dy, w2, kept2, layers[1]))

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
        rows, multiply = x.reshape(-1, x.shape[-1]), hopper.multiply
        if self._on_ampere():
            memory_bytes = shared_memory_bytes(self._capability())
            multiply = functools.partial(ampere_products.multiply, memory_bytes=memory_bytes)
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

    def _on_ampere(self) -> bool:
        return self._capability().startswith(AMPERE)

    def _capability(self) -> str:
        """That of the GPU whose kernels are taken; of a Hopper where there is no GPU."""
        return self.capability or getattr(jax.devices()[0], "compute_capability", HOPPER)


def _rows(a: Float[Array, "..."], layer: SparseLayer) -> Float[Array, "rows features"]:
    """An operand with its features side by side."""
    a = jnp.moveaxis(a, layer.axis, -1)
    return a.reshape(-1, a.shape[-1])
