"""Tests mirror the sources, and the map in BUILD.md has every one of them."""

import re
from collections import Counter
from pathlib import Path

from test_imports import PARTS, ROOT, sources

UNTESTED = {"__init__", "engine", "cifar10", "recorder", "drawing"}
"""Declarations alone, or tested as `test_cifar10_program`; engines by `test_conformance`; what
writes a run folder by `test_run`, drawing by figures."""


def names_tested_beside(path: Path) -> set[str]:
    """The names that tests are named after; of a part of the programs those in its folder alone.

    As pytest wants every name but once, tests there may have the folder's name before their own.
    """
    own = path.parent.name
    folder = ROOT / "tests" / "experiments" / own if own in PARTS else ROOT / "tests"
    names = {path.stem.removeprefix("test_") for path in folder.rglob("test_*.py")}
    return {name.removeprefix(f"{word}_") for name in names for word in (own.removesuffix("s"), "")}


def test_the_tests_mirror_the_sources() -> None:
    missing = {
        name for name, path in sources() if path.stem not in names_tested_beside(path) | UNTESTED
    }
    assert not missing, f"no test file for {', '.join(sorted(missing))}"


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """Their folders are no packages, so pytest collects a name but once; all clashes are named."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    twice = sorted(name for name, count in names.items() if count > 1)
    assert not twice, f"more than one {', '.join(twice)}: put the folder's name before one"


def test_every_module_is_on_the_map() -> None:
    """By its file or by its folder, in the table of BUILD.md; and the map names no others."""
    text = (ROOT / "BUILD.md").read_text()
    named = set(re.findall(r"`([\w/.]+\.py|[\w/]+/)`", text))
    files = {name.split("/")[-1] for name in named if name.endswith(".py")}
    folders = {name.rstrip("/") for name in named if name.endswith("/")}
    paths = [path.relative_to(ROOT) for _, path in sources() if path.name != "__init__.py"]
    lost = [p for p in paths if p.name not in files and p.parent.as_posix() not in folders]
    assert not lost, f"BUILD.md says nothing of {', '.join(map(str, lost))}"
    known = {"__init__.py"} | {path.name for path in [*paths, *(ROOT / "tests").rglob("*.py")]}
    assert not files - known, f"BUILD.md names {files - known}, which are not there"
