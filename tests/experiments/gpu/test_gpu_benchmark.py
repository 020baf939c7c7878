"""The whole GPU benchmark runs without a GPU as a trial, and says that it measured nothing."""

import json
import sys
from collections.abc import Iterator

import benchmark
import jax
import pytest
from gpu import benchmark as benchmark_gpu
from gpu import figures as gpu_figures
from gpu import report as gpu_report
from gpu.benchmark import Gpu, measure_gpu

from sparsemlp import InputError
from sparsemlp.runs.history import History

WHOLE, CUT_SHORT = 8.0, 1e-6
"""Minutes: the time for all, and for no product and no training step."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(CUT_SHORT, id="cut short"),
        pytest.param(WHOLE, id="whole", marks=pytest.mark.slow),
    ],
)
def trial(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpu]:
    """The options of a trial that has run; the kernels need not be compiled well."""
    folder = tmp_path_factory.mktemp("trial") / "gpu"
    options = Gpu(out=folder, minutes=request.param, rounds=1, smoke=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        # Other tests of this process hold arrays.
        patch.setattr(benchmark_gpu, "clear_backends", lambda: None)
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            measure_gpu(options)
            yield options
        finally:
            jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.slow
@pytest.mark.parametrize("trial", [WHOLE], indirect=True, ids=["whole"])
def test_every_part_leaves_its_results(trial: Gpu):
    folder = trial.out
    checks = History(folder / "correctness.jsonl").read()
    assert checks
    assert not any(record["wrong"] for record in checks)
    products = History(folder / "products.jsonl").read()
    assert "triton" in products[0]["phases"]["forward_backward"]
    steps = [json.loads(path.read_text()) for path in (folder / "steps").glob("*.json")]
    assert len(steps) == 1
    assert all(step["step_ms"] > 0 for step in steps)
    assert all(step["metadata_ms"] > 0 for step in steps)


def test_nothing_of_a_trial_passes_for_a_measurement(trial: Gpu):
    folder = trial.out
    for record in (
        json.loads((folder / "device.json").read_text()),
        *History(folder / "correctness.jsonl").read(),
        *History(folder / "products.jsonl").read(),
        *(json.loads(path.read_text()) for path in (folder / "steps").glob("*.json")),
    ):
        assert record["measured"] is False
    text = (folder / "table.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert all("no measurement" in line for line in headings)
    for draw in (gpu_report.print_tables, gpu_figures.draw_roofline):
        with pytest.raises(InputError, match="no measurement"):
            draw(folder)


def test_a_second_run_measures_nothing_again(trial: Gpu, monkeypatch: pytest.MonkeyPatch):
    before = {path: path.read_bytes() for path in trial.out.rglob("*.json*")}
    monkeypatch.setattr(benchmark_gpu, "clear_backends", lambda: None)
    monkeypatch.setattr(benchmark_gpu, "measure_peers", lambda *_: None)
    measure_gpu(trial)
    assert {path: path.read_bytes() for path in trial.out.rglob("*.json*")} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no GPU"),
        (["--minutes=0"], "--minutes=0 must be a finite number above 0"),
        (["--minutes=nan"], "--minutes=nan"),
        (["--minutes=inf"], "--minutes=inf"),
        (["--rounds=0"], "--rounds"),
    ],
)
def test_without_a_gpu_it_says_so_in_a_line(monkeypatch, capsys, tmp_path, arguments, words):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    words_of_it = ["benchmark.py", "gpu", f"--out={tmp_path / 'gpu'}", *arguments]
    monkeypatch.setattr(sys, "argv", words_of_it)
    assert benchmark.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert not (tmp_path / "gpu").exists()
