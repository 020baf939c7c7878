"""Which layers the kernels can compute on which GPU, and why not others."""

import math

import jax

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.ampere import shared_memory_bytes
from pallas_kernels.mosaic.ampere_product_tiles import fits
from pallas_kernels.precision import in_tf32
from pallas_kernels.sparse_layer import SparseLayer

DTYPES = ("float32", "bfloat16")
SIDES = (16, 32, 64, 128)
"""Sides of blocks: of one step of tensor cores at least, and at most what registers hold."""
HOPPER = "9.0"
"""Compute capability of the GPUs that have `wgmma`; later ones have others in its place."""
AMPERE = "8."
"""What that of GPUs begins with whose kernels copy by `cp.async` and multiply by `mma.sync`."""


def reason_against(
    layer: SparseLayer, platform: str, capability: str, *, interpret: bool
) -> str | None:
    """Why the kernels cannot compute a layer; None if they can.

    Args:
      layer: the layer.
      platform: that JAX computes on.
      capability: compute capability of the GPU whose kernels are taken.
      interpret: whether they are interpreted, on any platform.
    """
    if platform != "gpu" and not interpret:
        return (
            f"it is for NVIDIA GPUs and the platform is {platform!r}; where there is one, "
            "pip install -e '.[cuda13]' makes JAX use it"
        )
    if layer.dtype not in DTYPES:
        return f"it computes {' and '.join(DTYPES)}, not {layer.dtype}"
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
    if layer.dtype == "float32" and not in_tf32() and not interpret:
        return (
            "it multiplies float32 in TF32, and jax_default_matmul_precision is "
            f"{jax.config.jax_default_matmul_precision!r}: engine 'triton' goes by that"
        )
    return launch.missing(interpret)
