"""Image sets too large for memory, decoded by worker processes while the device computes."""

from sparsemlp.data.imagenet.image_set import ImageSet, open_image_set
from sparsemlp.data.imagenet.pipeline import Batch, Pipeline
from sparsemlp.data.imagenet.pipelines import training_pipeline, validation_pipeline

__all__ = [
    "Batch",
    "ImageSet",
    "Pipeline",
    "open_image_set",
    "training_pipeline",
    "validation_pipeline",
]
