"""Holding images out of a large set: none is lost, none is in both."""

import dataclasses
import pickle

import numpy as np
import pytest
from tiny_images import PER_CLASS, write_folder

from sparsemlp.data.imagenet import hold_out_images, open_image_set
from sparsemlp.data.imagenet.subset import Subset
from sparsemlp.errors import InputError

N_TRAIN = sum(PER_CLASS["train"])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return open_image_set(str(write_folder(tmp_path_factory.mktemp("images") / "tiny")))


def names(source) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def test_every_image_is_trained_on_or_held_out_and_every_class_loses_its_share(images):
    left, held_out = hold_out_images(images, 0.25)
    assert held_out is not None
    assert left.n_train == len(left.train) == N_TRAIN - 6
    assert sorted(names(left.train) + names(held_out)) == sorted(names(images.train))
    labels = [held_out.read(index)[1] for index in range(len(held_out))]
    assert labels == [0, 0, 0, 1, 1, 2]
    assert (left.validation, left.digest) == (images.validation, images.digest)


def test_an_image_of_a_subset_is_that_of_its_source_also_in_another_process(images):
    chosen = Subset(images.train, np.array([2, 9, 22]))
    for subset in (chosen, pickle.loads(pickle.dumps(chosen))):
        for index, whole in enumerate((2, 9, 22)):
            assert subset.read(index) == images.train.read(whole)
            assert subset.name(index) == images.train.name(whole)
    with pytest.raises(IndexError):
        chosen.read(3)


def test_nothing_is_held_out_unless_asked_and_never_all_or_none(images):
    assert hold_out_images(images, 0.0) == (images, None)
    for share in (0.01, 0.99):
        with pytest.raises(
            InputError, match=f"--hold-out={share}: that share of the {N_TRAIN} training images"
        ):
            hold_out_images(images, share)
    assert dataclasses.replace(images).n_train == N_TRAIN
