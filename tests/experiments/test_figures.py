"""Pictures over several runs come from their folders."""

import dataclasses
from pathlib import Path

import figures
import pytest
from PIL import Image

from sparsemlp import InputError
from sparsemlp.config import Config, to_json
from sparsemlp.history import History


def _run(folder: Path, config: Config, accuracies: list[float]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(to_json(config))
    for epoch, accuracy in enumerate(accuracies, start=1):
        record = {"epoch": epoch, "test_top1": accuracy, "dataset": "noise"}
        History(folder / "metrics.jsonl").append(record)


def test_a_line_a_run_with_its_last_accuracy(tmp_path: Path) -> None:
    dense = Config()
    masked = dataclasses.replace(dense, block="4x4", ratio=0.5, seed=3)
    _run(tmp_path / "runs" / "a", dense, [0.1, 0.5])
    _run(tmp_path / "runs" / "b", masked, [0.2, 0.4])
    _run(tmp_path / "runs" / "unfinished", dense, [])
    out = tmp_path / "accuracy.png"
    figures.draw_accuracy(tmp_path / "runs", out)
    with Image.open(out) as picture:
        assert picture.width > 600
    runs = [("dense", [{"epoch": 1, "test_top1": 0.5}]), ("b", [{"epoch": 1, "test_top1": 0.4}])]
    axes = figures.accuracy_figure(runs, "noise").axes[0]
    assert [line.get_label() for line in axes.lines] == ["dense: 50.00%", "b: 40.00%"]
    assert "noise" in axes.get_title()


def test_no_runs_and_no_picture_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run with a finished epoch"):
        figures.draw_accuracy(tmp_path, tmp_path / "accuracy.png")
    _run(tmp_path / "a", Config(), [0.5])
    with pytest.raises(InputError, match=r"end it in \.png"):
        figures.draw_accuracy(tmp_path, tmp_path / "accuracy.txt")
