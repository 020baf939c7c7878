"""Command lines: tyro's, with help and errors about the value that is asked for.

An option that may be left open is not shown as "None or a number", a number that is none is called
so, and a mistyped name written as `--name=value` gets a suggestion as well.
"""

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from sparsemlp.errors import InputError
from sparsemlp.paths import at_home

_KINDS = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}
"""Values that are written in one word, and what an error calls them."""

REGISTRY = ConstructorRegistry()
"""How values are read; tyro goes by it within `with REGISTRY`."""


def flag(name: str) -> str:
    """An option as it stands on a command line."""
    return "--" + name.replace("_", "-")


def open_default(metavar: str, default: str) -> Any:
    """How the help text shows an option whose default depends on the others."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


def cli[T](
    program: Callable[..., T],
    *,
    args: Sequence[str] | None = None,
    default: T | None = None,
    prog: str | None = None,
    description: str | None = None,
) -> T:
    """Reads a command line and calls a program with it; see `tyro.cli`.

    Args:
      program: a function or a dataclass.
      args: the words behind the program's name; those of the process by default.
      default: of a dataclass, the values of what is not given.
      prog: the program's name; that of the process by default.
      description: head of the help text.

    Returns:
      What the program returns.

    Raises:
      SystemExit: after help (0) or an error (2).
    """
    words = sys.argv[1:] if args is None else args
    words = list(_with_names_apart(words, set(_names(program))))
    given: dict[str, Any] = {} if default is None else {"default": default}
    with REGISTRY:
        return tyro.cli(program, args=words, prog=prog, description=description, **given)


def subcommands(programs: dict[str, Callable[..., Any]], *, description: str | None) -> Any:
    """Calls the program that the first word of the command line names, as `cli` does.

    Args:
      programs: by their names.
      description: head of the help text.

    Returns:
      What the program returns.

    Raises:
      SystemExit: after help (0) or an error (2).
    """
    known = {name for program in programs.values() for name in _names(program)}
    words = list(_with_names_apart(sys.argv[1:], known))
    with REGISTRY:
        return tyro.extras.subcommand_cli_from_dict(programs, args=words, description=description)


@REGISTRY.primitive_rule
def _read_one_word(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    is_union = typing.get_origin(info.type) in (types.UnionType, typing.Union)
    kinds = typing.get_args(info.type) if is_union else (info.type,)
    values = [each for each in kinds if each is not types.NoneType]
    if len(values) != 1 or values[0] not in _KINDS:
        return None
    kind, is_open = values[0], len(kinds) > 1
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=functools.partial(_value_of, kind, is_open),
        is_instance=lambda value: isinstance(value, kind) or (is_open and value is None),
        str_from_instance=lambda value: [str(value)],
    )


def _value_of(kind: type, is_open: bool, words: list[str]) -> Any:
    """The value that is written in a word, None if that may be left open."""
    if is_open and words[0] == "None":
        return None
    try:
        value = kind(words[0])
        # A shell leaves the ~ of --name=~/folder as it is.
        return at_home(value) if isinstance(value, Path) else value
    except InputError:
        raise
    except ValueError:
        raise ValueError(f"{words[0]!r} is not {_KINDS[kind]}") from None


def _names(program: Callable[..., Any]) -> Iterator[str]:
    """Names of the options, those of dataclasses within one included."""
    hints = typing.get_type_hints(program)
    for name in inspect.signature(program).parameters:
        kind = hints.get(name)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _names(kind)
        yield name.strip("_").replace("_", "-")


def _with_names_apart(words: Iterable[str], known: set[str]) -> Iterator[str]:
    """Cuts `--name=value` in two where the name is unknown: tyro looks for names that are near."""
    for word in words:
        name, equals, value = word.partition("=")
        bare = name.removeprefix("--").replace("_", "-")
        if equals and name.startswith("--") and bare.removeprefix("no-") not in known:
            yield from (name, value)
        else:
            yield word
