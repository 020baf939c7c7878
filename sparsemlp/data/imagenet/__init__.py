"""Image sets too large for memory, decoded by worker processes while the device computes."""

from sparsemlp.data.imagenet.image_set import ImageSet, open_image_set
from sparsemlp.data.imagenet.loading import ImageSource
from sparsemlp.data.imagenet.pipeline import Batch, Pipeline
from sparsemlp.data.imagenet.pipelines import training_pipeline, validation_pipeline
from sparsemlp.data.imagenet.subset import hold_out_images

__all__ = [
    "Batch",
    "ImageSet",
    "ImageSource",
    "Pipeline",
    "hold_out_images",
    "open_image_set",
    "training_pipeline",
    "validation_pipeline",
]
