"""Image classification data as uint8 arrays in memory, with a data set that needs no network."""

from sparsemlp.data.dataset import ImageDataset, hold_out
from sparsemlp.data.load import load_dataset

__all__ = ["ImageDataset", "hold_out", "load_dataset"]
