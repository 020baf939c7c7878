"""A study as one page: HTML that needs nothing else, with the same numbers as CSV and JSON.

The page works without a network and without JavaScript, which only sorts and filters. Every text
is escaped by the template engine, and a policy in the page forbids whatever is not part of it.
"""

import base64
import collections
import hashlib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from sparsemlp.figures.dense_runs import dense_runs
from sparsemlp.files import Record, write_whole
from sparsemlp.reports import comparison_table
from sparsemlp.reports.environment_table import environments
from sparsemlp.reports.runs_table import (
    COLUMNS,
    Column,
    Row,
    Value,
    plain,
    rows,
    show,
    write_csv,
    write_json,
)
from sparsemlp.studies.comparison import Comparison, compare
from sparsemlp.studies.published import SOURCE
from sparsemlp.studies.seeds import Seeds, by_seed, percent
from sparsemlp.studies.study import Study

_SECTIONS = {
    "figures": "Figures",
    "published": "Beside the published numbers",
    "runs": "Runs",
    "gaps": "What is missing",
    "configuration": "Configuration",
    "environment": "Environment",
}
_TEXT_COLUMNS = frozenset({"name", "status", "block", "backward", "differs"})
_MOST_VALUES = 24
"""Values of an option that are listed."""


class Picture(NamedTuple):
    """A figure of the page: its name, what it shows, and the SVG file."""

    name: str
    caption: str
    svg: bytes


def write_report(
    study: Study, pictures: Iterable[Picture], lacking: dict[str, str], out: Path
) -> None:
    """Writes the page, and its tables beside it, as `tables_of` names them.

    Args:
      study: the runs.
      pictures: what to show, in order.
      lacking: why other figures are not there, by name.
      out: the page; its folder must exist.

    Raises:
      SaveError: the disk is full or refuses a write.
    """
    table, comparisons = rows(study), compare(study)
    as_csv, as_json = tables_of(out)
    names = (as_csv.name, as_json.name)
    page = build_page(study, pictures, lacking, table, comparisons, names)
    write_csv(as_csv, table)
    more: Record = {
        "grid": study.grid_name,
        "comparisons": [comparison_table.record(comparison) for comparison in comparisons],
    }
    write_json(as_json, table, more)
    write_whole(out, lambda file: file.write(page.encode()))


def tables_of(page: Path) -> tuple[Path, Path]:
    """The table of runs as CSV and JSON: `runs` beside `report.html`, `NAME_runs` beside others."""
    stem = "runs" if page.stem == "report" else f"{page.stem}_runs"
    return page.with_name(f"{stem}.csv"), page.with_name(f"{stem}.json")


def build_page(
    study: Study,
    pictures: Iterable[Picture],
    lacking: dict[str, str],
    table: list[Row],
    comparisons: list[Comparison],
    tables: tuple[str, str] = ("runs.csv", "runs.json"),
) -> str:
    """The HTML of a report, which names its tables as CSV and JSON."""
    style, script = _part("report.css"), _part("report.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = [c for c in COLUMNS if c.shown and any(row[c.key] is not None for row in table)]
    return environment.from_string(_part("report.html")).render(
        policy=(
            "default-src 'none'; img-src data:; "
            f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
        ),
        style=Markup(style),
        script=Markup(script),
        title=_title(study),
        lead=_lead(study),
        cards=list(_cards(study)),
        sections=_SECTIONS,
        pictures=[
            {"name": p.name, "caption": p.caption, "base64": base64.b64encode(p.svg).decode()}
            for p in pictures
        ],
        lacking=lacking,
        source=SOURCE,
        comparisons=[comparison_table.cells(c) for c in comparisons if c.run],
        not_run=", ".join(
            f"{comparison_table.setting(c)} ({comparison_table.QUANTITIES[c.published.quantity]})"
            for c in comparisons
            if not c.run
        ),
        csv_name=tables[0],
        json_name=tables[1],
        columns=[
            {"heading": c.heading, "meaning": c.meaning, "numeric": c.key not in _TEXT_COLUMNS}
            for c in shown
        ],
        rows=[
            {"status": row["status"], "cells": [_cell(c, row[c.key]) for c in shown]}
            for row in table
        ],
        completeness=_completeness(study),
        gaps=[
            {
                "name": run.name,
                "status": run.status,
                "epochs": len(run.records),
                "reason": run.reason,
            }
            for run in study.runs
            if run.status != "finished"
        ],
        differing=_differing(study),
        shared=_shared(study),
        grid_name=study.grid_name,
        grid_text=study.grid_text,
        environments=environments(study),
    )


def _cell(column: Column, value: Value) -> dict[str, Any]:
    """A cell of the table of runs: what is shown, and what it is sorted by."""
    return {
        "key": column.key,
        "numeric": column.key not in _TEXT_COLUMNS,
        "value": None if value is None else plain(value),
        "text": show(column, value),
    }


def _part(name: str) -> str:
    return (resources.files("sparsemlp.reports") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _title(study: Study) -> str:
    models = ", ".join(sorted({run.model for run in study.runs if run.model})) or "runs"
    datasets = ", ".join(sorted({run.dataset for run in study.trained}))
    return f"{models} on {datasets}" if datasets else models


def _lead(study: Study) -> str:
    epochs = sorted({run.settings.epochs for run in study.runs if run.settings is not None})
    of = f" of grid {study.grid_name}" if study.grid_name is not None else ""
    length = f", {' or '.join(map(str, epochs))} epochs" if epochs else ""
    return (
        f"{len(study.runs)} runs{of}{length}. Accuracies are those of the last epoch; what is "
        "theoretical is called so, all else was measured."
    )


def _cards(study: Study) -> Iterable[dict[str, str]]:
    """The numbers that a reader wants first."""
    yield {"number": f"{len(study.finished)} of {len(study.runs)}", "words": "runs are finished"}
    groups = by_seed(study.finished)
    dense = [group for group in groups if group.first.is_dense]
    masked = [group for group in groups if group.first.is_masked and _drops_blocks(group)]
    by_accuracy = sorted(masked, key=lambda group: -group.top1()[0])
    # The measure of the best masked one, or else the best.
    like_it = dense_runs(study, [by_accuracy[0].first]) if by_accuracy else None
    best = max(dense, key=lambda group: group.top1()[0], default=None)
    if (group := like_it or best) is not None:
        others = study.other_options(group.first) if len(dense) > 1 else ""
        words = "dense model" + (f" ({others})" if others else "")
        yield {"number": percent(*group.top1()), "words": words + _seeds(group)}
    strong = [group for group in by_accuracy if _ratio(group) >= 0.8]
    for group in dict.fromkeys([*by_accuracy[:1], *strong[:1]]):
        why = "best masked" if group is by_accuracy[0] else "best at a ratio of 0.8 or more"
        words = f"{why}: {study.label(group.first)}{_seeds(group)}"
        yield {"number": percent(*group.top1()), "words": words}


def _drops_blocks(group: Seeds) -> bool:
    """Whether anything is dropped: a small ratio of few large blocks may round to none."""
    return not all(run.last("density") >= 1 for run in group.runs)


def _ratio(group: Seeds) -> float:
    """The ratio that was asked for; 0 where layers differ, or the run itself lowers it."""
    run = group.first
    is_adaptive = run.settings is not None and run.settings.ratio_schedule == "adaptive"
    return 0.0 if is_adaptive else run.ratio or 0.0


def _seeds(group: Seeds) -> str:
    return f", {group.count}" if group.count else ""


def _completeness(study: Study) -> str:
    if study.grid_name is None:
        known = "There is no grid here, so no run is known to be missing."
    else:
        counts = collections.Counter(run.status for run in study.runs)
        listed = ", ".join(f"{number} {status}" for status, number in counts.items())
        known = f"Of the grid's {len(study.runs) - len(study.unplanned)} runs: {listed}."
        if study.unplanned:
            known = f"{len(study.runs)} runs: {listed}. "
            known += f"Not in the grid: {', '.join(study.unplanned)}."
    if all(run.status == "finished" for run in study.runs):
        known += " All runs are finished."
    return known


def _differing(study: Study) -> dict[str, str]:
    found = {}
    for name in study.differing:
        values = dict.fromkeys(
            getattr(run.settings, name) for run in study.runs if run.settings is not None
        )
        texts = ["none" if value is None else str(value) for value in values]
        more = f" and {len(texts) - _MOST_VALUES} more" if len(texts) > _MOST_VALUES else ""
        found[name] = ", ".join(texts[:_MOST_VALUES]) + more
    return found


def _shared(study: Study) -> dict[str, str]:
    every = [run.settings for run in study.runs if run.settings is not None]
    if not every:
        return {}
    texts = {name: {str(getattr(each, name)) for each in every} for name in vars(every[0])}
    return {name: text for name, (text, *more) in texts.items() if not more and text != "None"}
