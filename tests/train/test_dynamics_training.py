"""Whole runs with masks that move: resumed ones equal those never stopped, and frozen ones stay."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

data = tiny.data
no_pictures = tiny.no_pictures

EVERYTHING: dict[str, Any] = {
    "epochs": 5,
    "backward": "straight_through",
    "score": "gradient",
    "score_decay": 0.9,
    "hysteresis": 0.1,
    "budget": "erk",
    "ratio_schedule": "cubic",
    "ramp_epochs": 2,
    "freeze_epoch": 4,
    "dropped_decay": 2e-4,
    "moments": "reset",
    "lr": 0.03,
}
ADAPTIVE: dict[str, Any] = {"epochs": 4, "ratio_schedule": "adaptive", "hold_out": 0.25}


GLOBAL: dict[str, Any] = {"epochs": 4, "budget": "global", "lr": 0.03}
CASES = {"everything": EVERYTHING, "adaptive": ADAPTIVE, "global": GLOBAL}


@pytest.fixture(scope="module", params=CASES)
def case(request, data, tmp_path_factory) -> tuple[dict[str, Any], Path]:
    options = CASES[request.param]
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert tiny.start(data, out, **options) == 0
    return options, out


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, 18])
def test_a_stopped_and_resumed_run_equals_one_never_stopped(
    case, data, tmp_path, monkeypatch, step
):
    options, whole = case
    out = tmp_path / "parts"
    with monkeypatch.context() as patched:
        tiny.at_step(patched, step, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.start(data, out, **options) == 143
    assert tiny.resume(out) == 0
    tiny.assert_same_outcome(out, whole)


@pytest.mark.slow
def test_the_ratio_grows_and_frozen_masks_stay(case):
    options, out = case
    lines = tiny.records(out)
    densities = [line["density"] for line in lines]
    assert densities[0] == 1
    if options is EVERYTHING:
        assert densities == sorted(densities, reverse=True)
        assert densities[1] > densities[3] == densities[4]
        assert lines[4]["changed_blocks"] == 0
        with np.load(out / "mask_activity.npz") as file:
            steps = int(file["masked_steps"])
            counts = {name: file[name].reshape(-1) for name in file if "kernel" in name}
        # 4 masked epochs of 6 steps, the last with the mask of the step before it.
        assert steps == 24
        last_kept = tiny.last_state(out).state.last_kept
        for name, count in counts.items():
            kept = np.asarray(last_kept[name])
            assert np.all(count[kept] >= 7)
            assert np.all(count[~kept] <= 17)


@pytest.mark.slow
def test_a_run_that_ends_before_it_masks_has_a_best_epoch_and_names_its_device(data, tmp_path):
    never = ADAPTIVE | {"epochs": 1, "mask_start_epoch": 1, "devices": 1}
    assert tiny.start(data, tmp_path / "run", **never) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best_test_top1"] == summary["test_top1"] >= 0
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["devices"] == 1 <= environment["visible_devices"]


@pytest.mark.thorough
def test_the_adaptive_ratio_follows_the_losses_that_the_run_recorded(data, tmp_path):
    out = tmp_path / "run"
    assert tiny.start(data, out, **ADAPTIVE | {"epochs": 3, "batch_size": 12}) == 0
    lines = tiny.records(out)
    assert all(line["validation_loss"] > 0 for line in lines)
    # 12 of the 48 training images are held out.
    assert [line["step"] for line in lines] == [3, 6, 9]
    level, best, densities = 1, math.inf, [1.0]
    for line in lines[1:]:
        kept = [math.ceil(n * (1 - tiny.RATIO * level / 8)) for n in (2, 16, 16)]
        densities.append(sum(kept) / 34)
        near_the_best = line["validation_loss"] <= 1.05 * best
        level = level + 1 if near_the_best else max(1, level - 1)
        best = min(best, line["validation_loss"])
    assert [line["density"] for line in lines] == densities
    assert densities[1] > densities[2]


@pytest.mark.slow
def test_a_run_of_an_earlier_version_goes_on_without_a_memory(data, tmp_path, monkeypatch):
    """Its configuration lacks the options of moving masks, its records the test loss."""
    out = tmp_path / "old"
    with monkeypatch.context() as patched:
        tiny.at_step(patched, 8, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.start(data, out) == 143
    config = json.loads((out / "config.json").read_text())
    for name in (*(name for name in EVERYTHING if name not in tiny.RUN), "hold_out"):
        if name not in ("lr", "backward", "score"):
            config.pop(name, None)
    (out / "config.json").write_text(json.dumps(config))
    (first,) = (json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())
    del first["test_loss"]
    (out / "metrics.jsonl").write_text(json.dumps(first) + "\n")
    assert tiny.resume(out) == 0
    assert len(tiny.records(out)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "gradient"}, "choose --backward=straight_through or dense"),
        ({"freeze_epoch": 1}, "--freeze-epoch=1 is not after the first masked epoch, 1"),
        ({"ramp_epochs": 2}, "--ramp-epochs=2 needs --ratio-schedule=cubic"),
        ({"ratio_schedule": "linear"}, "choose one of constant, cubic, adaptive"),
        ({"ratio_schedule": "adaptive", "hold_out": 0.0}, "give --hold-out"),
        ({"hold_out": 1.0}, r"--hold-out=1.0 is outside [0, 1)"),
        ({"hold_out": 0.001}, "of the 48 training images cannot be held out"),
        ({"budget": "fair"}, "choose one of uniform, erk, global"),
        ({"ratio": 0.0, "hysteresis": 0.1}, "--hysteresis=0.1 needs a mask: give --ratio"),
        ({"moments": "halve"}, "choose one of keep, reset"),
    ],
)
def test_options_out_of_range_end_with_one_line(
    data, tmp_path, capsys, unchecked, options, message
):
    assert tiny.start(data, tmp_path / "run", **options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_lost_budget_is_an_error_that_names_the_file(data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        tiny.at_step(patched, 8, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.start(data, out, **GLOBAL) == 143
    (out / "budget.json").unlink()
    capsys.readouterr()
    assert tiny.resume(out) == 2
    assert f"{out / 'budget.json'} is lost" in capsys.readouterr().err
