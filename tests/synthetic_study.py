"""Run folders that were never trained: their numbers come from formulas, and say so.

    python tests/synthetic_study.py FOLDER

writes the whole grid of the thesis, 342 runs of 200 epochs, with `sweep.json`, a failed run, a
stopped one and a missing one.
"""

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsemlp.blocks import block_grid, n_kept_blocks, parse_block
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import to_json
from sparsemlp.configuration.settings import Settings, resolve
from sparsemlp.cost_models.costs import KINDS, Shapes
from sparsemlp.files import encode
from sparsemlp.studies.study import Study, read_study

SOURCE = "cifar10 (synthetic numbers, nothing was trained)"
SIDES = (2, 4, 8, 16, 32, 64)
THESIS_BLOCKS = (
    "1x1",
    *(f"1x{n}" for n in SIDES),
    *(f"{n}x1" for n in SIDES),
    *(f"{n}x{n}" for n in SIDES),
)
THESIS_RATIOS = tuple(n / 10 for n in range(1, 10))
STEPS_PER_EPOCH = 391
ENVIRONMENT = {
    "versions": {"python": "3.12.1", "jax": "0.12.0.1", "numpy": "2.5.5"},
    "platform": "synthetic",
    "processor": "a synthetic processor",
    "cores": 2,
    "backend": "cpu",
    "device": "cpu",
    "devices": 1,
    "commit": "0" * 40,
    "command": ["experiments/cifar10.py", "--a='<b>&'"],
    "dataset": SOURCE,
    "notice": None,
    "earlier": [],
}


def settings(**changes: Any) -> Settings:
    """Settings of a run on CIFAR-10."""
    values: dict[str, Any] = {"dataset": "cifar10"} | changes
    return resolve(Config(**values), "cifar10")


def density(run: Settings) -> float:
    """Share of the maskable weights that the masks of a run keep."""
    if not run.ratio:
        return 1.0
    kernels = [Shapes().kernel(kind) for kind in KINDS]
    block = parse_block(run.block or "32x32")
    n_blocks = [math.prod(block_grid(kernel, block)) for kernel in kernels]
    kept = sum(n_kept_blocks(n, run.ratio) for n in n_blocks) * math.prod(block)
    return kept / sum(math.prod(kernel) for kernel in kernels)


def records(run: Settings, n_epochs: int | None = None) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`: smooth curves with a little noise of the run's own."""
    n_epochs = run.epochs if n_epochs is None else n_epochs
    noise = np.random.default_rng(
        [run.seed, sum(map(ord, run.block or "")), int(10 * (run.ratio or 0))]
    )
    loss_of = {"masked": 0.09, "straight_through": 0.13, "dense": 0.5}[run.backward]
    rows, cols = parse_block(run.block or "32x32")
    top = 0.81 - loss_of * (run.ratio or 0) ** 2 * (1.2 - 0.05 * math.log2(rows * cols))
    kept, made = density(run), []
    for epoch in range(1, n_epochs + 1):
        progress = epoch / run.epochs
        masked = epoch > run.mask_start_epoch and kept < 1
        accuracy = 0.1 + (top - 0.1) * (1 - math.exp(-4 * progress)) / (1 - math.exp(-4))
        accuracy += 0.006 * (1 - progress) * noise.standard_normal() + 0.002 * run.seed
        seconds = 8.0 + 20 * (kept if masked else 1.0) + 0.2 * noise.random()
        made.append(
            {
                "epoch": epoch,
                "step": epoch * STEPS_PER_EPOCH,
                "loss": 2.5 - 1.6 * accuracy,
                "train_top1": 0.8 * accuracy,
                "train_top5": min(1.0, 1.2 * accuracy),
                "test_top1": accuracy,
                "test_top5": 1 - (1 - accuracy) ** 2 / 2,
                "density": kept if masked else 1.0,
                "changed_blocks": 0.3 * math.exp(-3 * math.log2(2 * rows * cols) * progress)
                if masked
                else 0.0,
                "dropped_norm": 2.0 * (1 - progress) if masked else 0.0,
                "learning_rate": 0.01 * (1 - progress),
                "seconds": seconds,
                "images_per_second": 50_000 / seconds,
                "dataset": SOURCE,
            }
        )
    return made


def write_run(folder: Path, run: Settings, n_epochs: int | None = None) -> Path:
    """Writes a run folder; with fewer epochs than its own it was stopped."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(to_json(run))
    (folder / "environment.json").write_bytes(encode(ENVIRONMENT, indent=2))
    made = records(run, n_epochs)
    (folder / "metrics.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in made))
    _write_activity(folder, run, len(made))
    if len(made) == run.epochs:
        last = {key: made[-1][key] for key in ("density", "loss", "test_top1", "test_top5")}
        summary = last | {
            "dataset": SOURCE,
            "notice": None,
            "epochs": run.epochs,
            "steps": run.epochs * STEPS_PER_EPOCH,
            "parameters": 192_074,
            "best_test_top1": max(record["test_top1"] for record in made),
            "seconds": sum(record["seconds"] for record in made),
        }
        (folder / "summary.json").write_bytes(encode(summary, indent=2))
    return folder


def retrain_on(source: str, folder: Path) -> None:
    """Makes the run in a folder one on other images of the same name."""
    for name in ("environment.json", "metrics.jsonl", "summary.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(SOURCE, source))


def _write_activity(folder: Path, run: Settings, n_epochs: int) -> None:
    """Counts that fall from the first block of each kernel to the last."""
    arrays: dict[str, Any] = {}
    steps = max(0, n_epochs - run.mask_start_epoch) * STEPS_PER_EPOCH
    if run.ratio:
        for kind in KINDS:
            grid = block_grid(Shapes().kernel(kind), parse_block(run.block or "32x32"))
            share = np.linspace(1, 0, math.prod(grid)) ** (run.ratio / (1 - run.ratio))
            arrays[f"block_0/{kind}/kernel"] = (steps * share).astype(np.int32).reshape(grid)
    np.savez(folder / "mask_activity.npz", **arrays, masked_steps=steps, dataset=SOURCE)


def name_of(run: Settings) -> str:
    """The folder of a run in a sweep."""
    masking = f"{run.block}-{run.ratio:g}-{run.backward}" if run.ratio else "dense"
    return f"{masking}-seed{run.seed}"


def grid(
    blocks: Iterable[str] = THESIS_BLOCKS,
    ratios: Sequence[float] = THESIS_RATIOS,
    backwards: Sequence[str] = ("masked", "dense"),
    seeds: Sequence[int] = (0,),
    **changes: Any,
) -> list[Settings]:
    """The product of some options, with the dense model of each seed before it."""
    dense = [settings(seed=seed, **changes) for seed in seeds] if changes.pop("dense", True) else []
    return dense + [
        settings(block=block, ratio=ratio, backward=backward, seed=seed, **changes)
        for block in blocks
        for ratio in ratios
        for backward in backwards
        for seed in seeds
    ]


def write_sweep(folder: Path, planned: list[Settings], text: str = "hp: {}\n") -> None:
    """Writes `sweep.json` of a grid, and no run."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [{"name": name_of(run), "config": json.loads(to_json(run))} for run in planned]
    sweep = {"version": 1, "grid": "synthetic.yaml", "text": text, "runs": runs}
    (folder / "sweep.json").write_bytes(encode(sweep, indent=1))


def write_failure(folder: Path, error: str, kind: str = "NotFiniteError") -> None:
    """Says that a run failed."""
    folder.mkdir(parents=True, exist_ok=True)
    failure = {"error": error, "kind": kind, "time": "2026-11-21T12:00:00+00:00"}
    (folder / "failure.json").write_bytes(encode(failure, indent=2))


def write_study(folder: Path, planned: list[Settings]) -> None:
    """A sweep whose last run is missing, the one before it failed, the one before that stopped."""
    write_sweep(folder, planned, '# synthetic, nothing was trained\nhp:\n  block: ["<&>"]\n')
    runs = folder / "runs"
    *finished, stopped, failed, _ = planned
    for run in finished:
        write_run(runs / name_of(run), run)
    write_run(runs / name_of(stopped), stopped, max(1, stopped.epochs // 2))
    write_run(runs / name_of(failed), failed, max(1, failed.epochs // 3))
    write_failure(runs / name_of(failed), "loss became NaN in epoch 4; <lower> --lr & go on")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A sweep of 5 epochs: 3 blocks, 2 ratios, 3 backward passes and 2 seeds, and dense runs."""
    return _small(tmp_path_factory.getbasetemp() / "small_study")


@functools.cache
def _small(folder: Path) -> Study:
    """Written once, whichever modules of a test session take it."""
    backwards = ("masked", "dense", "straight_through")
    write_study(folder, grid(("2x2", "1x8", "32x32"), (0.5, 0.8), backwards, (0, 1), epochs=5))
    return read_study(folder)


def older(run: Settings) -> str:
    """The configuration of a run as a version without some options wrote it."""
    values = json.loads(to_json(run))
    for name in ("model", "activation", "gradient", "gradient_method", "optimizer", "layer_scale"):
        values.pop(name)
    return json.dumps(values)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-") or Path(sys.argv[1]).exists():
        sys.exit(f"usage: python {sys.argv[0]} FOLDER, which is made: 343 runs as if trained")
    target = Path(sys.argv[1])
    everything = grid()
    assert len(everything) == 343
    write_study(target, everything[1:])
    write_run(target / "runs" / "dense-seed0", dataclasses.replace(everything[0]))
