"""Batches in order from any position, ahead of the caller, with what cannot be read accounted."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsemlp.data.imagenet.batch_plan import BatchPlan
from sparsemlp.data.imagenet.folder import FolderSource, find_images
from sparsemlp.data.imagenet.pipeline import Batch, Pipeline
from sparsemlp.errors import InputError

SIZE = 16


@pytest.fixture(scope="module")
def train(image_folder: Path) -> FolderSource:
    return find_images(image_folder / "train")


def pipeline(source: FolderSource, seed: int | None = 0, **options: Any) -> Pipeline:
    plan = BatchPlan(len(source), 8, seed=seed, multiple=1 if seed is not None else 8)
    return Pipeline(source, plan, SIZE, **{"n_workers": 0, **options})


def take(batches: Pipeline, n_batches: int) -> list[Batch]:
    return [next(batches) for _ in range(n_batches)]


def assert_same(actual: list[Batch], expected: list[Batch]) -> None:
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a.images, b.images)
        np.testing.assert_array_equal(a.labels, b.labels)


def test_a_resumed_pipeline_goes_on_where_it_stood(train: FolderSource):
    with pipeline(train) as batches:
        whole = take(batches, 7)
    for first in (0, 1, 3, 5):
        epoch, step = divmod(first, 3)
        with pipeline(train, epoch=epoch, step=step) as batches:
            assert batches.position == (epoch, step)
            assert_same(take(batches, 7 - first), whole[first:])
            assert batches.position == (2, 1)


def test_what_is_skipped_is_not_read(train: FolderSource, monkeypatch: pytest.MonkeyPatch):
    read = []

    def note(self: FolderSource, index: int) -> tuple[bytes, int]:
        read.append(index)
        return original(self, index)

    original = FolderSource.read
    monkeypatch.setattr(FolderSource, "read", note)
    with pipeline(train, epoch=5, step=2) as batches:
        next(batches)
    plan = BatchPlan(len(train), 8, seed=0)
    assert read[: plan.n_rows(2)] == plan.rows(5, 2).tolist()


def test_the_last_batch_of_an_epoch_holds_the_images_that_are_left(train: FolderSource):
    with pipeline(train) as batches:
        assert batches.steps_per_epoch == 3
        assert [len(batch.labels) for batch in batches.rest_of_epoch()] == [8, 8, 7]
        next(batches)
        assert [len(batch.labels) for batch in batches.rest_of_epoch()] == [8, 7]


def test_a_validation_pass_holds_every_image_once_and_can_be_repeated(image_folder: Path):
    source = find_images(image_folder / "val")
    with pipeline(source, None) as batches:
        first = list(batches.rest_of_epoch())
        assert [len(batch.labels) for batch in first] == [8, 8]
        labels = np.concatenate([batch.labels for batch in first])
        np.testing.assert_array_equal(labels[:11], [source.read(i)[1] for i in range(11)])
        assert (labels[11:] == -1).all()
        assert_same(list(batches.rest_of_epoch()), first)


def test_batches_are_made_while_the_caller_is_busy(train: FolderSource):
    with pipeline(train) as batches:
        for _ in range(3):
            deadline = time.monotonic() + 60
            while batches.n_ready == 0 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert batches.n_ready > 0
            next(batches)


def test_time_spent_waiting_is_counted_and_nothing_else(
    train: FolderSource, monkeypatch: pytest.MonkeyPatch
):
    original = FolderSource.read

    def slow(self: FolderSource, index: int) -> tuple[bytes, int]:
        time.sleep(0.02)
        return original(self, index)

    monkeypatch.setattr(FolderSource, "read", slow)
    with pipeline(train) as batches:
        began = time.perf_counter()
        take(batches, 2)
        assert 0.1 < batches.seconds_waited <= time.perf_counter() - began
        batches.seconds_waited = 0.0
        time.sleep(0.05)
        assert batches.seconds_waited == 0


def test_damage_is_reported_once_and_counted_by_epoch(damaged_folder: Path):
    source = find_images(damaged_folder / "train")
    with pipeline(source, largest_unreadable_share=0.2) as batches:
        with pytest.warns(UserWarning, match=r"_000\d\.JPEG cannot be read .* replaced") as warned:
            list(batches.rest_of_epoch())
        assert len(warned) == batches.n_unreadable == 3
        assert all((batch.labels >= 0).all() for batch in batches.rest_of_epoch())
        assert batches.n_unreadable == 3


def test_unreadable_validation_images_are_missing_from_the_count(damaged_folder: Path):
    source = find_images(damaged_folder / "val")
    with pipeline(source, None, largest_unreadable_share=0.3) as batches:
        with pytest.warns(UserWarning, match="left out"):
            labels = np.concatenate([batch.labels for batch in batches.rest_of_epoch()])
        assert np.count_nonzero(labels >= 0) == len(source) - batches.n_unreadable == 11 - 3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_more_damage_than_allowed_ends_the_pipeline(damaged_folder: Path):
    source = find_images(damaged_folder / "train")
    with (
        pipeline(source, largest_unreadable_share=0.1) as batches,
        pytest.raises(InputError, match=r"3 of 23 images .* share of 0\.1 .*_000\d\.JPEG \(") as e,
    ):
        list(batches.rest_of_epoch())
    assert "\n" not in str(e.value)
    with pytest.raises(InputError, match="closed"):
        next(batches)


def test_a_closed_pipeline_can_be_closed_again(train: FolderSource):
    batches = pipeline(train)
    batches.close()
    batches.close()
    with pytest.raises(InputError, match="closed"):
        next(batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 3}, r"\(0, 3\) is no position: an epoch has the steps 0 to 2"),
        ({"epoch": -1}, r"\(-1, 0\)"),
        ({"n_workers": -1}, "n_workers=-1"),
        ({"largest_unreadable_share": 2.0}, r"a share of 2\.0"),
    ],
)
def test_values_that_make_no_sense_are_an_input_error(
    train: FolderSource, options: dict[str, Any], message: str
):
    with pytest.raises(InputError, match=message):
        pipeline(train, **options)
    with pytest.raises(InputError, match="image_size=0"):
        Pipeline(train, BatchPlan(len(train), 8), 0)
    with pytest.raises(InputError, match="a plan of 3 images for 23"):
        Pipeline(train, BatchPlan(3, 3), SIZE)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unreadable_images_of_all_chunks_of_a_batch_count(damaged_folder, monkeypatch):
    monkeypatch.setattr("sparsemlp.data.imagenet.batch_plan.IMAGES_PER_CHUNK", 4)
    source = find_images(damaged_folder / "train")
    plan = BatchPlan(len(source), len(source), seed=0)
    with Pipeline(source, plan, 16, n_workers=0, largest_unreadable_share=1.0) as batches:
        next(batches)
        assert batches.n_unreadable == 3


def test_seconds_that_were_waited_add_up(image_folder):
    source = find_images(image_folder / "train")
    with Pipeline(source, BatchPlan(len(source), 8), 16, n_workers=0) as batches:
        batches.seconds_waited = 100.0
        next(batches)
        assert batches.seconds_waited > 100
