"""Engine `triton`: block-skipping products on NVIDIA GPUs, Pallas kernels compiled by Triton."""

from pallas_kernels.triton.engine import Triton

__all__ = ["Triton"]
