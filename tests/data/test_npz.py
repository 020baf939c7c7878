"""An `.npz` image set is loaded as saved; every broken rule is one clear line."""

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsemlp.data.npz import load_npz
from sparsemlp.errors import InputError


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    plain = {
        "train_images": rng.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": rng.integers(0, 256, (2, 5, 4, 3), dtype=np.uint8),
        "test_labels": np.array([2, 0]),
    }
    return {key: value for key, value in (plain | changes).items() if value is not None}


def saved(folder: Path, **changes: Any) -> Path:
    path = folder / "shapes.npz"
    np.savez(path, **arrays(**changes))
    return path


def test_what_was_saved_is_loaded(tmp_path: Path):
    expected = arrays()
    dataset = load_npz(saved(tmp_path))
    for key, value in expected.items():
        np.testing.assert_array_equal(getattr(dataset, key), value)
    assert (dataset.name, dataset.source, dataset.n_classes) == ("shapes", "shapes.npz", 3)
    np.testing.assert_allclose(dataset.mean, (expected["train_images"] / 255).mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(dataset.std, (expected["train_images"] / 255).std(axis=(0, 1, 2)))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.uint64])
def test_integer_labels_of_any_width_become_int32(tmp_path: Path, dtype: type):
    labels = arrays()["train_labels"].astype(dtype)
    assert load_npz(saved(tmp_path, train_labels=labels)).train_labels.dtype == np.int32


def test_grey_images_get_a_channel_axis(tmp_path: Path):
    grey = {key: arrays()[key][..., 0] for key in ("train_images", "test_images")}
    dataset = load_npz(saved(tmp_path, **grey))
    assert dataset.train_images.shape == (6, 5, 4, 1)
    assert len(dataset.mean) == len(dataset.std) == 1


def test_n_classes_may_exceed_the_labels_seen_in_training(tmp_path: Path):
    dataset = load_npz(saved(tmp_path, n_classes=10, test_labels=np.array([9, 0])))
    assert dataset.n_classes == 10


def test_classes_without_a_training_image_are_noticed(tmp_path: Path):
    assert load_npz(saved(tmp_path)).notice is None
    dataset = load_npz(saved(tmp_path, train_labels=np.array([0, 5, 2, 0, 5, 2])))
    assert dataset.notice is not None
    assert "no training image of 3 of its 6 classes: renumber" in dataset.notice


BROKEN = {
    "train_labels lacking": ({"train_labels": None}, "lacks train_labels"),
    "float images": (
        {"train_images": np.zeros((6, 5, 4, 3), np.float32)},
        r"float32.*uint8.*round\(255 \* train_images\)",
    ),
    "integer images": (
        {"test_images": np.zeros((2, 5, 4, 3), np.int64)},
        r"of pixels in 0..255 store test_images.astype\('uint8'\)",
    ),
    "channels first": (
        {"train_images": np.zeros((6, 3, 5, 5), np.uint8)},
        r"channels first.*train_images.transpose\(0, 2, 3, 1\)",
    ),
    "names as labels": (
        {"train_labels": np.array(list("abcabc"))},
        r"alike in both sets, e.g. numpy.searchsorted\(names, train_labels\), of names = ",
    ),
    "five axes": ({"train_images": np.zeros((6, 1, 5, 4, 3), np.uint8)}, r"\[6, 1, 5, 4, 3\]"),
    "two axes": ({"train_images": np.zeros((6, 5), np.uint8)}, r"\[6, 5\]"),
    "no images": (
        {"train_images": np.zeros((0, 5, 4, 3), np.uint8), "train_labels": np.zeros(0, int)},
        "must not be empty",
    ),
    "other channels": (
        {"test_images": np.zeros((3, 5, 4), np.uint8), "test_labels": np.arange(3)},
        "5x4x3 but test_images are 5x4x1",
    ),
    "a class too many": (
        {"train_labels": np.array([0, 1, 2, 0, 1, 999])},
        "train_labels holds 999, more classes than the 6 training",
    ),
    "no test images": (
        {"test_images": np.zeros((0, 5, 4, 3), np.uint8), "test_labels": np.zeros(0, int)},
        "must not be empty",
    ),
    "no pixels": ({"train_images": np.zeros((6, 0, 4, 3), np.uint8)}, "must not be empty"),
    "two image sizes": ({"test_images": np.zeros((2, 9, 9, 3), np.uint8)}, "5x4x3.*9x9x3"),
    "float labels": ({"train_labels": np.zeros(6)}, "train_labels is float64"),
    "bool labels": ({"train_labels": np.zeros(6, bool)}, "train_labels is bool"),
    "one-hot labels": (
        {"train_labels": np.zeros((6, 3), int)},
        r"\[6, 3\].*train_labels.argmax\(axis=1\)",
    ),
    "a column of labels": ({"train_labels": np.zeros((6, 1), int)}, r"reshape\(-1\)"),
    "too few labels": (
        {"test_labels": np.array([1])},
        "each of the 2 images: store the label of each image",
    ),
    "negative label": ({"train_labels": np.array([0, 1, 2, 0, -1, 2])}, "holds -1"),
    "negative test label": ({"test_labels": np.array([-7, 0])}, "test_labels holds -7"),
    "huge label": ({"train_labels": np.full(6, 2**40)}, "holds 1099511627776"),
    "test label outside": ({"test_labels": np.array([3, 0])}, "test_labels holds 3.*3 classes"),
    "train label outside": ({"n_classes": 2}, "train_labels holds 2.*2 classes"),
    "n_classes 0": ({"n_classes": 0}, "n_classes is"),
    "n_classes float": ({"n_classes": 3.0}, "n_classes is"),
    "n_classes a list": ({"n_classes": [3, 3]}, "n_classes is"),
    "pickled objects": ({"train_images": np.array([{}, {}], object)}, "cannot be read"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_named_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str):
    path = saved(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as raised:
        load_npz(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_members_that_are_no_arrays_are_named(tmp_path: Path):
    path = saved(tmp_path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("n_classes", b"three")
    with pytest.raises(InputError, match="n_classes is no array: write it anew"):
        load_npz(path)


def test_a_missing_file_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match="is not a file"):
        load_npz(tmp_path / "none.npz")


def test_a_folder_is_an_input_error(tmp_path: Path):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(InputError, match="is not a file"):
        load_npz(tmp_path / "folder.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x93NUMPY\x01\x00"])
def test_another_format_is_an_input_error(tmp_path: Path, content: bytes):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not an \.npz file"):
        load_npz(path)


def test_a_zip_file_without_arrays_is_an_input_error(tmp_path: Path):
    path = tmp_path / "zip.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match="lacks train_images"):
        load_npz(path)


def test_every_truncation_is_an_input_error(tmp_path: Path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for n_bytes in range(0, len(whole), 97):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(InputError):
            load_npz(path)


def test_flipped_bytes_never_end_in_another_error(tmp_path: Path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with contextlib.suppress(InputError):
            load_npz(path)
