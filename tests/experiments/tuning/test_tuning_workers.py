"""Tasks are done by processes beside each other, and one that dies is replaced."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from tuning.workers import cached_in, environment_with, run_in_workers, usual_workers

PROGRAM = """
import os, time
from tuning.device_lock import file_lock
from tuning.workers import Result

def begin(index, tell, folder):
    def do(task):
        tell(f"began {task}")
        if task == "dies":
            os.abort()
        with file_lock(folder / "lock")():
            assert not (folder / "busy").exists()
            (folder / "busy").touch()
            time.sleep(0.05)
            (folder / "busy").unlink()
        return Result((task, os.getpid()), is_last=task == "last")
    return do
"""


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "program_of_workers.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("program_of_workers").begin


def test_every_task_is_done_and_a_process_that_dies_is_replaced(begin: Any, tmp_path: Path):
    tasks = ["a", "dies", "last", *"bcdefg"]
    told, done, died = [], {}, []

    def take(task: Any, value: Any) -> None:
        assert value[0] == task
        done[task] = value[1]

    run_in_workers(
        2,
        begin,
        (tmp_path,),
        next_task=lambda: tasks.pop(0) if tasks else None,
        told=lambda task, words: told.append((task, words)),
        done=take,
        died=lambda index, task: died.append((index, task)),
    )
    assert set(done) == {"a", "last", *"bcdefg"}
    assert set(told) == {(task, f"began {task}") for task in [*done, "dies"]}
    assert [task for _, task in died] == ["dies"]
    assert done["last"] not in [pid for task, pid in done.items() if task in "cdefg"]
    assert os.getpid() not in done.values()


def test_variables_are_for_processes_begun_inside(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/own")
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    before = dict(os.environ)
    with environment_with(cached_in(Path("/other"))):
        assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "/own"
        assert "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" in os.environ
    assert dict(os.environ) == before


@pytest.mark.parametrize(("n_cores", "n_workers"), [(1, 1), (2, 1), (16, 8), (64, 8)])
def test_two_usable_cores_make_a_worker(
    monkeypatch: pytest.MonkeyPatch, n_cores: int, n_workers: int
):
    monkeypatch.setattr("tuning.workers.usable_cores", lambda: n_cores)
    assert usual_workers() == n_workers
