"""A tiny image set on the disk, as a plain folder and as TFDS writes it."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ("n01", "n02", "n03")
PER_CLASS = {"train": (9, 8, 6), "val": (3, 5, 3)}


def pixels(number: int, height: int = 30, width: int = 40) -> np.ndarray:
    """An image whose colours change smoothly and tell its number."""
    y, x = np.mgrid[:height, :width]
    red = 255 * x / width
    green = 255 * y / height
    return np.stack([red, green, np.full_like(red, 40 * number % 256)], -1).astype(np.uint8)


def encoded(image: np.ndarray, image_format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, image_format, **options)
    return file.getvalue()


def write_folder(root: Path) -> Path:
    for split, counts in PER_CLASS.items():
        for name, count in zip(CLASSES, counts, strict=True):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                shape = (30 + number, 40 + 2 * number)
                path = root / split / name / f"{name}_{number:04d}.JPEG"
                path.write_bytes(encoded(pixels(number, *shape)))
    return root


def write_tfds(data_dir: Path, splits: dict[str, list[dict[str, Any]]], **features: Any) -> Path:
    """Writes examples with encoded images as TFDS does, without TensorFlow."""
    import tensorflow_datasets as tfds

    class TinyImagenet(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """A labelled image set of test images."""

        VERSION = tfds.core.Version("1.0.0")
        name = "tiny_imagenet"

        def _info(self) -> Any:
            described = {
                "image": tfds.features.Image(encoding_format="jpeg"),
                "label": tfds.features.ClassLabel(names=list(CLASSES)),
                "file_name": tfds.features.Text(),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(described | features)
            )

        def _split_generators(self, dl_manager: object) -> Any:
            del dl_manager
            return {split: enumerate(examples) for split, examples in splits.items()}

        def _generate_examples(self) -> Any:
            raise NotImplementedError

    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        TinyImagenet(data_dir=data_dir, file_format="array_record").download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
    return data_dir


def examples(split: str) -> list[dict[str, Any]]:
    """The images of `write_folder` as examples."""
    return [
        {
            "image": encoded(pixels(number, 30 + number, 40 + 2 * number)),
            "label": label,
            "file_name": f"{CLASSES[label]}_{number:04d}.JPEG",
        }
        for label, count in enumerate(PER_CLASS[split])
        for number in range(count)
    ]
