"""Accuracy against memory comes from run folders and plans alone."""

import dataclasses
from pathlib import Path

import pytest
import tiny
import tiny_images
import tradeoff
from PIL import Image
from tradeoff import Point, name_runs, plan_run, tradeoff_figure

from sparsemlp import InputError
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import to_json
from sparsemlp.runs.history import History
from sparsemlp.studies.run_reader import read_run

DENSE = Config(dim=32, depth=1, batch_size=128, epochs=10)


def write_run(folder: Path, config: Config, accuracies: list[float]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(to_json(config))
    (folder / "environment.json").write_text('{"devices": 1}')
    for epoch, accuracy in enumerate(accuracies, start=1):
        record = {"epoch": epoch, "step": 5 * epoch, "test_top1": accuracy, "seconds": 0.1 * epoch}
        History(folder / "metrics.jsonl").append(record)
    return folder


@pytest.mark.slow
def test_every_run_is_a_point_and_needs_no_data(tmp_path: Path, capsys: pytest.CaptureFixture):
    dense = dataclasses.replace(DENSE, dataset="cifar10")
    pruned = dataclasses.replace(dense, activation="8x8:0.8")
    write_run(tmp_path / "runs" / "dense", dense, [0.25, 0.5])
    write_run(tmp_path / "runs" / "pruned", pruned, [0.25])
    out = tmp_path / "tradeoff.png"
    tradeoff.draw_tradeoff(tmp_path / "runs", out)
    with Image.open(out) as picture:
        assert picture.width > 600
    text = capsys.readouterr().out
    for expected in ("50.00%", "25.00%", "100%", "activations"):
        assert expected in text
    runs = [read_run(tmp_path / "runs" / name, name) for name in ("dense", "pruned")]
    one, other = (plan_run(run, run.name) for run in runs)
    assert one.name.endswith("(2 of 10 epochs)")
    assert one.peak_bytes > other.peak_bytes
    assert one.step_ms == pytest.approx(1000 * 0.15 / 5)


@pytest.mark.thorough
def test_a_run_on_other_images_takes_their_shapes(tmp_path: Path):
    data = tiny.write_npz(tmp_path / "tiny.npz")
    config = dataclasses.replace(DENSE, dataset=str(data), batch_size=8, dim=8)
    point = plan_run(read_run(write_run(tmp_path / "run", config, [0.5]), "a"), "a")
    assert 0 < point.peak_bytes < 2**22
    masked = dataclasses.replace(config, block="2x4", ratio=0.5)
    other = plan_run(read_run(write_run(tmp_path / "masked", masked, [0.5]), "a"), "a")
    assert other.peak_bytes != point.peak_bytes


def test_memory_is_told_as_a_share_of_the_largest(tmp_path: Path, monkeypatch, capsys):
    for name in ("a", "b"):
        write_run(tmp_path / name, DENSE, [0.5])
    planned = iter((Point("a [/v2]", 0.5, 2**20, 1.0), Point("b", 0.5, 2**22, 1.0)))
    monkeypatch.setattr(tradeoff, "plan_run", lambda *_: next(planned))
    tradeoff.draw_tradeoff(tmp_path)
    assert (tmp_path / "tradeoff.png").is_file()
    said = capsys.readouterr().out
    assert said.index("100%") < said.index("25%")
    assert "a [/v2]" in said


def test_points_stand_where_they_belong():
    points = [Point("a", 0.5, 2**20, 1.0), Point("b", 0.25, 2**21, 1.0)]
    figure = tradeoff_figure(points, "title")
    axes = figure.axes[0]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines] == [(1, 50), (2, 25)]  # pyright: ignore[reportIndexIssue]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["a: 50.00%, 1 MiB", "b: 25.00%, 2 MiB"]


@pytest.mark.parametrize(("mib", "told"), [(0.41, "0.41"), (3.375, "3.38"), (1234, "1234")])
def test_memory_is_told_so_that_small_models_differ(mib, told):
    figure = tradeoff_figure([Point("a", 0.5, int(mib * 2**20), 1.0)], "title")
    (text,) = figure.legends[0].get_texts()
    assert text.get_text() == f"a: 50.00%, {told} MiB"


def test_no_runs_and_no_picture_are_errors(tmp_path: Path):
    with pytest.raises(InputError, match="is no folder: give a folder of runs"):
        tradeoff.draw_tradeoff(tmp_path / "absent")
    with pytest.raises(InputError, match="no run with a finished epoch"):
        tradeoff.draw_tradeoff(tmp_path, tmp_path / "a.png")
    with pytest.raises(InputError, match=r"end it in \.png"):
        tradeoff.draw_tradeoff(tmp_path, tmp_path / "a.txt")


def test_runs_on_a_large_image_set_take_its_shapes_and_lost_ones_are_left_out(tmp_path, capsys):
    images = tiny_images.write_folder(tmp_path / "images")
    config = dataclasses.replace(
        DENSE, model="resmlp", dataset=str(images), image_size=16, batch_size=4, dim=8
    )
    write_run(tmp_path / "runs" / "a", config, [0.5])
    lost = dataclasses.replace(config, dataset=str(tmp_path / "gone"))
    write_run(tmp_path / "runs" / "b", lost, [0.5])
    tradeoff.draw_tradeoff(tmp_path / "runs", tmp_path / "a.png")
    said = capsys.readouterr()
    assert "50.00%" in said.out
    assert said.err.startswith(f"left out: {tmp_path / 'runs' / 'b'}: ")
    (tmp_path / "runs" / "a" / "config.json").write_text(to_json(lost))
    with pytest.raises(InputError, match=r"no run below .* can be planned"):
        tradeoff.draw_tradeoff(tmp_path / "runs", tmp_path / "a.png")


def test_runs_have_names_of_their_own(tmp_path: Path):
    of_run = {"seed": (0, 1, 0), "mix_probability": (1.0, 1.0, 0.0)}
    runs = []
    for index, values in enumerate(zip(*of_run.values(), strict=True)):
        config = dataclasses.replace(
            DENSE, dataset="cifar10", **dict(zip(of_run, values, strict=True))
        )
        runs.append(read_run(write_run(tmp_path / str(index), config, [0.5]), str(index)))
    names = name_runs(runs)
    assert len(set(names)) == 3
    assert names[1].endswith("seed 1")
