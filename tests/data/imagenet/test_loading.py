"""Rows are a function of seed, epoch and image, also where images cannot be read."""

from pathlib import Path

import numpy as np
import pytest
from tiny_images import PER_CLASS

from sparsemlp.data.imagenet.batch_plan import BatchPlan
from sparsemlp.data.imagenet.folder import FolderSource, find_images
from sparsemlp.data.imagenet.loading import Chunk, Loader
from sparsemlp.errors import InputError

SIZE = 16


def load(source: FolderSource, seed: int | None = 0, epoch: int = 0, **options: int) -> Chunk:
    """A whole epoch, which fits into one chunk, in the order of the source."""
    plan = BatchPlan(len(source), len(source), seed=seed, **options)
    chunk = Loader(source, plan, SIZE)[epoch]
    order = np.argsort(plan.rows(epoch, 0))
    return Chunk(chunk.images[order], chunk.labels[order], chunk.unreadable)


@pytest.fixture(scope="module")
def train(image_folder: Path) -> FolderSource:
    return find_images(image_folder / "train")


def test_a_row_does_not_depend_on_the_batch_that_it_stands_in(train: FolderSource):
    whole = load(train, epoch=2)
    plan = BatchPlan(len(train), 8, seed=0, multiple=4, process=1, n_processes=2)
    loader = Loader(train, plan, SIZE)
    for step in range(plan.steps_per_epoch):
        chunk = loader[plan.first_chunk(2, step)]
        for row, image in enumerate(plan.rows(2, step)):
            if image < 0:
                assert chunk.labels[row] == -1
                assert not chunk.images[row].any()
            else:
                np.testing.assert_array_equal(chunk.images[row], whole.images[image])
                assert chunk.labels[row] == whole.labels[image]


def test_training_images_change_with_seed_and_epoch_and_validation_images_do_not(
    train: FolderSource,
):
    first = load(train)
    for other in (load(train, epoch=1), load(train, seed=1)):
        np.testing.assert_array_equal(other.labels, first.labels)
        assert all((a != b).any() for a, b in zip(other.images, first.images, strict=True))
    np.testing.assert_array_equal(load(train, None).images, load(train, None, epoch=5).images)


def test_labels_are_those_of_the_folders(train: FolderSource):
    assert np.bincount(load(train).labels).tolist() == list(PER_CLASS["train"])


def test_an_unreadable_training_image_is_replaced_by_the_same_one_every_time(
    damaged_folder: Path, train: FolderSource
):
    source = find_images(damaged_folder / "train")
    chunk = load(source)
    assert {Path(image.name).name for image in chunk.unreadable} == {
        "n01_0001.JPEG",
        "n02_0002.JPEG",
        "n03_0000.JPEG",
    }
    again = load(source)
    np.testing.assert_array_equal(chunk.images, again.images)
    np.testing.assert_array_equal(chunk.labels, again.labels)
    assert (chunk.labels >= 0).all()
    assert chunk.images.reshape(len(source), -1).any(axis=1).all()
    # All other rows are as if nothing were damaged.
    whole = load(train)
    readable = [i for i in range(len(source)) if not is_damaged(source, i)]
    np.testing.assert_array_equal(chunk.images[readable], whole.images[readable])
    np.testing.assert_array_equal(chunk.labels[readable], whole.labels[readable])


def test_an_unreadable_validation_image_is_an_empty_row(damaged_folder: Path):
    source = find_images(damaged_folder / "val")
    chunk = load(source, None)
    damaged = [i for i in range(len(source)) if is_damaged(source, i)]
    assert len(damaged) == len(chunk.unreadable) == 3
    np.testing.assert_array_equal(np.flatnonzero(chunk.labels < 0), damaged)
    assert not chunk.images[damaged].any()
    assert [image.name for image in chunk.unreadable] == [source.name(i) for i in damaged]


def test_a_reason_is_a_line_that_says_what_is_wrong(damaged_folder: Path):
    reasons = [image.reason for image in load(find_images(damaged_folder / "val"), None).unreadable]
    assert "truncated" in reasons[0].lower()
    assert reasons[1:] == ["no image that Pillow knows"] * 2


def test_a_file_that_is_gone_or_locked_is_unreadable_with_its_path(damaged_folder: Path):
    source = find_images(damaged_folder / "val")
    Path(source.name(0)).unlink()
    gone = load(source, None).unreadable[0]
    assert gone.name == source.name(0)
    assert "No such file" in gone.reason


def test_a_folder_without_one_readable_image_is_an_input_error(tmp_path: Path):
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.JPEG").touch()
    source = find_images(tmp_path)
    with pytest.raises(InputError, match=r"\.JPEG cannot be read .*nor 16 other images"):
        load(source)
    assert (load(source, None).labels == -1).all()


def is_damaged(source: FolderSource, index: int) -> bool:
    return Path(source.name(index)).name in ("n01_0001.JPEG", "n02_0002.JPEG", "n03_0000.JPEG")


class Exhausting:
    """A source whose images fit no memory."""

    def __len__(self) -> int:
        return 4

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> tuple[bytes, int]:
        raise MemoryError


def test_an_exhausted_memory_is_no_damaged_image():
    with pytest.raises(MemoryError):
        Loader(Exhausting(), BatchPlan(4, 4), 16)[0]
