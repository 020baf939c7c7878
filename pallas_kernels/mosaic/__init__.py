"""Engine `mosaic`: block-skipping products on Hopper GPUs, Pallas kernels compiled by Mosaic."""

from pallas_kernels.mosaic.engine import Mosaic

__all__ = ["Mosaic"]
