"""CIFAR-10 as TensorFlow Datasets (TFDS) prepares it, read without TensorFlow."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image

from sparsemlp.data.dataset import ImageDataset
from sparsemlp.data.tfrecord import read_tfrecord
from sparsemlp.errors import InputError, in_a_line

VERSION = "3.0.2"
IMAGE_SIZE = 32
N_CLASSES = 10
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2470, 0.2435, 0.2616)
_JPEG_START = b"\xff\xd8"


def prepared_folder(data_dir: Path) -> Path:
    """The folder in which TFDS keeps CIFAR-10 below its `data_dir`."""
    return data_dir / "cifar10" / VERSION


def is_prepared(data_dir: Path) -> bool:
    """Whether a finished preparation of CIFAR-10 lies in `data_dir`.

    TFDS writes into a folder of another name and renames it at the end, so that an interrupted
    preparation never counts.
    """
    return (prepared_folder(data_dir) / "dataset_info.json").is_file()


def read_cifar10(data_dir: Path) -> ImageDataset:
    """Reads and decodes a prepared CIFAR-10, in the order of TFDS.

    Args:
      data_dir: A TFDS `data_dir` for which `is_prepared` holds, written as array_record (as
        this library does) or as TFRecord (as TFDS does with TensorFlow).

    Returns:
      All images, uint8 [n, 32, 32, 3]; mean and standard deviation are the published ones.
      `source` says so where the records are not the original pixels but JPEG images.

    Raises:
      InputError: The files are damaged or do not hold CIFAR-10.
    """
    import tensorflow_datasets as tfds

    try:
        builder: Any = tfds.builder(f"cifar10:{VERSION}", data_dir=data_dir)
        train = _records(builder, "train")
        test = _records(builder, "test")
        train_images, test_images = _decode(train), _decode(test)
        train_labels, test_labels = _labels(train), _labels(test)
    # TFDS, array_record, protobuf and Pillow each report damage in classes of their own.
    except Exception as error:
        reason = in_a_line(error)
        raise InputError(
            f"CIFAR-10 in {prepared_folder(data_dir)} cannot be read ({reason}): "
            "delete that folder to prepare it anew, or pass another --data-dir"
        ) from error
    is_jpeg = any(record["image"].startswith(_JPEG_START) for record in (*train, *test))
    return ImageDataset(
        name="cifar10",
        source="cifar10 (JPEG transcode)" if is_jpeg else "cifar10",
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        n_classes=N_CLASSES,
        mean=_MEAN,
        std=_STD,
    )


def _records(builder: Any, split: str) -> list[dict[str, Any]]:
    """The examples of a split, with the encoded `image` as bytes and the `label` as int.

    A file that ends early between two of them shows only by how many there are.
    """
    records = list(_stored(builder, split))
    n_examples = builder.info.splits[split].num_examples
    if len(records) != n_examples:
        raise ValueError(
            f"split {split} has {len(records)} examples, not {n_examples} as dataset_info.json says"
        )
    return records


def _stored(builder: Any, split: str) -> Iterable[dict[str, Any]]:
    import tensorflow_datasets as tfds

    decoders = {"image": tfds.decode.SkipDecoding()}
    if builder.info.file_format is tfds.core.FileFormat.TFRECORD:
        return (
            builder.info.features.deserialize_example_np(record, decoders=decoders)
            for path in builder.info.splits[split].filepaths
            for record in read_tfrecord(path)
        )
    source = builder.as_data_source(split, decoders=decoders)
    return source.__getitems__(range(len(source)))


def _decode(records: list[dict[str, Any]]) -> UInt8[np.ndarray, "n 32 32 3"]:
    images = np.empty((len(records), IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    # One thread: at this size Pillow holds the interpreter lock nearly all the time.
    for index, record in enumerate(records):
        with Image.open(io.BytesIO(record["image"])) as image:
            if image.size != (IMAGE_SIZE, IMAGE_SIZE) or image.mode != "RGB":
                raise ValueError(f"image {index} is {image.size} {image.mode}, not 32x32 RGB")
            images[index] = np.asarray(image)
    return images


def _labels(records: list[dict[str, Any]]) -> Int32[np.ndarray, " n"]:
    labels = np.asarray([record["label"] for record in records], np.int32)
    if not len(labels) or labels.min() < 0 or labels.max() >= N_CLASSES:
        raise ValueError(f"its labels are not all in 0..{N_CLASSES - 1}, or there are none")
    return labels
