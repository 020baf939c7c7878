"""Points are measured by processes, and what these die of is left out from then on."""

from types import SimpleNamespace
from typing import Any

from gpu import point_workers
from gpu.budget import Budget
from gpu.point_records import measure_points
from test_gpu_point_records import ENGINES, POINTS
from tuning.ceilings import Ceilings
from tuning.watch import AtWork

from sparsemlp.runs.history import History


def test_what_workers_die_of_is_left_out_and_the_others_are_measured(tmp_path, monkeypatch):
    given = []

    def run_in_workers(n: int, begin: Any, _: Any, *, next_task, told, done, died) -> None:
        assert n == 2
        while (task := next_task()) is not None:
            point, out = task
            given.append((point.ratio, set(out)))
            if point == POINTS[0] and not out:
                told(task, ("bad", "took longer than 15 s"))
                died(1, task)
            elif point == POINTS[1] and not out:
                AtWork(tmp_path / "points.at_work.0").begin(str(point), "good")
                died(0, task)
            else:
                done(task, {"key": str(point), "phases": {}, "failed": out})

    monkeypatch.setattr(point_workers, "run_in_workers", run_in_workers)
    rest = Ceilings(1e12, {}), Budget(1.0), SimpleNamespace(update=lambda _: None)
    for _ in range(2):
        measure_points(tmp_path, POINTS, ENGINES, [], *rest, rounds=1, is_trial=True, n_workers=2)
    assert given == [(0.5, set()), (0.5, {"bad"}), (0.25, set()), (0.25, set()), (0.25, {"good"})]
    records = History(tmp_path / "products.jsonl").read()
    assert [record["failed"] for record in records] == [
        {"bad": "took longer than 15 s"},
        {"good": "ended the process while it ran, twice"},
    ]
