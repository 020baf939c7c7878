"""Command lines read what they ask for, and say what is wrong with what they are given."""

import dataclasses
from pathlib import Path
from typing import Annotated

import pytest
import tyro

from sparsemlp.options import cli, open_default, subcommands


@dataclasses.dataclass(frozen=True)
class Inner:
    drop_path: float | None = None
    """Share."""
    depth: Annotated[int | None, open_default("INT", "5")] = None
    """Blocks."""


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Annotated[Inner, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Inner)
    folder: Path | None = None
    """A folder."""
    names: tuple[str, ...] = ()
    """Names."""
    quick: bool = False
    """Faster."""


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", Outer()),
        ("--drop-path=0.5 --depth 3", Outer(Inner(0.5, 3))),
        ("--drop_path=0.5 --no-quick", Outer(Inner(0.5))),
        (
            "--folder=a=b --names a b --quick",
            Outer(folder=Path("a=b"), names=("a", "b"), quick=True),
        ),
        ("--drop-path=-1e-3", Outer(Inner(-1e-3))),
        ("--folder=None --depth=None", Outer()),
    ],
)
def test_values_are_read(words, wanted):
    assert cli(Outer, args=words.split()) == wanted


def test_values_that_are_not_given_are_those_of_a_default():
    default = Outer(Inner(0.5, 3), Path("a"))
    assert cli(Outer, args=["--depth=4"], default=default) == Outer(Inner(0.5, 4), Path("a"))
    assert cli(Outer, args=["--depth=None"], default=default) == Outer(Inner(0.5), Path("a"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--drop-path=80%", "Error parsing --drop-path: '80%' is not a number"),
        ("--depth=2.5", "Error parsing --depth: '2.5' is not a whole number"),
        ("--dropth=2", "--depth INT"),
        ("--drop-paht=2", "--drop-path FLOAT"),
        ("--no-qick", "--quick, --no-quick"),
        ("--drop-path", "--drop-path"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_was_meant(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli(Outer, args=words.split())
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_shows_values_and_not_that_an_option_may_be_left_open(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli(Outer, args=["--help"], prog="program", description="What it does.")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "usage: program" in text
    assert "What it does." in text
    assert "--depth INT" in text
    assert "(default: 5)" in text
    assert "--folder PATH" in text
    assert "{None}" not in text


def test_the_first_word_names_a_program(monkeypatch, capsys):
    programs = {"one": lambda: 1, "double": _double}
    monkeypatch.setattr("sys.argv", ["x", "double", "--number=3"])
    assert subcommands(programs, description=None) == 6
    monkeypatch.setattr("sys.argv", ["x", "double", "--nubmer=3"])
    with pytest.raises(SystemExit):
        subcommands(programs, description=None)
    assert "--number INT" in capsys.readouterr().err


def _double(number: int = 1) -> int:
    return 2 * number


def test_home_is_found_where_the_shell_leaves_it(monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/somewhere")
    assert cli(Outer, args=["--folder=~/runs"]).folder == Path("/somewhere/runs")
    with pytest.raises(SystemExit):
        cli(Outer, args=["--folder=~nobody-of-that-name/runs"])
    assert "nobody's home folder" in " ".join(capsys.readouterr().err.split())
