"""Points are measured once, and what broke the device is left out from then on."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from gpu import point_workers
from gpu.budget import Budget
from gpu.point_records import left_out, measure_points
from gpu.points import Point
from gpu.products import latest
from tuning.ceilings import Ceilings
from tuning.watch import AtWork, WorkLostError

from pallas_kernels import Reference
from sparsemlp.runs.history import History

POINTS = [Point((64, 64), (32, 32), ratio, 24, "float32") for ratio in (0.5, 0.25)]
ENGINES: dict[str, Any] = {"good": Reference(), "bad": Reference()}


def broken(name: str, *points: Point) -> list[dict[str, str]]:
    return [{"key": str(p), "contender": name, "reason": "an illegal address"} for p in points]


def test_who_broke_at_a_point_is_left_out_there():
    records = broken("bad", POINTS[0])
    assert left_out(records, POINTS[0], ENGINES, []) == {"bad": "an illegal address"}
    assert left_out(records, POINTS[1], ENGINES, []) == {}


def test_who_broke_at_three_points_is_left_out_everywhere():
    others = [Point((64, 64), (32, 32), 0.5, n, "float32") for n in (8, 16, 40)]
    out = left_out(broken("bad", *others), POINTS[0], ENGINES, [])
    assert out == {"bad": f"broke at 3 points, first at {others[0]}"}


def test_what_breaks_is_written_down_and_the_same_call_goes_on_without(tmp_path, monkeypatch):
    timed = []

    def measure_point(point: Point, engines: Any, *_: Any, **__: Any) -> Any:
        timed.append((point.ratio, list(engines)))
        if "bad" in engines and point.ratio == 0.5:
            raise WorkLostError("bad", "an illegal address")
        return {"key": str(point), "phases": {}, "failed": {}}

    def go_on() -> None:
        budget, status = Budget(1.0), SimpleNamespace(update=lambda _: None)
        ceilings = Ceilings(1e12, {})
        measure_points(
            tmp_path, POINTS, ENGINES, [], ceilings, budget, status, rounds=1, is_trial=True
        )

    monkeypatch.setattr(point_workers, "measure_point", measure_point)
    with pytest.raises(WorkLostError, match="again"):
        go_on()
    for _ in range(2):
        go_on()
    assert timed == [(0.5, ["good", "bad"]), (0.5, ["good"]), (0.25, ["good", "bad"])]
    records = History(tmp_path / "products.jsonl").read()
    assert [record["failed"] for record in records] == [{"bad": "an illegal address"}, {}]
    assert not any(record["measured"] for record in records)


def test_who_is_wrong_is_left_out_of_layers_of_that_kind():
    about = {"engine": "bad", "kernel": "product", "block": "32x32", "dtype": "float32"}
    verdicts = [{"key": "bad product", **about, "wrong": "is off"}]
    out = left_out([], POINTS[0], ENGINES, verdicts)
    assert out == {"bad": "wrong on this device: bad product: is off"}
    fused = [verdicts[0] | {"kernel": "mlp"}]
    assert left_out([], POINTS[0], ENGINES, fused) == {}


def test_a_point_is_measured_again_once_who_was_left_out_has_been_compared(tmp_path, monkeypatch):
    timed = []

    def measure_point(point: Point, engines: Any, *_: Any, **__: Any) -> Any:
        timed.append(list(engines))
        return {"key": str(point), "phases": {}, "failed": {}}

    def measure(wrong: str) -> list[Any]:
        about = {"engine": "bad", "kernel": "product", "block": "32x32", "dtype": "float32"}
        verdicts = [{"key": "bad product", **about, "wrong": wrong}]
        rest = Ceilings(1e12, {}), Budget(1.0), SimpleNamespace(update=lambda _: None)
        measure_points(tmp_path, POINTS[:1], ENGINES, verdicts, *rest, rounds=1, is_trial=True)
        return latest(History(tmp_path / "products.jsonl").read())

    monkeypatch.setattr(point_workers, "measure_point", measure_point)
    (record,) = measure("not compared: no time was left")
    assert "no time was left" in record["failed"]["bad"]
    for wrong in ("not compared: it took longer", "", "is off"):
        (record,) = measure(wrong)
    assert timed == [["good"], ["good", "bad"]]
    assert record["failed"] == {}


def test_what_was_at_work_when_two_processes_died_is_left_out(tmp_path, monkeypatch):
    def measure_point(point: Point, engines: Any, *_: Any, **__: Any) -> Any:
        assert list(engines) == (["good"] if point == POINTS[0] else ["good", "bad"])
        return {"key": str(point), "phases": {}, "failed": {}}

    monkeypatch.setattr(point_workers, "measure_point", measure_point)
    # The process before may have been killed from outside; now it is the second one.
    (tmp_path / "points.at_work.once").write_text(json.dumps([str(POINTS[0]), "bad"]))
    AtWork(tmp_path / "points.at_work").begin(str(POINTS[0]), "bad")
    budget, status = Budget(1.0), SimpleNamespace(update=lambda _: None)
    ceilings, rest = Ceilings(1e12, {}), {"rounds": 1, "is_trial": True}
    measure_points(tmp_path, POINTS, ENGINES, [], ceilings, budget, status, **rest)
    first, second = History(tmp_path / "products.jsonl").read()
    assert first["failed"] == {"bad": "ended the process while it ran, twice"}
    assert second["failed"] == {}
    assert len(History(tmp_path / "broken.jsonl").read()) == 1


def test_a_point_that_breaks_without_an_engine_is_passed_over(tmp_path, monkeypatch):
    History(tmp_path / "broken.jsonl").append(broken("dense", POINTS[0])[0])
    monkeypatch.setattr(point_workers, "measure_point", None)
    status = SimpleNamespace(update=lambda _: None)
    ceilings, budget = Ceilings(1e12, {}), Budget(1.0)
    measure_points(
        tmp_path, POINTS[:1], ENGINES, [], ceilings, budget, status, rounds=1, is_trial=True
    )
    (record,) = History(tmp_path / "products.jsonl").read()
    assert record["failed"] == {"dense": "an illegal address"}


def test_points_leave_time_to_what_comes_after_them(tmp_path, monkeypatch):
    monkeypatch.setattr(point_workers, "measure_point", None)
    status = SimpleNamespace(update=lambda _: None)
    budget, rest = Budget(1.0), {"rounds": 1, "is_trial": True, "until": 0.0}
    measure_points(tmp_path, POINTS, ENGINES, [], Ceilings(1e12, {}), budget, status, **rest)
    assert History(tmp_path / "products.jsonl").read() == []


def test_what_was_timed_stays_when_a_later_try_breaks_without_an_engine(tmp_path, monkeypatch):
    wrong = "wrong on this device: bad product: not compared: no time was left"
    timed = {"key": str(POINTS[0]), "phases": {"forward": {}}, "failed": {"bad": wrong}}
    History(tmp_path / "products.jsonl").append(timed)
    History(tmp_path / "broken.jsonl").append(broken("loop", POINTS[0])[0])
    monkeypatch.setattr(point_workers, "measure_point", None)
    rest = Ceilings(1e12, {}), Budget(1.0), SimpleNamespace(update=lambda _: None)
    measure_points(tmp_path, POINTS[:1], ENGINES, [], *rest, rounds=1, is_trial=True)
    (record,) = latest(History(tmp_path / "products.jsonl").read())
    assert record["phases"] == {"forward": {}}
    assert record["failed"] == {"loop": "an illegal address"}


def test_an_engine_that_comes_late_is_timed_once(tmp_path, monkeypatch):
    timed = []

    def measure_point(point: Point, engines: Any, *_: Any, **__: Any) -> Any:
        timed.append(list(engines))
        return {"key": str(point), "phases": {}, "failed": {}}

    monkeypatch.setattr(point_workers, "measure_point", measure_point)
    rest = Ceilings(1e12, {}), Budget(1.0), SimpleNamespace(update=lambda _: None)
    late: dict[str, Any] = {**ENGINES, "jax-triton": Reference()}
    for engines in (ENGINES, ENGINES, late, late, ENGINES):
        measure_points(tmp_path, POINTS[:1], engines, [], *rest, rounds=1, is_trial=True)
    assert timed == [["good", "bad"], ["good", "bad", "jax-triton"]]
