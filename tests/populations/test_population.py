"""Runs trained together end as they do alone, each in its own folder."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small_population
import tiny
from small_population import (
    COMMON,
    DATA,
    MEMBERS,
    STEPS,
    Quiet,
    member,
    population,
    state_of,
    train,
)

from sparsemlp.configuration.config_file import read_config
from sparsemlp.configuration.program import build_program
from sparsemlp.errors import InputError
from sparsemlp.populations import population_run
from sparsemlp.populations.population import memory_limit_bytes
from sparsemlp.populations.population_trainer import PopulationTrainer
from sparsemlp.runs.interruption import Interruption
from sparsemlp.runs.run import Run
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.schedule import MASKED
from sparsemlp.studies.run_reader import read_run

together = small_population.together


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last two of the runs, one after another."""
    folder = tmp_path_factory.mktemp("alone")
    for own in population(folder)[1:]:
        run = Run(own.settings, DATA, own.folder, own.title)
        run.train(Quiet(), Interruption(), resume=False)
    return folder


@pytest.mark.thorough
def test_each_folder_holds_what_a_single_run_leaves(together, alone):
    folder, outcomes = together
    for index, outcome in enumerate(outcomes):
        one, other = folder / str(index), alone / str(max(1, index))
        names = {path.name for path in other.iterdir()}
        if index == 0:
            names |= {"masks.png"}
        assert {path.name for path in one.iterdir()} == names
        assert outcome.failure is None
        assert outcome.summary == json.loads((one / "summary.json").read_text())
        settings = tiny.settings(**COMMON | MEMBERS[index])
        assert dataclasses.asdict(read_config(one / "config.json")) == dataclasses.asdict(settings)
        environment = json.loads((one / "environment.json").read_text())
        assert environment["population"] == {"members": 3, "engine": "reference"}
        assert environment["devices"] == 1
        assert read_run(one, str(index)).n_together == 3


def test_each_member_ends_as_its_run_alone(together, alone):
    """Masks are equal; a parameter may differ by rounding.

    Gradients are sums over 8 images of products over at most 16 tokens or features, through about
    ten layers: each of the 6 steps moves a parameter by less than 0.05 times the largest gradient,
    and what it is rounded by is `eps * 10 * sqrt(8 * 16)` of that, in each step.
    """
    eps = float(np.finfo(np.float32).eps)
    relative = STEPS * 10 * math.sqrt(8 * 16) * eps
    folder, _ = together
    for index, changes in list(enumerate(MEMBERS))[1:]:
        one, other = folder / str(index), alone / str(index)
        found, expected = tiny.records(one), tiny.records(other)
        assert [r["epoch"] for r in found] == [1, 2, 3]
        for a, b in zip(found, expected, strict=True):
            assert set(a) == set(b)
            for key, value in b.items():
                if isinstance(value, float):
                    assert a[key] == pytest.approx(value, rel=relative, abs=relative), key
                else:
                    assert a[key] == value, key
        with np.load(one / "mask_activity.npz") as a, np.load(other / "mask_activity.npz") as b:
            assert {n: a[n].tolist() for n in a} == {n: b[n].tolist() for n in b}
        settings = tiny.settings(**COMMON | changes)
        a, b = state_of(one, settings, STEPS), state_of(other, settings, STEPS)
        assert jax.tree.structure(a) == jax.tree.structure(b)
        for (path, leaf), want in zip(
            jax.tree.leaves_with_path(a.params), jax.tree.leaves(b.params), strict=True
        ):
            scale = max(1.0, float(np.abs(want).max()))
            atol = relative * scale
            np.testing.assert_allclose(leaf, want, rtol=0, atol=atol, err_msg=str(path))


def test_the_time_of_a_member_is_its_share(together):
    folder, _ = together
    lines = [
        [json.loads(line) for line in (folder / str(i) / "metrics.jsonl").read_text().splitlines()]
        for i in range(3)
    ]
    for records in zip(*lines, strict=True):
        assert len({record["seconds"] for record in records}) == 1
        for record in records:
            assert record["images_per_second"] == pytest.approx(16 / record["seconds"])


def test_a_member_that_breaks_down_does_not_stop_the_others(together, tmp_path, monkeypatch):
    monkeypatch.setattr(population_run, "CHUNK_SECONDS", 0.0)
    call = PopulationTrainer._call

    def poison(self: PopulationTrainer, program: Any, arguments: tuple) -> Any:
        state, healthy = call(self, program, arguments)
        if int(state.step) >= 4:
            params = jax.tree.map(lambda leaf: leaf.at[1].set(np.nan), state.params)
            state = dataclasses.replace(state, params=params)
            healthy = healthy.at[1].set(False)
        return state, healthy

    monkeypatch.setattr(PopulationTrainer, "_call", poison)
    reporter = Quiet()
    ended = train(population(tmp_path), reporter)
    assert ended[1].summary is None
    assert "NaN or infinite in epoch 2, at or before step 4; the last good" in str(ended[1].failure)
    assert any(line.startswith("1: loss or parameters became NaN") for line in reporter.said)
    assert RunFolder(tmp_path / "1").read_failure() == f"NotFiniteError: {ended[1].failure}"
    assert len(tiny.records(tmp_path / "1")) == 1
    assert not (tmp_path / "1" / "summary.json").exists()
    for index in (0, 2):
        assert ended[index].summary is not None
        one, other = tmp_path / str(index), together[0] / str(index)
        assert tiny.records(one) == tiny.records(other)


@pytest.mark.slow
def test_a_population_that_does_not_fit_is_split(tmp_path, monkeypatch):
    changes = {"epochs": 1, "mask_start_epoch": 0}
    members = [member(tmp_path / str(i), ratio=r, **changes) for i, r in enumerate((0.7, 0.4))]
    programs = [build_program(own.settings, DATA) for own in members]
    trainer = PopulationTrainer(programs, DATA, tiny.BATCH)
    needed = trainer.step_bytes(MASKED)
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trainer.initial()))
    monkeypatch.setattr("sparsemlp.populations.population_trainer._working_bytes", lambda _: 0)
    orders = 4 * DATA.n_train
    # The states, and copies of their best epochs, beside what the programs work with.
    assert trainer.step_bytes(MASKED).of_members == 2 * state + orders
    monkeypatch.undo()
    assert needed.of_members > 2 * state + orders
    assert needed.shared >= DATA.train_images.nbytes + DATA.test_images.nbytes
    reporter = Quiet()
    ended = train(members, reporter, limit_bytes=needed.total - 1)
    assert any("trained as 2 populations" in line for line in reporter.said)
    assert all(outcome.summary is not None for outcome in ended)
    for own in members:
        environment = json.loads(own.folder.environment.read_text())
        assert environment["population"]["members"] == 1


@pytest.mark.parametrize(
    ("of_device", "limit"), [({"bytes_limit": 1000}, 900), ({}, 2000), (None, 2000)], ids=str
)
def test_the_limit_is_a_share_of_the_memory_at_hand(monkeypatch, of_device, limit):
    """Of the device's, or of the computer's where the device does not tell."""

    class Device:
        def memory_stats(self) -> dict[str, int] | None:
            return of_device

    monkeypatch.setattr("sparsemlp.populations.population.jax.devices", lambda: [Device()])
    monkeypatch.setattr("sparsemlp.populations.population.host_memory_bytes", lambda: 4000)
    assert memory_limit_bytes() == limit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{}, {"block": "2x2"}], "the 2 runs differ in more than ratio, backward mode and seed"),
        ([{}, {"engine": "cpu"}], "--engine=cpu cannot train a population"),
        ([{"gradient": "2:4"}], "BlockMasking . GradientPruning cannot be trained in a population"),
    ],
    ids=str,
)
def test_runs_that_do_not_belong_together_are_refused(tmp_path, changes, message):
    members = [member(tmp_path / str(i), **own) for i, own in enumerate(changes)]
    with pytest.raises(InputError, match=message):
        train(members)
    assert not any((tmp_path / str(i) / "config.json").exists() for i in range(len(members)))
