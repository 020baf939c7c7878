"""Engine `mosaic`: block-skipping products on Hopper and Ampere, Pallas kernels for Mosaic GPU."""

from pallas_kernels.mosaic.engine import Mosaic

__all__ = ["Mosaic"]
