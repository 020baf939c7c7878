"""Records of timed products in the folder of the GPU benchmark, and of what broke on the way."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from tuning.candidates import plain
from tuning.ceilings import Ceilings
from tuning.kernel_problems import LAST, PRODUCTS
from tuning.watch import ENDED, WorkLostError

from gpu.budget import Budget
from gpu.point_workers import Measured, at_work, measure_in_workers
from gpu.points import Point
from gpu.verdicts import NOT_COMPARED, verdict_against
from pallas_kernels import Engine
from sparsemlp.files import Record
from sparsemlp.runs.history import History

_MOST_BROKEN = 3
"""Points at which an engine may break before it is left out everywhere."""


def measure_points(
    folder: Path,
    points: Sequence[Point],
    engines: dict[str, Engine],
    verdicts: Sequence[Record],
    ceilings: Ceilings,
    budget: Budget,
    status: Any,
    *,
    rounds: int,
    is_trial: bool,
    until: float = 1.0,
    n_workers: int = 1,
) -> None:
    """Adds a record for each point that is not there yet, while there is time.

    A contender that never ends or breaks the device ends the program; `broken.jsonl` then says so,
    or `points.at_work` does if it had no time to, twice, and the next call leaves it out: at this
    point, and everywhere once it broke at three. With workers it ends one of them, and the next one
    leaves it out.

    Args:
      folder: where the records are.
      points: the most telling first.
      engines: by name.
      verdicts: of their comparisons with the reference; who is wrong is not timed.
      ceilings: what the device reached.
      budget: of time.
      status: is told what is measured.
      rounds: turns of each contender.
      is_trial: whether nothing is measured.
      until: share of the time of the budget that may be used.
      n_workers: processes that compile, each for a point of its own, while one has the device; 1 is
        this one alone.

    Raises:
      WorkLostError: the device does not answer any more.
    """
    history, broken = History(folder / "products.jsonl"), History(folder / "broken.jsonl")
    found = {record["key"]: record for record in history.read()}

    def break_down(key: str, name: str, reason: str) -> None:
        known = {"key": key, "contender": name, "reason": reason}
        broken.append(known | {"measured": not is_trial})

    for index in (None, *range(n_workers)):
        if left := at_work(folder, index).died_again():
            break_down(*left, ENDED)

    def write(record: Record) -> None:
        history.append(record | {"measured": not is_trial})

    def missing() -> Iterator[tuple[Point, dict[str, str]]]:
        """Points to be measured, and who is left out."""
        for point in points:
            if _is_done(found.get(str(point)), point, engines, verdicts):
                continue
            if not budget.allows("point", until):
                return
            status.update(str(point))
            out = left_out(broken.read(), point, engines, verdicts)
            if set(out) <= set(engines):
                yield point, out
                continue
            phases = found[str(point)]["phases"] if str(point) in found else {}
            write({"key": str(point), "point": plain(point), "phases": phases, "failed": out})

    measured = Measured(folder, list(engines), ceilings, rounds, is_trial)
    if n_workers > 1:
        measure_in_workers(
            n_workers,
            measured,
            missing(),
            lambda point: left_out(broken.read(), point, engines, verdicts),
            write,
            break_down,
            budget,
        )
        return
    for point, out in missing():
        began = time.monotonic()

        def write_down(name: str, reason: str, point: Point = point) -> None:
            break_down(str(point), name, reason)

        try:
            record = measured.record(point, engines, out, write_down, None)
        except WorkLostError as error:
            write_down(error.name, error.reason)
            raise
        write(record)
        budget.note("point", time.monotonic() - began)
        jax.clear_caches()


def _is_done(
    record: Record | None, point: Point, engines: dict[str, Engine], verdicts: Sequence[Record]
) -> bool:
    """Whether a point has a record that left no engine out that was found to be right since.

    Nor one of `LAST`, which are asked later.
    """
    if record is None:
        return False
    if any(name in LAST and name not in record.get("asked", engines) for name in engines):
        return False
    late = [name for name in engines if NOT_COMPARED in record["failed"].get(name, "")]
    asked = (point.block, point.dtype, PRODUCTS)
    return all(verdict_against(verdicts, name, *asked) for name in late)


def left_out(
    broken: Sequence[Record],
    point: Point,
    engines: dict[str, Engine],
    verdicts: Sequence[Record],
) -> dict[str, str]:
    """Who is not timed at a point, and why.

    Args:
      broken: what broke before.
      point: the point.
      engines: those who would be timed. Another name is of what every point needs.
      verdicts: of their comparisons with the reference.
    """
    out = {
        record["contender"]: record["reason"] for record in broken if record["key"] == str(point)
    }
    for name in engines:
        at = [record["key"] for record in broken if record["contender"] == name]
        if len(at) >= _MOST_BROKEN:
            out.setdefault(name, f"broke at {len(at)} points, first at {at[0]}")
        if wrong := verdict_against(verdicts, name, point.block, point.dtype, PRODUCTS):
            out.setdefault(name, wrong)
    return out
