"""Small sets come into memory, large ones are opened, and a program can tell them apart by name."""

from pathlib import Path

import pytest
import tiny
from tiny_images import write_folder

from sparsemlp.data import DataSets, ImageDataset, LabelledImages, is_streamed, load_images, named
from sparsemlp.data.imagenet import ImageSet
from sparsemlp.errors import InputError


@pytest.mark.parametrize(
    ("name", "streamed"),
    [
        ("auto", False),
        ("cifar10", False),
        ("digits", False),
        ("some/where.npz", False),
        ("imagenet2012", True),
        ("/some/where", True),
        ("tiny", True),
    ],
)
def test_what_is_neither_built_in_nor_a_file_of_arrays_is_streamed(name, streamed):
    assert is_streamed(name) == streamed


def test_both_kinds_say_the_same_things_of_themselves(tmp_path: Path):
    folder = write_folder(tmp_path / "tiny")
    small, large = load_images("digits"), load_images(str(folder), image_size=16)
    assert isinstance(small, ImageDataset)
    assert isinstance(large, ImageSet)
    for images in (small, large):
        assert isinstance(images, LabelledImages)
        assert len(images.mean) == len(images.std) == images.image_shape[2]
    assert (large.n_train, large.n_test, large.n_classes) == (23, 11, 3)
    assert large.image_shape == (16, 16, 3)
    assert (small.n_train, small.n_test) == (len(small.train_images), len(small.test_images))
    assert small.image_shape == small.test_images.shape[1:]


def test_a_large_set_is_decoded_to_the_usual_size_of_imagenet(tmp_path: Path):
    assert load_images(str(write_folder(tmp_path / "tiny"))).image_shape == (224, 224, 3)


def test_a_name_that_nothing_has_says_what_there_is(tmp_path: Path):
    with pytest.raises(InputError, match=r"cifar is not prepared.*small sets are auto, cifar10"):
        load_images("cifar", tmp_path)


def test_a_folder_of_another_form_says_what_is_missing_and_nothing_of_small_sets(tmp_path: Path):
    with pytest.raises(InputError, match="train cannot be read") as raised:
        load_images(str(tmp_path))
    assert "small sets" not in str(raised.value)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".npz"])
def test_a_name_that_no_file_can_have_is_an_error_in_words(name):
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        load_images(name)


def test_a_data_set_is_loaded_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        named, "load_images", lambda *k, **_: asked.append(k) or tiny.dataset(len(asked))
    )
    data = DataSets()
    first = data.load("tiny.npz", None)
    assert data.load("tiny.npz", None) is first
    assert data.load("tiny.npz", Path("elsewhere")) is not first
    assert data.load("tiny.npz", None, image_size=64) is not first
    assert len(asked) == 3
