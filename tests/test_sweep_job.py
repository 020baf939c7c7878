"""A job trains its runs to their ends, and what goes wrong with one is recorded."""

import json
import signal
from typing import Any

import pytest
import tiny
from rich.console import Console

from sparsemlp.config import Config, to_json
from sparsemlp.interruption import Interruption
from sparsemlp.progress import Reporter
from sparsemlp.run import Run
from sparsemlp.settings import resolve
from sparsemlp.sweep_folder import SweepFolder, SweepRun
from sparsemlp.sweep_job import DataSets, Outcome, form_jobs, train_job


@pytest.fixture
def folder(tmp_path) -> SweepFolder:
    made = SweepFolder(tmp_path / "sweep")
    made.create()
    return made


@pytest.fixture
def run(tmp_path) -> SweepRun:
    data = tiny.write_npz(tmp_path / "tiny.npz")
    options: dict[str, Any] = tiny.RUN | {"epochs": 1}
    config = Config(dataset=str(data), **options)
    return SweepRun("tiny", resolve(config, str(data)))


def train(run: SweepRun, folder: SweepFolder, interruption: Interruption | None = None) -> Outcome:
    with Reporter(1, Console(quiet=True)) as reporter:
        (outcome,) = train_job([run], folder, DataSets(), reporter, interruption or Interruption())
    return outcome


def test_every_run_is_in_one_job(run):
    jobs = form_jobs([run] * 3)
    assert [each for job in jobs for each in job] == [run] * 3


def test_a_data_set_is_loaded_once(run, monkeypatch):
    asked = []
    loaded = tiny.dataset()
    monkeypatch.setattr("sparsemlp.sweep_job.load_dataset", lambda *k: asked.append(k) or loaded)
    data = DataSets()
    settings = resolve(run.config, run.config.dataset)
    assert data.load(settings) is data.load(settings) is loaded
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("error", "traced"), [(OSError("disk gone"), False), (RuntimeError("out of\nmemory"), True)]
)
def test_whatever_goes_wrong_is_recorded_and_unforeseen_errors_are_shown(
    run, folder, monkeypatch, capsys, error, traced
):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Run, "train", fail)
    assert train(run, folder).end == "failed"
    record = json.loads(folder.run("tiny").failure.read_text())
    assert record["error"] == " ".join(str(error).split())
    assert record["kind"] == type(error).__name__
    assert ("Traceback" in capsys.readouterr().err) == traced


def test_a_run_that_another_process_trains_is_left_to_it(run, folder):
    folder.run("tiny").path.mkdir(parents=True)
    with folder.run("tiny").locked():
        assert train(run, folder).end == "occupied"
    assert folder.state("tiny") == "new"


def test_a_run_is_not_begun_after_a_signal(run, folder):
    interruption = Interruption()
    interruption.signal = signal.SIGTERM
    assert train(run, folder, interruption).end == "interrupted"
    assert folder.state("tiny") == "new"


def test_a_finished_run_is_left_as_it_is(run, folder):
    folder.run("tiny").path.mkdir(parents=True)
    folder.run("tiny").summary.write_text("{}")
    assert train(run, folder).end == "finished"
    assert folder.run("tiny").summary.read_text() == "{}"


def test_a_folder_that_holds_another_run_is_a_failure_and_stays(run, folder):
    place = folder.run("tiny")
    place.path.mkdir(parents=True)
    other = resolve(Config(dataset=run.config.dataset, seed=5), run.config.dataset)
    place.config.write_text(to_json(other))
    assert train(run, folder).end == "failed"
    assert "is another run" in folder.failure("tiny")
    assert place.config.read_text() == to_json(other)
