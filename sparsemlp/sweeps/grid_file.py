"""The form of a grid file: sections, keys and values, and the points that they span.

    hp:                          # lists: their product is the grid
      block: [32x32, 16x16]
      ratio: [0.5, 0.8]
    fixed:                       # the same for all runs
      epochs: 200
    meta: {run: slurm, prefix: masks}
    sbatch: {partition: gpu, time: "4:00:00"}

This is the form of Bespalov 2025. `hp` may also be a list of such mappings: the sweep is then all
their grids, one after another.
"""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid_keys import (
    IGNORED,
    META,
    SECTIONS,
    STATED,
    known_keys,
    option_of,
    parse_value,
)
from sparsemlp.sweeps.marked_yaml import (
    Entry,
    Problems,
    Scalar,
    compose,
    entries,
    line_of,
    scalar,
    scalars,
)

MOST_RUNS = 10_000
"""A grid of more runs, one mapping of `hp`, is taken for a mistake."""

Section = Mapping[str, Scalar]
"""Keys of `meta` or `sbatch` with their values as written."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One value of an option: the value, the key and the place (line, index) that it stands at."""

    value: Any
    key: str
    place: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Point:
    """One run as the file says it.

    Attributes:
      choices: what was chosen, by option of `Config`.
      swept: the options that come from `hp`.
      line: the line of the grid that the point is of.
      lost: the options whose values were all refused, each with a problem of its own.
    """

    choices: Mapping[str, Choice]
    swept: tuple[str, ...]
    line: int
    lost: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class GridFile:
    """A grid file that was read: points in the order of the file, what it states, its sections."""

    points: list[Point]
    stated: Mapping[str, Choice]
    meta: Section
    sbatch: Section


def parse_grid_file(path: Path, text: str, problems: Problems) -> GridFile:
    """Reads the text of a grid file; the last list of `hp` runs fastest.

    Args:
      path: the file, for messages.
      text: what stands in it.
      problems: takes every problem.

    Raises:
      InputError: the text is no YAML.
    """
    root = compose(path, text)
    if root is None:
        raise InputError(f"{path} is empty: a grid file has the sections {', '.join(SECTIONS)}")
    sections = {entry.key: entry for entry in entries(root, "a grid file", problems)}
    for name, entry in sections.items():
        if name not in SECTIONS:
            problems.add(entry.line, f"unknown section {name!r}{_nearest(name, SECTIONS)}")
    fixed, stated, lost = _fixed(sections.get("fixed"), problems)
    points: list[Point] = []
    for line, axes in _grids(sections.get("hp"), problems):
        points += _span(line, axes, fixed, lost, problems)
    return GridFile(
        points,
        stated,
        _section(sections.get("meta"), META, problems),
        _section(sections.get("sbatch"), None, problems),
    )


def _fixed(
    section: Entry | None, problems: Problems
) -> tuple[dict[str, Choice], dict[str, Choice], tuple[str, ...]]:
    """What is chosen and what is stated, and the options whose value was refused."""
    chosen: dict[str, Choice] = {}
    stated: dict[str, Choice] = {}
    named: list[str] = []
    for entry in () if section is None else entries(section.node, "fixed", problems):
        where = f"fixed.{entry.key}"
        option = _option(entry, where, problems)
        named += [option] if option is not None else []
        if isinstance(entry.node, yaml.SequenceNode):
            problems.add(entry.line, f"{where} takes a single value: a list belongs to hp")
            continue
        found = scalar(entry.node, where, problems)
        if found is None or (option is None and entry.key not in STATED):
            continue
        for choice in _choices(entry.key, where, [found], problems):
            if option is None:
                stated[entry.key] = choice
            else:
                _put(chosen, option, choice, entry.line, problems)
    return chosen, stated, tuple(option for option in named if option not in chosen)


def _grids(
    section: Entry | None, problems: Problems
) -> Iterable[tuple[int, dict[str, list[Choice]]]]:
    """The lists of each grid, by option, empty where all of one was refused.

    One grid without lists if there is no `hp`.
    """
    if section is None:
        return [(1, {})]
    nodes = [section.node]
    if isinstance(section.node, yaml.SequenceNode):
        nodes = section.node.value
        if not nodes:
            problems.add(section.line, "hp is an empty list: give at least one grid")
    return [(line_of(node), _axes(node, problems)) for node in nodes]


def _axes(node: yaml.Node, problems: Problems) -> dict[str, list[Choice]]:
    axes: dict[str, list[Choice]] = {}
    for entry in entries(node, "hp", problems):
        where = f"hp.{entry.key}"
        option = _option(entry, where, problems)
        if option is None:
            if entry.key in STATED:
                problems.add(entry.line, f"{where} cannot vary within a grid: it belongs to fixed")
            elif entry.key in IGNORED:
                problems.add(entry.line, f"{where} changes nothing: it belongs to fixed")
            continue
        values = _choices(entry.key, where, scalars(entry.node, where, problems), problems)
        if axes.get(option):
            other = axes[option][0].key
            problems.add(entry.line, f"{where} and {other} are the same option: keep one")
        axes[option] = values or axes.get(option, [])
    return axes


def _span(
    line: int,
    found: dict[str, list[Choice]],
    fixed: dict[str, Choice],
    lost: tuple[str, ...],
    problems: Problems,
) -> list[Point]:
    axes = {option: values for option, values in found.items() if values}
    lost += tuple(option for option, values in found.items() if not values)
    lost = tuple(option for option in lost if option not in {*axes, *fixed})
    for option, values in axes.items():
        if option in fixed:
            at = fixed[option].place[0]
            problems.add(
                values[0].place[0], f"hp.{values[0].key} is also fixed, in line {at}: keep one"
            )
    n_points = math.prod(len(values) for values in axes.values())
    if n_points > MOST_RUNS:
        problems.add(
            line, f"this grid has {n_points:,} runs, more than {MOST_RUNS:,}: split the file"
        )
        return []
    return [
        Point(fixed | dict(zip(axes, chosen, strict=True)), tuple(axes), line, lost)
        for chosen in itertools.product(*axes.values())
    ]


def _option(entry: Entry, where: str, problems: Problems) -> str | None:
    option = option_of(entry.key)
    if option is None and entry.key not in (*STATED, *IGNORED):
        problems.add(entry.line, f"unknown key {where}{_nearest(entry.key, known_keys())}")
    return option


def _choices(key: str, where: str, values: Iterable[Scalar], problems: Problems) -> list[Choice]:
    found: list[Choice] = []
    for index, each in enumerate(values):
        try:
            found.append(Choice(parse_value(key, each.text), key, (each.line, index)))
        except InputError as error:
            problems.add(each.line, f"{where.removesuffix(key)}{error}")
    return found


def _put(
    chosen: dict[str, Choice], option: str, choice: Choice, line: int, problems: Problems
) -> None:
    if option in chosen:
        other = chosen[option].key
        problems.add(line, f"fixed.{choice.key} and {other} are the same option: keep one")
    chosen[option] = choice


def _section(
    section: Entry | None, known: tuple[str, ...] | None, problems: Problems
) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for entry in () if section is None else entries(section.node, section.key, problems):
        where = f"{section.key if section else ''}.{entry.key}"
        if known is not None and entry.key not in known:
            problems.add(entry.line, f"unknown key {where}{_nearest(entry.key, known)}")
            continue
        value = scalar(entry.node, where, problems)
        if value is not None:
            found[entry.key] = value
    return found


def _nearest(word: str, known: Iterable[str]) -> str:
    """A hint at known words: the nearest, or all if they are few."""
    words = list(known)
    near = difflib.get_close_matches(word, words, n=2)
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": choose from {', '.join(words)}" if len(words) < 10 else ": it is no option of a run"
