"""The tuning program writes a table that can be read, goes on with it, and refuses bad input."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import jax
import pytest
import tune
from tuning import tasks, tuning_options
from tuning.kernel_problems import PAIRS, PRODUCTS
from tuning.table import problem_key
from tuning.watch import AtWork, WorkLostError

from pallas_kernels import Triton
from pallas_kernels.device_table import TableError, read_table

TINY = ("--shape", "64x64", "--block", "32x32", "--ratio", "0.5", "--rows", "40")
LINE = "triton product 64x64 32x32 at 0.5, 40 rows, bfloat16: dense / this 1.50, 4 tried"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments])
    return tune.main()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The problems that were measured, without measuring any."""
    problems: list[Any] = []

    def measure(engine: Any, problem: Any, layer: Any, **_: Any) -> dict[str, Any]:
        problems.append(problem)
        found = {"microseconds": 2.0, "dense_microseconds": 3.0, "tried": 4}
        return {"problem": tune.plain(problem), "configuration": {}, "rejected": [], **found}

    monkeypatch.setattr(tasks, "measure", measure)
    return problems


def test_a_run_goes_on_where_the_last_one_stopped(monkeypatch, measured, tmp_path: Path):
    out = tmp_path / "table.json"
    arguments = ("--interpret", f"--out={out}", *TINY, "--kernel")
    assert run(monkeypatch, *arguments, "product") == 0
    n_first = len(measured)
    assert n_first > 0
    assert run(monkeypatch, *arguments, "product", "input_gradient") == 0
    assert {problem.kernel for problem in measured[n_first:]} == {"input_gradient"}
    entries = json.loads(out.read_text())["entries"]
    assert len(entries) == len(measured) == len({str(e["problem"]) for e in entries})


def test_what_other_code_measured_is_measured_again_if_asked(monkeypatch, measured, tmp_path: Path):
    out = tmp_path / "table.json"
    words = ("--interpret", f"--out={out}", *TINY, "--kernel=product", "--engine=triton")
    assert run(monkeypatch, *words) == 0
    n_first = len(measured)
    for code, n_times in (("of a mended kernel", 2), ("of a mended kernel", 2), ("another", 3)):
        for module in (tune, tasks):
            monkeypatch.setattr(module, "code_of", lambda _, code=code: code)
        assert run(monkeypatch, *words) == 0
        assert run(monkeypatch, *words, "--again") == 0
        assert len(measured) == n_times * n_first
    assert {entry["code"] for entry in json.loads(out.read_text())["entries"]} == {"another"}


def test_what_breaks_the_device_is_written_down_until_its_problem_is_measured(
    monkeypatch, measured, tmp_path: Path, capsys
):
    out, told = tmp_path / "table.json", []
    words = ("--interpret", f"--out={out}", *TINY, "--kernel=product", "--engine=triton")
    works = tasks.measure

    def measure(*given: Any, broken: dict[str, str], **more: Any) -> dict[str, Any]:
        told.append(broken)
        if not broken:
            raise WorkLostError("rows 64", "an illegal address")
        return works(*given, broken=broken, **more)

    monkeypatch.setattr(tasks, "measure", measure)
    assert run(monkeypatch, *words) == 4
    assert "the same command again" in capsys.readouterr().err
    assert not json.loads(out.read_text())["entries"]
    assert run(monkeypatch, *words) == 4
    assert run(monkeypatch, *words) == 0
    assert told.count({"rows 64": "an illegal address"}) == len(measured) == 2
    assert not json.loads(out.read_text())["broken"]


def test_what_two_processes_died_of_is_left_out_by_the_next(monkeypatch, measured, tmp_path: Path):
    out, told = tmp_path / "table.json", {}
    words = ("--interpret", f"--out={out}", *TINY, "--kernel=product", "--engine=triton")
    works = tasks.measure

    def measure(engine: Any, problem: Any, layer: Any, broken: Any, **more: Any) -> Any:
        told[problem_key(tune.plain(problem))] = broken
        return works(engine, problem, layer, **more)

    monkeypatch.setattr(tasks, "measure", measure)
    assert run(monkeypatch, *words) == 0
    first, _ = told
    expected: list[dict[str, str]] = [{}, {"rows 64": "ended the process while it ran, twice"}]
    for broken in expected:
        out.unlink()
        AtWork(tmp_path / "table.json.at_work").begin(first, "rows 64")
        assert run(monkeypatch, *words) == 0
        assert told[first] == broken
        assert sum(map(bool, told.values())) == len(broken)


def test_each_layer_is_a_line_and_a_table_elsewhere_is_said_not_to_be_gone_by(
    monkeypatch, measured, tmp_path: Path, capsys
):
    out = tmp_path / "new" / "table.json"
    words = (f"--out={out}", *TINY, "--kernel=product", "--engine=triton")
    assert run(monkeypatch, "--interpret", *words) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == LINE
    assert last == f"2 entries in {out} (interpreted: no measurement)"
    out.unlink()
    monkeypatch.setattr(tuning_options.jax, "default_backend", lambda: "gpu")
    for module in (tune, tasks):
        monkeypatch.setattr(module, "gpu_engines", lambda _: {"triton": Triton(interpret=True)})
    monkeypatch.setattr(tuning_options, "is_able", lambda *_: True)
    with jax.default_matmul_precision("default"):
        assert run(monkeypatch, *words, "--workers=1") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("--engine=auto goes by ")
    with jax.default_matmul_precision("highest"):
        assert run(monkeypatch, *words) == 2
    assert "jax_default_matmul_precision is 'highest'" in capsys.readouterr().err


def test_what_was_interpreted_is_marked_and_cannot_be_used(monkeypatch, measured, tmp_path: Path):
    out = tmp_path / "table.json"
    assert run(monkeypatch, "--interpret", f"--out={out}", *TINY, "--kernel", "product") == 0
    with pytest.raises(TableError, match="no measurements"):
        read_table(out)
    table = json.loads(out.read_text())
    out.write_text(json.dumps(table | {"measured": True}))
    assert [entry.problem for entry in read_table(out)] == measured


def test_the_layers_that_are_interpreted_by_default_are_tiny(monkeypatch, measured, tmp_path: Path):
    assert (
        run(monkeypatch, "--interpret", f"--out={tmp_path / 'table.json'}", "--engine=triton") == 0
    )
    assert {problem.n_rows for problem in measured} == {64}
    assert {problem.kernel_shape for problem in measured} == {(64, 128), (128, 64)}
    assert {problem.kernel for problem in measured} == {*PRODUCTS, *PAIRS}


def test_no_time_is_no_problem(monkeypatch, measured, tmp_path: Path, capsys):
    out = tmp_path / "table.json"
    assert run(monkeypatch, "--interpret", f"--out={out}", *TINY, "--minutes=0") == 0
    assert not measured
    assert "goes on" in capsys.readouterr().out


def test_a_table_of_another_device_is_not_continued(monkeypatch, measured, tmp_path, capsys):
    out = tmp_path / "table.json"
    out.write_text(json.dumps({"format": 1, "measured": False, "device": "abacus"}))
    assert run(monkeypatch, "--interpret", f"--out={out}", *TINY) == 2
    assert "abacus" in capsys.readouterr().err
    assert not measured


def test_workers_write_one_table_and_what_they_die_of_is_left_out(
    monkeypatch, measured, tmp_path: Path, capsys
):
    out, given, works = tmp_path / "table.json", [], cast(Any, tasks.measure)
    words = ("--interpret", f"--out={out}", *TINY, "--kernel=product", "--engine=triton")

    def run_in_workers(n: int, begin: Any, arguments: Any, *, next_task, told, done, died) -> None:
        assert n == 3
        while (task := next_task()) is not None:
            given.append(task[1])
            problem = tune.problem_of(Triton(), task[0].kernel, task[0].layer, task[0].n_rows)
            if not task[1]:
                told(task, ("rows 64", "took longer than 15 s"))
                died(1, task)
            elif len(task[1]) == 1:
                key = problem_key(tune.plain(problem))
                AtWork(tmp_path / "table.json.at_work.1").begin(key, "rows 32")
                died(1, task)
            else:
                timed = {"timed": [{"configuration": {"rows": 16}, "microseconds": 2.0}]}
                done(task, works(Triton(), problem, None) | timed)

    monkeypatch.setattr(tasks, "run_in_workers", run_in_workers)
    assert run(monkeypatch, *words, "--workers=3") == 0
    broken = {"rows 64": "took longer than 15 s"}
    twice = broken | {"rows 32": "ended the process while it ran, twice"}
    assert given == 2 * [{}, broken, broken, twice]
    table = json.loads(out.read_text())
    assert len(table["entries"]) == 2
    assert not table["broken"]
    assert all("timed" not in entry for entry in table["entries"])
    lines = (tmp_path / "table.candidates.jsonl").read_text().splitlines()
    assert [json.loads(line)["microseconds"] for line in lines] == [2.0, 2.0]
    assert capsys.readouterr().out.splitlines()[0] == LINE


def test_a_problem_of_which_all_processes_die_is_left_to_the_next_call(
    monkeypatch, measured, tmp_path: Path, capsys
):
    words = ("--interpret", f"--out={tmp_path / 'table.json'}", *TINY, "--kernel=product")

    def run_in_workers(*_: Any, next_task, died, **__: Any) -> None:
        while (task := next_task()) is not None:
            died(0, task)

    monkeypatch.setattr(tasks, "run_in_workers", run_in_workers)
    assert run(monkeypatch, *words, "--engine=triton", "--workers=2") == 0
    assert capsys.readouterr().out.count("left to the next call") == 2
