"""What tensor cores of NVIDIA GPUs take of a layer, whichever engine programs them."""

from pallas_kernels.sparse_layer import SparseLayer

DTYPES = ("float32", "bfloat16")
SIDES = (16, 32, 64, 128)
"""Sides of blocks: of one step of tensor cores at least, powers of two, and at most what registers
hold."""


def reason_against_platform(layer: SparseLayer, platform: str, *, interpret: bool) -> str | None:
    """Why kernels for GPUs cannot compute a layer of this dtype on this platform; None if they can.

    Args:
      layer: the layer.
      platform: that JAX computes on.
      interpret: whether kernels are interpreted, on any platform.
    """
    if platform != "gpu" and not interpret:
        return (
            f"it is for NVIDIA GPUs and the platform is {platform!r}; where there is one, "
            "pip install -e '.[cuda13]' makes JAX use it"
        )
    if layer.dtype not in DTYPES:
        return f"it computes {' and '.join(DTYPES)}, not {layer.dtype}"
    return None


def reason_against_blocks(layer: SparseLayer) -> str | None:
    """Why tensor cores cannot multiply the blocks of a layer; None if they can, or all are kept."""
    if not layer.is_masked or set(layer.block) <= set(SIDES):
        return None
    sides, (rows, cols) = ", ".join(map(str, SIDES)), layer.block
    return f"sides of blocks have to be of {sides}, not {rows}x{cols}"
