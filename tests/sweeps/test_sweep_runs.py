"""A sweep that began keeps its runs; its grid may add some, not change any."""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import to_json
from sparsemlp.configuration.settings import resolve
from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid import read_grid
from sparsemlp.sweeps.sweep_folder import Sweep, SweepFolder
from sparsemlp.sweeps.sweep_runs import resolved, settle


class Found(NamedTuple):
    """A data set as far as a sweep asks for it."""

    name: str
    notice: str | None = None


BEGUN = "hp:\n  ratio: [0, 0.5]\nfixed:\n  dataset: digits\n"


@pytest.fixture
def folder(tmp_path) -> SweepFolder:
    made = SweepFolder(tmp_path / "sweep")
    made.create()
    return made


def settled(folder: SweepFolder, text: str, *, look: bool = False) -> Sweep:
    file = folder.path.parent / "grid.yaml"
    file.write_text(text)
    return settle(read_grid(file), folder, look=look)


def begin(folder: SweepFolder, text: str = BEGUN) -> Sweep:
    sweep = settled(folder, text)
    folder.write(sweep)
    return sweep


def names(sweep: Sweep) -> list[str]:
    return [run.name for run in sweep.runs]


def test_runs_are_settled_and_named(folder):
    sweep = begin(folder)
    assert names(sweep) == ["dense-seed0", "32x32-0.5-masked-seed0"]
    assert sweep.runs[1].config == resolve(Config(ratio=0.5, dataset="digits"), "digits")


def test_what_auto_found_stays_when_the_sweep_goes_on(folder, monkeypatch):
    text = "fixed:\n  dataset: auto\n"
    monkeypatch.setattr(
        "sparsemlp.sweeps.sweep_runs.load_dataset",
        lambda *_: Found("digits", "no network"),
    )
    begun = begin(folder, text)
    assert begun.runs[0].config.dataset == "digits"
    assert begun.runs[0].notice == "no network"
    monkeypatch.setattr(
        "sparsemlp.sweeps.sweep_runs.load_dataset", lambda *_: pytest.fail("asked again")
    )
    assert settled(folder, text).runs[0].config.epochs == 30
    more = settled(folder, "hp:\n  ratio: [0, 0.5]\nfixed:\n  dataset: auto\n")
    assert [run.notice for run in more.runs] == ["no network"] * 2


def test_the_same_grid_written_in_another_way_is_the_same_sweep(folder):
    before = begin(folder)
    text = "# a comment\nfixed: {data_set: digits, lr: 1e-2}\nhp:\n  ratio: [0.0, 0.50]\n"
    assert settled(folder, text).runs == before.runs


def test_added_runs_follow_those_that_began(folder):
    before = begin(folder)
    after = settled(folder, "hp:\n  ratio: [0.2, 0, 0.5]\nfixed:\n  dataset: digits\n")
    assert after.runs[:2] == before.runs
    assert names(after)[2:] == ["32x32-0.2-masked-seed0"]


def test_added_runs_never_take_a_name_that_is_taken(folder):
    begin(folder, "fixed:\n  dataset: digits\n")
    after = settled(
        folder, "hp:\n  - lr: [0.01]\n  - {}\nfixed: {dataset: digits}\n".replace("{}", "dim: [32]")
    )
    assert len(set(names(after))) == 2
    again = "hp:\n  - seed: [0]\n  - epochs: [5]\n    seed: [0]\nfixed: {dataset: digits}\n"
    assert names(settled(folder, again))[0] == "dense-seed0"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hp:\n  ratio: [0.5]\nfixed:\n  dataset: digits\n", "lacks the run dense-seed0"),
        (
            BEGUN + "  min_lr: 0.001\n",
            "dense-seed0 as it was begun (min_lr 1e-05, now 0.001) and 1 more",
        ),
        (BEGUN.replace("digits", "cifar10"), "dataset digits, now cifar10"),
    ],
)
def test_a_changed_grid_is_refused_with_what_differs(folder, text, told):
    begin(folder)
    with pytest.raises(InputError) as caught:
        settled(folder, text)
    assert told in str(caught.value)
    assert "--out" in str(caught.value)


def test_options_that_do_not_change_the_numbers_may_be_changed(folder):
    begin(folder)
    sweep = settled(folder, BEGUN + "  checkpoint_every: 5\n  allow_nan: true\n")
    assert {run.config.checkpoint_every for run in sweep.runs} == {5.0}


def stored(folder: SweepFolder, name: str, **changes) -> Path:
    """A run folder whose configuration has some values changed; None takes an option out."""
    run = next(run for run in begin(folder).runs if run.name == name)
    place = folder.run(name)
    place.path.mkdir(parents=True)
    values = json.loads(to_json(run.config)) | changes
    place.config.write_text(json.dumps({k: v for k, v in values.items() if v != "absent"}))
    return place.path


def test_a_run_folder_that_holds_another_run_is_refused(folder):
    path = stored(folder, "dense-seed0", lr=0.5)
    with pytest.raises(InputError) as caught:
        settled(folder, BEGUN)
    assert f"{path} is another run: lr 0.5, now 0.01" in str(caught.value)


def test_a_file_in_the_place_of_a_run_is_refused_before_any_is_trained(folder):
    path = folder.run("dense-seed0").path
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(InputError, match=f"{path} is no folder"):
        settled(folder, BEGUN)


def test_a_run_folder_of_an_older_version_is_read(folder):
    stored(folder, "dense-seed0", flip_test="absent", score="absent")
    assert len(settled(folder, BEGUN).runs) == 2


def test_a_run_folder_with_options_that_are_unknown_is_refused(folder):
    path = stored(folder, "dense-seed0", momentum=0.9)
    with pytest.raises(InputError, match=f"{path}/config.json is no configuration"):
        settled(folder, BEGUN)


def test_a_stored_sweep_of_an_older_version_gets_the_defaults_of_younger_options(folder):
    sweep = begin(folder)
    record = json.loads(folder.sweep.read_text())
    for run in record["runs"]:
        del run["config"]["cutout"]
    folder.sweep.write_text(json.dumps(record))
    read = folder.read()
    assert read is not None
    assert [resolved(run) for run in read.runs] == [run.config for run in sweep.runs]
    assert settled(folder, BEGUN).runs == sweep.runs
    assert dataclasses.is_dataclass(read)


def test_two_names_of_one_data_set_are_refused(folder, monkeypatch):
    monkeypatch.setattr(
        "sparsemlp.sweeps.sweep_runs.load_dataset",
        lambda *_: Found("digits"),
    )
    with pytest.raises(InputError, match=r"'digits' and 'auto' are the same here .*leave one out"):
        begin(folder, "hp:\n  dataset: [digits, auto]\n")


def test_auto_never_becomes_a_file_that_the_sweep_names(folder, monkeypatch, tmp_path):
    loaded: list[str] = []

    def load(name: str, *_: object) -> object:
        loaded.append(name)
        return Found("digits")

    monkeypatch.setattr("sparsemlp.sweeps.sweep_runs.load_dataset", load)
    own = f"dataset: [{tiny.write_npz(tmp_path / 'mine.npz')}], ratio: [0]"
    fixed = "fixed:\n  batch_size: 8\n"
    begin(folder, f"hp:\n  - {{{own}}}\n{fixed}")
    more = f"hp:\n  - {{{own}}}\n  - {{ratio: [0.5]}}\n{fixed}"
    looked = settled(folder, more, look=True)
    assert [run.config.dataset for run in looked.runs][1] == "auto"
    assert loaded == []
    assert [run.config.dataset for run in settled(folder, more).runs][1] == "digits"


def test_a_run_folder_of_somebody_else_is_named(folder, monkeypatch):
    begin(folder)

    def refused(path: Path, *_: object, **__: object) -> bool:
        if path.name == "config.json":
            raise PermissionError(13, "Permission denied")
        return path in (folder.sweep, folder.path)

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(InputError, match=r"dense-seed0 cannot be read: Permission denied"):
        settled(folder, BEGUN)


def test_new_runs_of_one_name_are_told_apart(folder, tmp_path):
    files = []
    for name in "abc":
        (tmp_path / name).mkdir()
        files.append(str(tiny.write_npz(tmp_path / name / "own.npz")))
    text = f"hp:\n  dataset: [{', '.join(files)}]\nfixed:\n  batch_size: 8\n  ratio: 0\n"
    found = names(settled(folder, text))
    assert found[0] == "dense-dataset-own-seed0"
    assert len(set(found)) == 3


def test_a_new_run_differs_from_those_before_on_a_disk_without_capitals(folder, tmp_path):
    upper, lower = (tiny.write_npz(tmp_path / f"{name}.npz") for name in ("Own", "own"))
    text = "hp:\n  dataset: [{}]\nfixed:\n  batch_size: 8\n  ratio: 0\n"
    begin(folder, text.format(upper))
    found = names(settled(folder, text.format(f"{upper}, {lower}")))
    assert found[0] == "dense-dataset-Own-seed0"
    assert len({name.casefold() for name in found}) == 2


def test_auto_is_what_each_data_dir_holds(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "sparsemlp.sweeps.sweep_runs.load_dataset", lambda _, path: Found(path.name)
    )
    monkeypatch.setattr("sparsemlp.sweeps.grid.check_points", lambda *_, **__: None)
    folders = ", ".join(str(tmp_path / name) for name in ("digits", "cifar10"))
    text = f"hp:\n  data_dir: [{folders}]\nfixed:\n  dataset: auto\n"
    assert [run.config.dataset for run in settled(folder, text).runs] == ["digits", "cifar10"]


@pytest.mark.parametrize(("named", "found"), [("cifar10", "digits"), ("digits", "cifar10")])
def test_auto_beside_a_named_set_stays_what_it_was(folder, monkeypatch, named, found):
    text = f"hp:\n  dataset: [{named}, auto]\n"
    monkeypatch.setattr("sparsemlp.sweeps.sweep_runs.load_dataset", lambda *_: Found(found))
    begun = names(begin(folder, text))
    assert len(begun) == 2
    assert names(settled(folder, text)) == begun


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("mask_start_epoch: 40", "--mask-start-epoch=40 is never reached in 30 epochs"),
        ("ratio_schedule: cubic\n  ramp_epochs: 60", "--ramp-epochs=60 does not reach the ratio"),
    ],
)
def test_what_cannot_be_trained_with_what_auto_found_is_refused(folder, monkeypatch, options, told):
    monkeypatch.setattr("sparsemlp.sweeps.sweep_runs.load_dataset", lambda *_: Found("digits"))
    text = f"hp:\n  seed: [0, 1]\nfixed:\n  ratio: 0.8\n  {options}\n"
    with pytest.raises(InputError) as caught:
        settled(folder, text)
    (line,) = str(caught.value).splitlines()
    assert "grid.yaml: digits, which dataset auto is here: " in line
    assert told in line
    monkeypatch.setattr("sparsemlp.sweeps.sweep_runs.load_dataset", lambda *_: Found("cifar10"))
    assert len(settled(folder, text).runs) == 2
