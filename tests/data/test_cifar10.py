"""CIFAR-10 is read bit for bit, in either file format, and damage is one clear line."""

import io
import json
import shutil
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sparsemlp.data import cifar10
from sparsemlp.data.cifar10 import is_prepared, prepared_folder, read_cifar10
from sparsemlp.data.tfrecord import read_tfrecord
from sparsemlp.errors import InputError


@pytest.fixture
def copied(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path / "copied")
    return tmp_path / "copied"


def test_every_image_is_read_bit_for_bit(prepared: Path, cifar: SimpleNamespace):
    dataset = read_cifar10(prepared)
    for split, images, labels in (
        ("train", dataset.train_images, dataset.train_labels),
        ("test", dataset.test_images, dataset.test_labels),
    ):
        assert labels.dtype == np.int32
        original = {
            (image.tobytes(), int(label))
            for image, label in zip(cifar.images[split], cifar.labels[split], strict=True)
        }
        read = {(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)}
        assert len(images) == len(cifar.images[split])
        assert read == original


def test_normalisation_is_the_published_one(prepared: Path):
    dataset = read_cifar10(prepared)
    assert dataset.mean == (0.4914, 0.4822, 0.4465)
    assert dataset.std == (0.2470, 0.2435, 0.2616)
    assert (dataset.name, dataset.source, dataset.n_classes) == ("cifar10", "cifar10", 10)


def test_reading_prints_nothing(prepared: Path, capfd: pytest.CaptureFixture[str]):
    read_cifar10(prepared)
    assert capfd.readouterr() == ("", "")


def write_tfrecords(data_dir: Path, image_format: str) -> None:
    """Rewrites a prepared folder as TFDS does with TensorFlow, in its order."""
    import tensorflow_datasets as tfds

    source: Any = tfds.data_source("cifar10", data_dir=data_dir)
    folder = prepared_folder(data_dir)
    features: Any = tfds.builder("cifar10", data_dir=data_dir).info.features
    for split in ("train", "test"):
        with (folder / f"cifar10-{split}.tfrecord-00000-of-00001").open("wb") as file:
            for example in source[split]:
                encoded = io.BytesIO()
                Image.fromarray(example["image"]).save(encoded, image_format)
                data = features.serialize_example(
                    features.encode_example({**example, "image": encoded.getvalue()})
                )
                file.write(struct.pack("<QI", len(data), zlib.crc32(b"")) + data + b"\0\0\0\0")
        (folder / f"cifar10-{split}.array_record-00000-of-00001").unlink()
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))


def test_the_file_format_does_not_change_what_is_read(prepared: Path, copied: Path):
    write_tfrecords(copied, "PNG")
    first, second = read_cifar10(prepared), read_cifar10(copied)
    np.testing.assert_array_equal(first.train_images, second.train_images)
    np.testing.assert_array_equal(first.test_labels, second.test_labels)
    assert second.source == "cifar10"


def test_a_jpeg_transcode_is_called_so(copied: Path):
    write_tfrecords(copied, "JPEG")
    dataset = read_cifar10(copied)
    assert dataset.name == "cifar10"
    assert dataset.source == "cifar10 (JPEG transcode)"


def test_only_a_finished_preparation_counts(prepared: Path, copied: Path, tmp_path: Path):
    assert is_prepared(prepared)
    assert not is_prepared(tmp_path)
    (prepared_folder(copied) / "dataset_info.json").unlink()
    assert not is_prepared(copied)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "flipped", "info"])
def test_damaged_files_are_an_input_error(copied: Path, damage: str):
    records = prepared_folder(copied) / "cifar10-train.array_record-00000-of-00001"
    content = records.read_bytes()
    match damage:
        case "missing":
            records.unlink()
        case "empty":
            records.write_bytes(b"")
        case "truncated":
            records.write_bytes(content[: len(content) // 2])
        case "flipped":
            middle = len(content.rstrip(b"\0")) // 3
            records.write_bytes(content[:middle] + bytes(50) + content[middle + 50 :])
        case "info":
            (prepared_folder(copied) / "dataset_info.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot be read \(.*delete that folder") as raised:
        read_cifar10(copied)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kept", [0, 0.5])
def test_a_file_that_ends_between_two_records_is_an_input_error(copied: Path, kept: float):
    """As a copy that was cut short may: nothing inside it is damaged."""
    write_tfrecords(copied, "PNG")
    path = prepared_folder(copied) / "cifar10-train.tfrecord-00000-of-00001"
    records = list(read_tfrecord(path))
    n_kept = int(kept * len(records))
    framed = sum(len(record) + 16 for record in records[:n_kept])
    path.write_bytes(path.read_bytes()[:framed])
    said = f"split train has {n_kept} examples, not {len(records)} as dataset_info.json says"
    with pytest.raises(InputError, match=said):
        read_cifar10(copied)


def test_images_of_another_size_are_an_input_error(prepared: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cifar10, "IMAGE_SIZE", 28)
    with pytest.raises(InputError, match=r"\(32, 32\) RGB"):
        read_cifar10(prepared)


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_that_no_class_has_is_refused(label):
    with pytest.raises(ValueError, match=r"not all in 0\.\.9"):
        cifar10._labels([{"label": 9}, {"label": label}])


def test_a_grey_image_is_refused():
    file = io.BytesIO()
    Image.new("L", (32, 32)).save(file, "PNG")
    with pytest.raises(ValueError, match=r"image 0 is \(32, 32\) L, not 32x32 RGB"):
        cifar10._decode([{"image": file.getvalue()}])
