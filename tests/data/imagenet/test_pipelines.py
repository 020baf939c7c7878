"""The pipelines of several processes together give the batches of one."""

from pathlib import Path

import numpy as np
import pytest

from sparsemlp.data.imagenet import Batch, ImageSet, open_image_set
from sparsemlp.data.imagenet import training_pipeline as train
from sparsemlp.data.imagenet import validation_pipeline as validate
from sparsemlp.data.imagenet.folder import find_images
from sparsemlp.errors import InputError


@pytest.fixture(scope="module")
def images(tfds_folder: Path) -> ImageSet:
    return open_image_set("tiny_imagenet", tfds_folder)


def epoch_of_training(images: ImageSet, process: int = 0, n_processes: int = 1) -> list[Batch]:
    with train(
        images.train,
        batch_size=8,
        image_size=16,
        seed=0,
        epoch=1,
        multiple=4,
        process=process,
        n_processes=n_processes,
        n_workers=0,
    ) as batches:
        return list(batches.rest_of_epoch())


def pass_of_validation(images: ImageSet, process: int = 0, n_processes: int = 1) -> list[Batch]:
    with validate(
        images.validation,
        batch_size=8,
        image_size=16,
        process=process,
        n_processes=n_processes,
        n_workers=0,
    ) as batches:
        return list(batches.rest_of_epoch())


@pytest.mark.parametrize("run", [epoch_of_training, pass_of_validation])
@pytest.mark.parametrize("n_processes", [2, 4])
def test_the_global_batch_does_not_depend_on_the_processes(images: ImageSet, run, n_processes: int):
    whole = run(images)
    parts = [run(images, process, n_processes) for process in range(n_processes)]
    assert {len(part) for part in parts} == {len(whole)}
    for step, batch in enumerate(whole):
        dealt = [part[step] for part in parts]
        assert len({len(part.labels) for part in dealt}) == 1
        np.testing.assert_array_equal(np.concatenate([b.images for b in dealt]), batch.images)
        np.testing.assert_array_equal(np.concatenate([b.labels for b in dealt]), batch.labels)


def test_rows_without_an_image_fill_up_the_last_batch(images: ImageSet):
    *_, last = epoch_of_training(images)
    assert len(last.labels) == 8  # Of 23 images 7 are left, filled up to a multiple of 4.
    np.testing.assert_array_equal(last.labels < 0, [False] * 7 + [True])


def test_one_process_trains_on_nothing_but_images(images: ImageSet):
    with train(images.train, batch_size=8, image_size=16, seed=0, n_workers=0) as batches:
        labels = [batch.labels for batch in batches.rest_of_epoch()]
    assert [len(part) for part in labels] == [8, 8, 7]
    assert np.concatenate(labels).min() == 0


def test_a_batch_that_cannot_be_dealt_out_is_an_input_error(images: ImageSet):
    with pytest.raises(InputError, match="batch_size=9 is not a multiple of 2: choose 10"):
        train(images.train, batch_size=9, image_size=16, seed=0, n_processes=2)
    with pytest.raises(InputError, match="9 cannot be dealt out evenly to 2 processes"):
        validate(images.validation, batch_size=9, image_size=16, n_processes=2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_share_of_unreadable_images_is_of_those_of_all_processes(damaged_folder):
    """Three of 23 cannot be read, three of the twelve of a process at most: none refuses them."""
    source = find_images(damaged_folder / "train")

    def read_all(process: int, share: float) -> None:
        with train(
            source,
            batch_size=8,
            image_size=16,
            seed=0,
            process=process,
            n_processes=2,
            n_workers=0,
            largest_unreadable_share=share,
        ) as batches:
            list(batches.rest_of_epoch())

    told = []
    for process in range(2):
        read_all(process, 3 / 23)
        try:
            read_all(process, 0.0)
        except InputError as error:
            told.append(str(error))
    assert told
    assert all("of 23 images cannot be read" in each for each in told)


def test_a_pipeline_begins_at_the_epoch_and_step_that_are_asked_for(image_folder):
    source = find_images(image_folder / "train")
    with train(
        source, batch_size=8, image_size=16, seed=0, epoch=1, step=2, n_workers=0
    ) as batches:
        assert batches.position == (1, 2)
