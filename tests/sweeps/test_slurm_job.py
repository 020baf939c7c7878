"""A job on a cluster: told that its time is up, it saves, goes back into the queue, and goes on."""

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.errors import InputError
from sparsemlp.sweeps.slurm_job import SweepJob, is_running, preemption_signal
from sparsemlp.sweeps.sweep_folder import Sweep, SweepFolder, SweepRun

data = tiny.data
no_pictures = tiny.no_pictures
OPTIONS: dict[str, Any] = tiny.RUN | {"epochs": 2, "mask_start_epoch": 0, "batch_size": 11}


class Requeued(BaseException):
    """What submitit's handler does in these tests, in the place of ending the process."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers that submitit sets on a node: the signal requeues, SIGTERM does nothing."""

    def requeue(number: int, frame: FrameType | None) -> None:
        raise Requeued

    at = {preemption_signal(): requeue, signal.SIGTERM: lambda *_: None}
    before = {number: signal.signal(number, handler) for number, handler in at.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> SweepFolder:
    folder = SweepFolder(tmp_path / "sweep")
    folder.create()
    settings = resolve(Config(dataset=str(data), **OPTIONS), str(data))
    folder.write(Sweep("grid.yaml", "", [SweepRun("tiny", settings)]))
    return folder


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("numbers", "running", "requeued"),
    [
        ((signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM), False, True),
        ((signal.SIGTERM,), True, True),
        ((signal.SIGTERM,), False, False),
    ],
    ids=["announced", "preempted", "cancelled"],
)
def test_a_job_that_must_end_saves_and_is_requeued_unless_it_was_cancelled(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch, numbers, running, requeued
):
    monkeypatch.setattr("sparsemlp.sweeps.slurm_job.is_running", lambda: running)
    job = SweepJob(folder.path, ["tiny"])
    tiny.at_step(monkeypatch, 3, lambda: [signal.raise_signal(number) for number in numbers])
    if requeued:
        with pytest.raises(Requeued):
            job()
    else:
        with pytest.raises(SystemExit) as ended:
            job()
        assert ended.value.code == 128 + signal.SIGTERM
    place = folder.run("tiny")
    assert tiny.last_state(place.path).step == 3
    assert folder.state("tiny") == "begun"
    assert job.names == ["tiny"]


@pytest.mark.thorough
def test_a_requeued_job_goes_on_and_ends_as_one_never_disturbed(
    folder: SweepFolder, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    job = SweepJob(folder.path, ["tiny"])
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 3, lambda: signal.raise_signal(preemption_signal()))
        with pytest.raises(Requeued):
            job()
    again = pickle.loads(pickle.dumps(job.checkpoint()))
    (told,) = again.result()
    assert told.startswith("test top-1 ")
    assert tiny.start(data, tmp_path / "alone", **OPTIONS) == 0
    tiny.assert_same_outcome(folder.run("tiny").path, tmp_path / "alone")
    (told,) = SweepJob(folder.path, ["tiny"])()
    assert told == "finished already"


def test_a_job_whose_run_fails_fails_and_the_reason_is_in_the_folder(
    folder: SweepFolder, data: Path
):
    content = data.read_bytes()
    data.write_bytes(b"")
    try:
        with pytest.raises(SystemExit) as ended:
            SweepJob(folder.path, ["tiny"])()
    finally:
        data.write_bytes(content)
    assert ended.value.code == 1
    assert "InputError" in folder.run("tiny").read_failure()


def test_a_sweep_that_is_gone_is_told(tmp_path: Path):
    with pytest.raises(InputError, match=r"sweep\.json is gone"):
        SweepJob(tmp_path, ["x"])()


@pytest.mark.parametrize(
    ("state", "running"), [("RUNNING", True), ("COMPLETING", False), ("", False)]
)
def test_slurm_is_asked_whether_the_job_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, running: bool
):
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho {state}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    assert is_running() == running
    monkeypatch.setenv("PATH", str(tmp_path / "absent"))
    assert not is_running()


def test_the_last_task_of_an_array_asks_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$4" = 36_3 ] && echo RUNNING\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    for name, value in (("JOB_ID", "36"), ("ARRAY_JOB_ID", "36"), ("ARRAY_TASK_ID", "3")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert is_running()
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert not is_running()
