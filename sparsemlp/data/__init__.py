"""Image classification data: small sets in memory, large ones decoded while they are used."""

from sparsemlp.data.dataset import ImageDataset, hold_out
from sparsemlp.data.imagenet.image_set import names_folder
from sparsemlp.data.load import load_dataset
from sparsemlp.data.named import OUTLINES, DataSets, LabelledImages, is_streamed, load_images

__all__ = [
    "OUTLINES",
    "DataSets",
    "ImageDataset",
    "LabelledImages",
    "hold_out",
    "is_streamed",
    "load_dataset",
    "load_images",
    "names_folder",
]
