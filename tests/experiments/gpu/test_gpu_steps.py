"""Training steps of contenders that can be compared; unknown options are refused."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from gpu import step_models, step_selection
from gpu import steps as gpu_steps

from sparsemlp import ResMLP


def test_all_contenders_have_the_batch_that_fits_the_dense_model(monkeypatch, tmp_path: Path):
    plans = []

    def fitting_batch(model, batch, _):
        plans.append(dict(model.plan))
        return batch // 2

    monkeypatch.setattr(gpu_steps, "fitting_batch", fitting_batch)
    out = tmp_path / "x.json"
    words = ["--model=tiny", "--contender=reference", "--dtype=float32", "--rounds=1", "--smoke"]
    monkeypatch.setattr(sys, "argv", ["steps.py", *words, f"--out={out}"])
    assert gpu_steps.main() == 0
    step = json.loads(out.read_text())
    assert plans == [{}]
    assert step["batch"] == gpu_steps.MODELS["tiny"].batch // 2
    assert step["ratio"] == gpu_steps.RATIO


def test_an_unknown_model_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path: Path):
    words = ["--model=vit", "--contender=dense", f"--out={tmp_path / 'x.json'}"]
    monkeypatch.setattr(sys, "argv", ["steps.py", *words])
    assert gpu_steps.main() == 2
    assert "--model=vit" in capsys.readouterr().err


def test_a_step_that_was_measured_stays_if_its_selection_fails(monkeypatch, tmp_path: Path):
    """And the engine that computes the step is the one that scores its blocks."""
    out, engines = tmp_path / "x.json", []
    select = step_models.select_masks

    def record_engine(params, plan, engine):
        engines.append(engine)
        return select(params, plan, "reference")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    for module in (step_models, step_selection):
        monkeypatch.setattr(module, "select_masks", record_engine)
    words = ["--model=tiny", "--contender=reference", "--dtype=float32", "--rounds=1", "--smoke"]
    monkeypatch.setattr(sys, "argv", ["steps.py", *words, f"--out={out}"])
    with monkeypatch.context() as patch:
        patch.setattr(step_selection, "compile_loops", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            gpu_steps.main()
    step = json.loads(out.read_text())
    assert step["step_ms"] > 0
    assert "selection_ms" not in step
    assert gpu_steps.main() == 0
    assert json.loads(out.read_text())["selection_ms"] > 0
    assert set(engines) == {"reference"}


def test_products_are_tried_on_a_model_of_two_blocks_while_the_device_is_held(monkeypatch):
    compiled, is_held = [], [False]

    def lowered(model: ResMLP, *_: object) -> Any:
        return SimpleNamespace(compile=lambda: compiled.append((model.depth, is_held[0])))

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        is_held[0] = True
        yield
        is_held[0] = False

    monkeypatch.setattr(gpu_steps, "_lowered_steps", lowered)
    given = gpu_steps.MODELS["tiny"].make().clone(depth=5), gpu_steps.optax.adamw(1e-3), 2, 1
    before = jax.config.jax_compilation_cache_dir
    try:
        for folder in (None, "/somewhere"):
            jax.config.update("jax_compilation_cache_dir", folder)
            gpu_steps._compiled_steps(*given, lock)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    gpu_steps._compiled_steps(*given, gpu_steps.unlocked)
    assert compiled == [(5, True), (2, True), (5, False), (5, False)]
