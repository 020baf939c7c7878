"""The whole GPU benchmark runs without a GPU as a trial, and says that it measured nothing."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import benchmark
import jax
import pytest
from gpu import benchmark as benchmark_gpu
from gpu import figures as gpu_figures
from gpu import report as gpu_report
from gpu.benchmark import Gpu, measure_gpu
from gpu.budget import Budget

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


def test_results_of_another_device_are_not_mixed(trial: Gpu, tmp_path: Path):
    device = json.loads((trial.out / "device.json").read_text()) | {"device": "abacus"}
    (tmp_path / "device.json").write_text(json.dumps(device))
    with pytest.raises(InputError, match="abacus"):
        measure_gpu(Gpu(out=tmp_path, smoke=True))


def test_results_of_other_code_are_not_mixed(trial: Gpu, tmp_path: Path, monkeypatch):
    (tmp_path / "device.json").write_text((trial.out / "device.json").read_text())
    monkeypatch.setattr(benchmark_gpu, "code_digest", lambda: "of a mended kernel")
    with pytest.raises(InputError, match="this is of a mended kernel"):
        measure_gpu(Gpu(out=tmp_path, smoke=True))


def test_the_code_has_one_checksum_until_it_changes(monkeypatch, tmp_path):
    assert benchmark_gpu.code_digest() == benchmark_gpu.code_digest()
    before = benchmark_gpu.code_digest()
    (tmp_path / "kernel.py").write_text("x = 1")
    monkeypatch.setattr(benchmark_gpu.pallas_kernels, "__file__", str(tmp_path / "kernel.py"))
    assert benchmark_gpu.code_digest() != before


def test_a_step_is_left_out_whose_kernels_are_wrong():
    about = {"engine": "triton", "kernel": "mlp", "block": "64x64", "dtype": "bfloat16"}
    verdicts = [{"key": "triton mlp", **about, "wrong": "is off"}]
    words = benchmark_gpu.step_commands(["triton"], verdicts, Gpu(out=Path("x")))
    of_engine = [(w[0], w[2]) for w in words if w[1] == "--contender=triton"]
    assert ("--model=resmlp_cifar10", "--dtype=bfloat16") in of_engine
    assert ("--model=resmlp_b24", "--dtype=float32") in of_engine
    assert ("--model=resmlp_b24", "--dtype=bfloat16") not in of_engine
    assert ["--model=resmlp_b24", "--contender=dense", "--dtype=bfloat16"] in words


def test_a_step_whose_process_fails_later_is_kept(tmp_path, monkeypatch, capsys):
    path = tmp_path / "steps" / "tiny_dense_float32.json"

    def run_part(*_: object, **__: object) -> str:
        path.write_text('{"step_ms": 1.0}')
        return "exit -6"

    monkeypatch.setattr(benchmark_gpu, "run_part", run_part)
    words = ["--model=tiny", "--contender=dense", "--dtype=float32"]
    benchmark_gpu.measure_step(tmp_path, words, Budget(1.0), Gpu(out=tmp_path))
    assert json.loads(path.read_text()) == {"step_ms": 1.0}
    assert "exit -6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "there is no GPU"), (["--minutes=0"], "--minutes"), (["--rounds=0"], "--rounds")],
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
