"""Engine `mosaic`: Pallas kernels for Hopper GPUs that load the kept blocks and no others."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.engine import Engine, SparseLayer
from pallas_kernels.mosaic import gradient, launch, products
from pallas_kernels.reference import Reference

DTYPES = ("float32", "bfloat16")
SIDES = (16, 32, 64, 128)
"""Sides of blocks: of one step of tensor cores at least, and at most what registers hold."""
CAPABILITY = "9.0"
"""Of the GPUs that have the instructions: Hopper; later ones have others in their place."""
_TF32 = (None, "default", "fastest", "tensorfloat32", "bfloat16", "TF32_TF32_F32")
_REFERENCE = Reference()


class Mosaic(Engine):
    """Computes the products of kept blocks by warpgroups; sums are taken in float32.

    Float32 operands are multiplied in TF32, whose 10 bits tensor cores take by cutting off the
    rest; where `jax_default_matmul_precision` asks for more, this engine declines. Along the tokens
    XLA transposes x, dy and the results, so that features lie side by side. Nothing was measured on
    a GPU yet: `auto` leaves this engine out.

    Attributes:
      interpret: whether JAX interprets the kernels, on any platform, instead of compiling them, and
        looks for races: for tests.
    """

    name = "mosaic"
    measured = False

    def __init__(self, interpret: bool = False) -> None:
        self.interpret = interpret

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
        is_masked = layer.n_kept * math.prod(layer.block) < math.prod(layer.kernel_shape)
        if is_masked and not set(layer.block) <= set(SIDES):
            sides, (rows, cols) = ", ".join(map(str, SIDES)), layer.block
            return f"sides of blocks have to be of {sides}, not {rows}x{cols}"
        precision = jax.config.jax_default_matmul_precision
        if layer.dtype == "float32" and precision not in _TF32 and not self.interpret:
            return (
                "it multiplies float32 in TF32, and jax_default_matmul_precision is "
                f"{precision!r}: engine 'triton' goes by that"
            )
        capability = getattr(jax.devices()[0], "compute_capability", CAPABILITY)
        if not self.interpret and capability != CAPABILITY:
            return (
                f"it is for GPUs of compute capability {CAPABILITY} (Hopper), not {capability}: "
                "engine 'triton' is for others too"
            )
        return launch.missing(self.interpret)

    def product(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`y = x (W * M) + b`."""
        if not x.size:
            return _REFERENCE.product(x, kernel, bias, kept, layer)
        return self._multiply(x, kernel, bias, kept, layer, transposed=False)

    def input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`dx = dy (W * M)^T`."""
        if not dy.size:
            return _REFERENCE.input_gradient(dy, kernel, kept, layer)
        return self._multiply(dy, kernel, None, kept, layer, transposed=True)

    def kernel_gradient(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "in out"]:
        """`dW = (x^T dy) * M`, exactly zero in dropped blocks."""
        if not x.size:
            return _REFERENCE.kernel_gradient(x, dy, kept, layer)
        x, dy = (jnp.moveaxis(a, layer.axis, -1) for a in (x, dy))
        x, dy = (a.reshape(-1, a.shape[-1]) for a in (x, dy))
        return gradient.kernel_gradient(x, dy, kept, layer, interpret=self.interpret)

    def _multiply(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: Int[Array, " k"],
        layer: SparseLayer,
        *,
        transposed: bool,
    ) -> Float[Array, "..."]:
        x = jnp.moveaxis(x, layer.axis, -1)
        y = products.multiply(
            x.reshape(-1, x.shape[-1]),
            kernel,
            bias,
            kept,
            layer,
            transposed=transposed,
            interpret=self.interpret,
        )
        return jnp.moveaxis(y.reshape(*x.shape[:-1], y.shape[-1]), -1, layer.axis)
