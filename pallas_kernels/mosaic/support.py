"""Which layers the kernels can compute on which GPU, and why not others."""

import jax

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.ampere import shared_memory_bytes
from pallas_kernels.mosaic.ampere_product_tiles import fits
from pallas_kernels.precision import in_tf32
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.tensor_cores import reason_against_blocks, reason_against_platform

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
    reason = reason_against_platform(layer, platform, interpret=interpret)
    if reason is not None:
        return reason
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
    reason = reason_against_blocks(layer)
    if reason is not None:
        return reason
    rows, cols = layer.block
    if layer.is_masked and is_ampere and not fits(layer.block, shared_memory_bytes(capability)):
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
