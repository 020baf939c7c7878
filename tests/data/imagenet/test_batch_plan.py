"""A batch is the same whatever the number of processes, and an epoch holds every image once."""

from typing import Any

import numpy as np
import pytest

from sparsemlp.data.imagenet.batch_plan import IMAGES_PER_CHUNK, BatchPlan
from sparsemlp.errors import InputError

SIZES = [(23, 8, 4), (24, 8, 8), (5, 8, 4), (1, 4, 4), (200, 96, 4), (97, 96, 96)]


def parts(n_processes: int, n_images: int, batch_size: int, **options: Any):
    return [
        BatchPlan(n_images, batch_size, process=process, n_processes=n_processes, **options)
        for process in range(n_processes)
    ]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("n_images", "batch_size", "multiple"), SIZES)
def test_an_epoch_holds_every_image_once(
    n_images: int, batch_size: int, multiple: int, seed: int | None
):
    plan = BatchPlan(n_images, batch_size, seed=seed, multiple=multiple)
    for epoch in (0, 1):
        rows = np.concatenate([plan.rows(epoch, step) for step in range(plan.steps_per_epoch)])
        np.testing.assert_array_equal(np.sort(rows[rows >= 0]), np.arange(n_images))
        assert (rows[:n_images] >= 0).all()
        assert len(rows) - n_images < multiple
        assert len(rows) % multiple == 0


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("n_images", "batch_size", "multiple"), SIZES)
def test_processes_share_the_batches_of_one(
    n_images: int, batch_size: int, multiple: int, seed: int | None
):
    (whole,) = parts(1, n_images, batch_size, multiple=multiple, seed=seed)
    for n_processes in (2, 4):
        plans = parts(n_processes, n_images, batch_size, multiple=multiple, seed=seed)
        assert {plan.steps_per_epoch for plan in plans} == {whole.steps_per_epoch}
        for step in range(whole.steps_per_epoch):
            dealt = [plan.rows(1, step) for plan in plans]
            assert {len(rows) for rows in dealt} == {plans[0].n_rows(step)}
            np.testing.assert_array_equal(np.concatenate(dealt), whole.rows(1, step))


def test_an_order_is_a_function_of_seed_and_epoch():
    plan = BatchPlan(100, 100, seed=1)
    np.testing.assert_array_equal(plan.rows(2, 0), BatchPlan(100, 100, seed=1).rows(2, 0))
    assert not np.array_equal(plan.rows(2, 0), plan.rows(3, 0))
    assert not np.array_equal(plan.rows(2, 0), BatchPlan(100, 100, seed=2).rows(2, 0))
    np.testing.assert_array_equal(BatchPlan(100, 100).rows(2, 0), np.arange(100))


@pytest.mark.parametrize("n_processes", [1, 2])
@pytest.mark.parametrize(("n_images", "batch_size", "multiple"), [(23, 8, 4), (200, 96, 4)])
def test_chunks_are_the_rows_of_a_process_in_order(
    n_images: int, batch_size: int, multiple: int, n_processes: int
):
    for plan in parts(n_processes, n_images, batch_size, multiple=multiple, seed=0):
        number = plan.first_chunk(1, 0)
        for epoch in (1, 2):
            for step in range(plan.steps_per_epoch):
                assert number == plan.first_chunk(epoch, step)
                found = []
                for index in range(plan.n_chunks(step)):
                    chunk_epoch, images = plan.chunk(number)
                    start, stop = plan.chunk_rows(step, index)
                    assert (chunk_epoch, len(images)) == (epoch, stop - start)
                    assert 0 < len(images) <= IMAGES_PER_CHUNK
                    found.append(images)
                    number += 1
                np.testing.assert_array_equal(np.concatenate(found), plan.rows(epoch, step))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_images": 0}, "0 images"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 10, "multiple": 4}, "batch_size=10 is not a multiple of 4: choose 12"),
        ({"n_processes": 3}, "multiples of 1 .* 3 processes: choose a multiple of 3"),
        ({"process": 1}, "process=1 is none of 1"),
        ({"process": -1}, "process=-1"),
        ({"n_processes": 0}, "n_processes=0"),
    ],
)
def test_sizes_that_do_not_fit_are_an_input_error(sizes: dict[str, int], message: str):
    with pytest.raises(InputError, match=message):
        BatchPlan(**{"n_images": 10, "batch_size": 8, **sizes})
