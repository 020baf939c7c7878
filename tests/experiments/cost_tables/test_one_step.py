"""The program that a profiler runs: its step is marked, and the same as a training step."""

import ctypes
import sys
import types

import pytest
from cost_tables import one_step

TINY = ["--dim=8", "--depth=1", "--expansion=2", "--batch-size=4", "--size=8"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["one_step.py", *TINY, *arguments])
    return one_step.main()


def test_one_step_lies_between_the_marks(monkeypatch):
    seen: list[str] = []
    steps = one_step.steps

    def counted(options):
        make = steps(options)

        def count(n_steps: int) -> None:
            make(n_steps)
            seen.append(f"{n_steps} steps")

        return count

    runtime = types.SimpleNamespace(
        cudaProfilerStart=lambda: seen.append("start"),
        cudaProfilerStop=lambda: seen.append("stop"),
    )
    monkeypatch.setattr(one_step, "steps", counted)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: runtime)
    assert run(monkeypatch, "--block=2x4", "--ratio=0.5", "--engine=reference") == 0
    assert seen == ["2 steps", "start", "1 steps", "stop"]


def test_bad_options_and_a_missing_runtime_end_with_a_line(monkeypatch, capsys):
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert run(monkeypatch, "--block=3x3", "--ratio=0.5") == 2
    assert "error: block 3x3 does not divide" in capsys.readouterr().err
    monkeypatch.setattr(one_step, "steps", lambda options: lambda n: None)
    assert run(monkeypatch) == 2
    assert "error: CUDA's runtime library is not found" in capsys.readouterr().err


def test_the_runtime_is_the_first_that_can_be_loaded(monkeypatch, tmp_path):
    """The wheels of JAX bring their own, whose name has a version."""
    wheel = tmp_path / "cuda_runtime" / "lib" / "libcudart.so.12"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    asked = []

    def load(name: str) -> str:
        asked.append(name)
        if name != str(wheel):
            raise OSError(name)
        return "runtime"

    found = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(one_step.importlib.util, "find_spec", lambda _: found)
    assert one_step.load_runtime() == "runtime"
    assert asked == ["libcudart.so.13", "libcudart.so.12", "libcudart.so", str(wheel)]
