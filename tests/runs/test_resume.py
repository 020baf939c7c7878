"""A run is resumed from what it saved, or not at all."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.errors import InputError
from sparsemlp.runs.resume import restore_run
from sparsemlp.runs.run_folder import RunFolder

STATE = {"weight": jnp.arange(3.0)}
SHAPES = jax.eval_shape(lambda: STATE)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path)


def records(folder: RunFolder, n: int) -> None:
    lines = [json.dumps({"epoch": epoch}) + "\n" for epoch in range(1, n + 1)]
    folder.metrics.write_text("".join(lines))


def restore(folder: RunFolder, data: str = "abc", **options: Any):
    with Checkpoints(folder.checkpoints) as checkpoints:
        return restore_run(
            folder,
            checkpoints,
            SHAPES,
            steps_per_epoch=2,
            total_steps=6,
            data=data,
            options=options,
        )


def save(folder: RunFolder, step: int, **more: Any) -> None:
    with Checkpoints(folder.checkpoints) as checkpoints:
        checkpoints.save(step, STATE, {"data": "abc", "seconds": 0.0, **more})


def test_the_newest_checkpoint_is_restored_and_the_records_stay(folder):
    save(folder, 5)
    records(folder, 4)
    restored = restore(folder)
    assert restored is not None
    assert restored.step == 5
    assert len(folder.metrics.read_text().splitlines()) == 4


def test_a_run_that_saved_nothing_starts_and_says_so(folder):
    folder.config.write_text("{}")
    with pytest.warns(UserWarning, match="ended before its first step"):
        assert restore(folder) is None


def test_of_a_run_that_is_new_nothing_is_said(folder, recwarn):
    assert restore(folder) is None
    assert not recwarn.list


def test_lost_checkpoints_are_an_error_that_leaves_the_records(folder):
    records(folder, 3)
    with pytest.raises(InputError, match=r"no checkpoint is left in .*checkpoints"):
        restore(folder)
    assert len(folder.metrics.read_text().splitlines()) == 3


def test_other_data_and_missing_records_are_errors_that_leave_the_records(folder):
    save(folder, 5)
    records(folder, 3)
    with pytest.raises(InputError, match="their checksum differs"):
        restore(folder, data="xyz")
    assert len(folder.metrics.read_text().splitlines()) == 3
    records(folder, 1)
    for line in ("", '{"epoch": null}\n'):
        folder.metrics.write_text(folder.metrics.read_text() + line)
        with pytest.raises(InputError, match="lacks records of the 2 epochs"):
            restore(folder)
    assert len(folder.metrics.read_text().splitlines()) == 2


def test_other_options_are_an_error_that_leaves_the_records(folder):
    save(folder, 5, options={"seed": 1, "weight_decay": None, "of_later_versions": 1})
    records(folder, 4)
    text = folder.metrics.read_text()
    with pytest.raises(InputError, match=r"config\.json asks for --seed=2, .* with 1: .* restore"):
        restore(folder, seed=2, weight_decay=None)
    assert folder.metrics.read_text() == text
    assert restore(folder, seed=1, weight_decay=None, of_this_version="new") is not None


@pytest.mark.parametrize(
    ("step", "steps_of_an_epoch", "says"),
    [
        (7, 2, r"for 7 steps, and config\.json asks for 6: .* restore"),
        (5, 3, r"3 steps in 1 epochs, and config\.json asks for 2: .* restore"),
    ],
)
def test_a_configuration_with_other_steps_is_refused_and_leaves_the_records(
    folder, step, steps_of_an_epoch, says
):
    save(folder, step)
    lines = [{"epoch": epoch, "step": epoch * steps_of_an_epoch} for epoch in (1, 2, 3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    folder.metrics.write_text(text)
    with pytest.raises(InputError, match=says):
        restore(folder)
    assert folder.metrics.read_text() == text
