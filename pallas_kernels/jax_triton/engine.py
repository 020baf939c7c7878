"""Engine `jax-triton`: the way that is announced for when JAX no longer lowers Pallas to Triton.

The forward product and the gradient of the input are kernels in the Triton language, which
`jax_triton.triton_call` compiles; all else is engine `triton`'s.
"""

import functools
import importlib.metadata
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.device_table import Problem
from pallas_kernels.jax_triton import products
from pallas_kernels.lists import KeptBlocks
from pallas_kernels.precision import PRECISIONS
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.triton import Triton


class JaxTriton(Triton):
    """Computes forward products and input gradients by jax-triton, the rest as `Triton`.

    It was right on an H200 (JAX 0.11.2, jax-triton 0.3.1) and is not timed yet: `auto` leaves it
    out. Under `jax.shard_map` it needs `check_vma=False`, as jax-triton does not say what varies;
    `jax.vmap` runs one call after another.

    Attributes:
      compute_capability: of the GPU that kernels are compiled for, as 80 or 90; None for that of
        the device at hand.
    """

    name = products.NAME

    def __init__(self, compute_capability: int | None = None) -> None:
        super().__init__()
        self.compute_capability = compute_capability

    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        """Why not: what `Triton` says, a precision, or jax-triton is missing or fails with JAX."""
        precision = jax.config.jax_default_matmul_precision
        if layer.dtype == "float32" and precision not in PRECISIONS:
            known = ", ".join(repr(name) for name in PRECISIONS if name)
            return (
                f"it does not multiply float32 with jax_default_matmul_precision={precision!r}: "
                f"choose one of {known}, or engine 'triton'"
            )
        return super().reason_against(layer, platform) or missing()

    def configurations(self, problem: Problem) -> list[Any]:
        """Those of its own kernels; the others are cut as `Triton` cuts them."""
        own = problem.kernel in ("product", "input_gradient")
        return super().configurations(problem) if own else []

    def product(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: KeptBlocks,
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`y = x (W * M) + b`."""
        if not x.size:
            return super().product(x, kernel, bias, kept, layer)
        return products.multiply(
            x,
            kernel,
            bias,
            kept,
            layer,
            transposed=False,
            compute_capability=self.compute_capability,
        )

    def input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: KeptBlocks,
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`dx = dy (W * M)^T`."""
        if not dy.size:
            return super().input_gradient(dy, kernel, kept, layer)
        return products.multiply(
            dy,
            kernel,
            None,
            kept,
            layer,
            transposed=True,
            compute_capability=self.compute_capability,
        )


@functools.cache
def missing() -> str | None:
    """Why jax-triton cannot be used with the installed JAX, and the way out; None if it can.

    Asks by lowering a small product: releases of jax-triton fit some releases of JAX, and which
    they do not say.
    """
    with warnings.catch_warnings():
        # Importing jax-triton leaves files open.
        warnings.simplefilter("ignore")
        try:
            import jax_triton  # noqa: F401
        except Exception as error:
            return (
                f"jax-triton cannot be imported ({type(error).__name__}: {_line(error)}): "
                "pip install -e '.[triton]'"
            )
        try:
            _lower_one()
        except Exception as error:
            found = importlib.metadata.version("jax-triton")
            return (
                f"jax-triton {found} fails with JAX {jax.__version__} ({type(error).__name__}: "
                f"{_line(error)}): pip install 'jax==0.11.2' 'jax-triton==0.3.1', or choose engine "
                "'triton'"
            )
    return None


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _lower_one() -> None:
    """Lowers a product that a checkpoint computes again, which has dead code to be eliminated."""
    layer = SparseLayer((32, 32), (16, 16), 2, -1, "float32")

    @jax.checkpoint
    def loss(factor: Array, x: Array, kernel: Array, kept: Array) -> Array:
        y = products.multiply(x, kernel, None, kept, layer, transposed=False, compute_capability=80)
        return jnp.sum(jnp.sin(factor * y))

    shapes = (
        ((), jnp.float32),
        ((16, 32), jnp.float32),
        ((32, 32), jnp.float32),
        ((2,), jnp.int32),
    )
    arrays = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    jax.jit(jax.grad(loss)).trace(*arrays).lower(lowering_platforms=("cuda",))
