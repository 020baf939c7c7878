"""The program on a folder and on TFDS: trained, interrupted, resumed, and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import launch
import pytest
import tiny
import tiny_stream
from tiny_images import examples, write_folder, write_tfds

from sparsemlp.configuration.config import Config
from sparsemlp.runs.command_line import main

PROGRAM = Path(__file__).parents[2] / "experiments" / "imagenet.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images") / "tiny")


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    assert tiny_stream.start(folder, out) == 0
    return out


def test_a_run_leaves_the_records_that_a_run_on_a_small_set_leaves(finished: Path):
    records = tiny.records(finished)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["density"] for record in records] == [1.0, 0.5, 0.5]
    assert all(record["training_unreadable"] == 0 for record in records)
    assert all(record["seconds_waiting"] >= 0 for record in records)
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["dataset"] == "tiny (folder)"
    assert summary["steps"] == 9
    assert (finished / "curves.png").stat().st_size > 0


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1, 5])
def test_stopped_within_an_epoch_and_resumed_it_ends_as_one_never_stopped(
    folder: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        tiny.at_step(patched, step, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny_stream.start(folder, out) == 128 + signal.SIGTERM
    assert tiny.resume(out) == 0
    untimed = [
        [{k: v for k, v in r.items() if k != "seconds_waiting"} for r in tiny.records(each)]
        for each in (out, finished)
    ]
    assert untimed[0] == untimed[1]


@pytest.mark.thorough
def test_an_adaptive_ratio_follows_images_that_are_held_out(folder: Path, tmp_path: Path):
    out, more = tmp_path / "out", {"ratio_schedule": "adaptive", "hold_out": 0.25, "epochs": 2}
    assert tiny_stream.start(folder, out, **more) == 0
    records = tiny.records(out)
    # 17 of the 23 images are trained on, in batches of 8: three steps an epoch.
    assert [record["step"] for record in records] == [3, 6]
    assert all(record["validation_loss"] > 0 for record in records)
    assert records[0]["density"] == 1 > records[1]["density"]
    assert records[1]["held_out_unreadable"] == 0


def test_a_moved_folder_is_resumed_and_another_one_refused(
    folder: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out, moved = tmp_path / "out", tmp_path / "elsewhere"
    shutil.copytree(finished, out)
    shutil.copytree(folder, moved)
    assert tiny.resume(out, f"--dataset={moved}") == 0
    (moved / "train" / "n01" / "more.JPEG").write_bytes(b"")
    assert tiny.resume(out, f"--dataset={moved}") == 2
    assert "the data are not those" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"patch_size": 3}, "patch"),
        ({"batch_size": 24}, "--batch-size=24 is larger than the 23 training images"),
        ({"devices": 1000}, "--devices=1000: JAX sees"),
        ({"dataset": "nowhere"}, "nowhere is not prepared"),
    ],
)
def test_what_does_not_fit_is_one_line_and_exit_code_2(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes, complaint
):
    options = tiny.flags(**(tiny_stream.RUN | {"dataset": folder} | changes))
    assert tiny.command(*options, f"--data-dir={tmp_path}", f"--out={tmp_path / 'out'}") == 2
    complained = capsys.readouterr().err
    assert complained.startswith("error: ")
    assert complaint in complained
    assert complained.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_classes_that_differ_between_the_splits_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write_folder(tmp_path / "tiny")
    shutil.rmtree(folder / "val" / "n03")
    assert tiny_stream.start(folder, tmp_path / "out") == 2
    assert "has 2 classes and" in capsys.readouterr().err


def test_too_many_unreadable_images_end_the_run_and_name_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write_folder(tmp_path / "tiny")
    (folder / "train" / "n01" / "n01_0001.JPEG").write_bytes(b"no image")
    assert tiny_stream.start(folder, tmp_path / "out") == 2
    complained = capsys.readouterr().err
    assert "error: 1 of 23 images cannot be read" in complained
    assert tiny_stream.start(folder, tmp_path / "tolerant", unreadable=0.2, epochs=1) == 0


def test_the_program_trains_by_default_what_the_thesis_trained(monkeypatch: pytest.MonkeyPatch):
    found: list[Config] = []

    def note(description: str | None, *, defaults: Config) -> int:
        assert description is not None
        assert "imagenet.py --block=32x32 --ratio=0.8" in description
        found.append(defaults)
        return 0

    monkeypatch.setattr("sparsemlp.runs.command_line.main", note)
    with pytest.raises(SystemExit) as ended:
        exec(compile(PROGRAM.read_text(), PROGRAM, "exec"), {"__name__": "__main__"})
    assert ended.value.code == 0
    assert (found[0].model, found[0].dataset) == ("resmlp_imagenet", "imagenet2012")
    assert main is not note


@pytest.mark.slow
def test_four_devices_train_on_tfds_with_worker_processes(tmp_path: Path):
    """The program as a process, its workers started anew: records as those of one device."""
    splits = {"train": examples("train"), "validation": examples("val")}
    data_dir = write_tfds(tmp_path / "tfds", splits)
    options = tiny_stream.RUN | {"workers": 2, "dataset": "tiny_imagenet", "data_dir": data_dir}
    losses = []
    for devices in (1, 4):
        out = tmp_path / f"on-{devices}"
        environment = os.environ | {
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(PROGRAM.parents[1]),
        }
        done = subprocess.run(
            [sys.executable, PROGRAM, *tiny.flags(**options), f"--out={out}"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"on {devices} x cpu" in done.stdout
        losses.append([record["loss"] for record in tiny.records(out)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_two_processes_decode_and_train_each_its_part(folder: Path, finished: Path, tmp_path: Path):
    """Two devices each; the last batch, 7 images in 8 rows, is computed whole by all of them."""
    out = tmp_path / "out"
    flags = [*tiny.flags(**tiny_stream.RUN), f"--dataset={folder}", f"--out={out}"]
    with launch.started(flags, launch.environment()) as started:
        ends = launch.ended(started)
    assert [code for code, _ in ends] == [0, 0], ends
    assert "on 4 x cpu in 2 processes, 2 images each" in ends[0][1]
    found, expected = tiny.records(out), tiny.records(finished)
    for name in ("loss", "test_loss"):
        values = [[record[name] for record in records] for records in (found, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-4)
