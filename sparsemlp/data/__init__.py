"""Image classification data as uint8 arrays in memory, with a data set that needs no network."""

from sparsemlp.data.dataset import ImageDataset
from sparsemlp.data.load import load_dataset

__all__ = ["ImageDataset", "load_dataset"]
