"""The tiny image set, as a plain folder and as TFDS writes it, and with damage."""

from pathlib import Path

import pytest
from tiny_images import PER_CLASS, examples, write_folder, write_tfds


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 training and 11 validation images in 3 classes; read it only."""
    return write_folder(tmp_path_factory.mktemp("imagenet") / "tiny")


@pytest.fixture(scope="session")
def tfds_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images as TFDS `tiny_imagenet`; read it only."""
    splits = {"train": examples("train"), "validation": examples("val")}
    return write_tfds(tmp_path_factory.mktemp("tfds"), splits)


@pytest.fixture
def damaged_folder(tmp_path: Path) -> Path:
    """The folder with one unreadable image in each class of both splits, all of other kinds."""
    root = write_folder(tmp_path / "damaged")
    for split in PER_CLASS:
        whole = (root / split / "n01" / "n01_0000.JPEG").read_bytes()
        (root / split / "n01" / "n01_0001.JPEG").write_bytes(whole[: len(whole) // 2])
        (root / split / "n02" / "n02_0002.JPEG").write_text("no image at all")
        (root / split / "n03" / "n03_0000.JPEG").write_bytes(b"")
    return root
