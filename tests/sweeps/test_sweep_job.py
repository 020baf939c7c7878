"""A job trains its runs to their ends, and what goes wrong with one is recorded."""

import dataclasses
import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import tiny
from rich.console import Console

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import to_json
from sparsemlp.configuration.settings import resolve
from sparsemlp.data import DataSets
from sparsemlp.errors import DeviceLostError, InputError, NotFiniteError
from sparsemlp.populations.population_run import Outcome as MemberOutcome
from sparsemlp.runs.interruption import Interruption
from sparsemlp.runs.progress import Reporter
from sparsemlp.runs.run import Run
from sparsemlp.sweeps import sweep_job
from sparsemlp.sweeps.sweep_folder import SweepFolder, SweepRun
from sparsemlp.sweeps.sweep_job import Outcome, train_job


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
    stop = interruption or Interruption()
    with Reporter(1, Console(quiet=True)) as reporter:
        (outcome,) = train_job([run], folder, DataSets(), reporter, stop, retry_failed=True)
    return outcome


def members(run: SweepRun, ratios: tuple[float, ...]) -> list[SweepRun]:
    name = run.config.dataset
    return [
        SweepRun(f"r{ratio:g}", resolve(dataclasses.replace(run.config, ratio=ratio), name))
        for ratio in ratios
    ]


@pytest.mark.thorough
def test_a_population_leaves_finished_and_occupied_members_and_trains_the_others(run, folder):
    runs = members(run, (0.25, 0.5, 0.75))
    for each in runs:
        folder.run(each.name).path.mkdir(parents=True)
    folder.run("r0.25").summary.write_text('{"test_top1": 0.5}')
    with folder.run("r0.5").locked(), Reporter(1, Console(quiet=True)) as reporter:
        outcomes = train_job(runs, folder, DataSets(), reporter, Interruption(), retry_failed=True)
    assert [outcome.end for outcome in outcomes] == ["finished", "occupied", "finished"]
    assert folder.run("r0.25").summary.read_text() == '{"test_top1": 0.5}'
    assert json.loads(folder.run("r0.75").summary.read_text())["epochs"] == 1
    assert folder.state("r0.5") == "new"


@pytest.mark.parametrize("n_runs", [1, 2])
def test_what_failed_is_left_unless_it_is_to_be_tried_again(run, folder, monkeypatch, n_runs):
    """As in a job that SLURM starts again after one of its members failed in it."""
    trained: list[str] = []

    def train(members: Sequence[Any], *_: object, **__: object) -> list[MemberOutcome]:
        trained.extend(member.folder.path.name for member in members)
        return [MemberOutcome({"test_top1": 0.5, "best_test_top1": 0.5}) for _ in members]

    monkeypatch.setattr("sparsemlp.sweeps.sweep_job.train_population", train)
    monkeypatch.setattr(Run, "train", lambda self, *_, **__: train([self])[0].summary)
    runs = members(run, (0.25, 0.5))[:n_runs]
    folder.run("r0.25").path.mkdir(parents=True)
    folder.run("r0.25").write_failure(NotFiniteError("NaN in epoch 1"))
    for retry_failed in (False, True):
        trained.clear()
        with Reporter(1, Console(quiet=True)) as reporter:
            outcome, *_ = train_job(
                runs, folder, DataSets(), reporter, Interruption(), retry_failed=retry_failed
            )
        assert ("r0.25" in trained) == retry_failed
        assert outcome.end == ("finished" if retry_failed else "failed")
        assert folder.run("r0.25").failure.exists() != retry_failed
        assert retry_failed or "failed before, NotFiniteError: NaN" in outcome.told


def test_what_goes_wrong_with_a_population_is_recorded_for_each_member(run, folder, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr("sparsemlp.sweeps.sweep_job.train_population", fail)
    runs = members(run, (0.25, 0.5))
    with Reporter(1, Console(quiet=True)) as reporter:
        outcomes = train_job(runs, folder, DataSets(), reporter, Interruption(), retry_failed=True)
    assert [outcome.end for outcome in outcomes] == ["failed", "failed"]
    assert all("disk gone" in folder.run(each.name).read_failure() for each in runs)


def test_a_member_that_cannot_go_on_leaves_the_others_alone(run, folder, monkeypatch):
    def go_on(members: list[Any], *_: object, **__: object) -> list[MemberOutcome]:
        finished = MemberOutcome({"test_top1": 0.5, "best_test_top1": 0.5})
        lost = MemberOutcome(failure=InputError("it lacks records"))
        return [lost if member.settings.ratio == 0.25 else finished for member in members]

    monkeypatch.setattr("sparsemlp.sweeps.sweep_job.train_population", go_on)
    runs = members(run, (0.25, 0.5, 0.75))
    with Reporter(1, Console(quiet=True)) as reporter:
        outcomes = train_job(runs, folder, DataSets(), reporter, Interruption(), retry_failed=True)
    assert [outcome.end for outcome in outcomes] == ["failed", "finished", "finished"]
    assert "lacks records" in folder.run("r0.25").read_failure()
    assert not folder.run("r0.5").failure.exists()


@pytest.mark.parametrize("n_begun", [0, 1, 3])
def test_a_population_that_was_killed_while_it_began_stays_together(
    run, folder, monkeypatch, n_begun
):
    """Of some members the configuration is written, of others not yet."""
    trained: list[tuple[int, bool]] = []

    def go_on(members: list[Any], *_: object, resume: bool, **__: object) -> list[MemberOutcome]:
        trained.append((len(members), resume))
        return [MemberOutcome({"test_top1": 0.5, "best_test_top1": 0.5}) for _ in members]

    monkeypatch.setattr("sparsemlp.sweeps.sweep_job.train_population", go_on)
    runs = members(run, (0.25, 0.5, 0.75))
    for each in runs[:n_begun]:
        folder.run(each.name).path.mkdir(parents=True)
        folder.run(each.name).config.write_text(to_json(each.config))
    with Reporter(1, Console(quiet=True)) as reporter:
        train_job(runs, folder, DataSets(), reporter, Interruption(), retry_failed=False)
    assert trained == [(3, n_begun > 0)]


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
    folder.run("tiny").summary.write_text('{"test_top1": 0.5}')
    assert train(run, folder).end == "finished"
    assert folder.run("tiny").summary.read_text() == '{"test_top1": 0.5}'


def test_a_folder_that_holds_another_run_is_a_failure_and_stays(run, folder):
    place = folder.run("tiny")
    place.path.mkdir(parents=True)
    other = resolve(Config(dataset=run.config.dataset, seed=5), run.config.dataset)
    place.config.write_text(to_json(other))
    assert train(run, folder).end == "failed"
    assert "is another run" in folder.run("tiny").read_failure()
    assert place.config.read_text() == to_json(other)


def test_a_population_that_breaks_down_fails_its_own_members_alone(run, folder, monkeypatch):
    """Of three members two fit into memory together; the third one's program does not."""
    tried: list[list[str]] = []

    class Part:
        def __init__(self, own: list[Any], _: object) -> None:
            self.own = own

        def train(self, *_: object, **__: object) -> list[MemberOutcome]:
            if len(self.own) == 1:
                raise RuntimeError("out of memory")
            summary = {"test_top1": 0.5, "best_test_top1": 0.5}
            for recorder in self.own:
                recorder.folder.summary.write_text(json.dumps(summary))
            return [MemberOutcome(summary) for _ in self.own]

    def fitted(own: list[Any], *_: object) -> tuple[None, int]:
        tried.append([recorder.folder.path.name for recorder in own])
        return None, 2

    monkeypatch.setattr("sparsemlp.populations.population._fitted", fitted)
    monkeypatch.setattr("sparsemlp.populations.population.PopulationRun", Part)
    runs = members(run, (0.25, 0.5, 0.75))
    with Reporter(1, Console(quiet=True)) as reporter:
        outcomes = train_job(runs, folder, DataSets(), reporter, Interruption(), retry_failed=True)
    assert tried == [["r0.25", "r0.5", "r0.75"], ["r0.25", "r0.5"], ["r0.75"]]
    assert [outcome.end for outcome in outcomes] == ["finished", "finished", "failed"]
    assert [folder.run(each.name).failure.exists() for each in runs] == [False, False, True]


def test_members_keep_what_they_came_to_when_another_one_ends_their_population(
    run, folder, monkeypatch
):
    """The first has its summary, the second is not finite, the third cannot write."""

    def train(members: list[Any], *_: object, **__: object) -> list[Any]:
        members[0].folder.summary.write_text('{"test_top1": 0.5}')
        members[1].folder.write_failure(NotFiniteError("NaN in epoch 1"))
        return [MemberOutcome(failure=OSError("disk gone"))] * 3

    monkeypatch.setattr("sparsemlp.sweeps.sweep_job.train_population", train)
    runs = members(run, (0.25, 0.5, 0.75))
    # What it failed for another time is no reason now.
    folder.run("r0.75").write_failure(ValueError("of yesterday"))
    with Reporter(1, Console(quiet=True)) as reporter:
        outcomes = train_job(runs, folder, DataSets(), reporter, Interruption(), retry_failed=True)
    assert [outcome.end for outcome in outcomes] == ["finished", "failed", "failed"]
    assert not folder.run("r0.25").failure.exists()
    assert "NaN in epoch 1" in folder.run("r0.5").read_failure()
    assert "disk gone" in folder.run("r0.75").read_failure()


def test_a_device_that_answers_no_more_fails_one_run_and_leaves_the_others(
    run, folder, monkeypatch, capsys
):
    others = members(run, (0.25, 0.5))
    lost = RuntimeError("an illegal memory access")

    def train(*_: Any, **__: Any) -> None:
        raise lost

    monkeypatch.setattr(Run, "train", train)
    monkeypatch.setattr(sweep_job, "device_answers", lambda: False)
    with (
        Reporter(1, Console(quiet=True)) as reporter,
        pytest.raises(DeviceLostError, match=r"r0\.25 failed: the same command goes on"),
    ):
        train_job(others[:1], folder, DataSets(), reporter, Interruption(), retry_failed=True)
    assert [folder.state(each.name) for each in others] == ["failed", "new"]
    assert "an illegal memory access" in capsys.readouterr().err


def test_a_run_knows_how_its_data_were_found_in_each_process_that_trains_it(
    run, folder, monkeypatch
):
    run = dataclasses.replace(run, notice="no network")
    told: list[str | None] = []

    def train(self: Run, *_: Any, **__: Any) -> None:
        told.append(self.setup.dataset.notice)

    monkeypatch.setattr(Run, "train", train)
    for _ in range(2):
        train_again = SweepFolder(folder.path)
        with Reporter(1, Console(quiet=True)) as reporter:
            train_job([run], train_again, DataSets(), reporter, Interruption(), retry_failed=False)
    assert told == ["no network"] * 2
