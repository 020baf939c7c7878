"""YAML that knows its lines: read safely, nothing constructed, every problem with its place."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import yaml

from sparsemlp.errors import InputError, in_a_line

_PLAIN = frozenset(f"tag:yaml.org,2002:{n}" for n in ("str", "int", "float", "bool", "null"))


@dataclasses.dataclass(frozen=True, order=True)
class Problem:
    """What is wrong, and at which line of the file, from 1."""

    line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A value as it is written, without its quotes; None for YAML's null."""

    line: int
    text: str | None


@dataclasses.dataclass(frozen=True)
class Entry:
    """A key of a mapping with what stands behind it."""

    key: str
    line: int
    node: yaml.Node


class Problems:
    """The problems of one file.

    Args:
      path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: set[Problem] = set()

    def add(self, line: int, text: str) -> None:
        """Notes a problem; one that is known already counts once."""
        self._found.add(Problem(line, text))

    def __iter__(self) -> Iterator[Problem]:
        return iter(sorted(self._found))

    def __len__(self) -> int:
        return len(self._found)

    def require_none(self) -> None:
        """Raises InputError that lists all problems by line, if there are any."""
        lines = [f"{self._path}:{problem.line}: {problem.text}" for problem in self]
        if len(lines) == 1:
            raise InputError(f"{lines[0]} (nothing was started)")
        if lines:
            listed = "\n  ".join(line.replace("\n", "\n  ") for line in lines)
            raise InputError(
                f"{self._path} has {len(lines)} problems, nothing was started:\n  {listed}"
            )


def compose(path: Path, text: str) -> yaml.Node | None:
    """The only document of a YAML text as a tree of nodes; None if it is empty.

    Raises:
      InputError: the text is no YAML, or holds several documents; the message names file and line.
    """
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        told = ", ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{path}:{line}: this is no YAML: {told}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is no YAML: {in_a_line(error)}") from error
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply: a grid file has four levels") from error


def line_of(node: yaml.Node) -> int:
    """The line that a node begins at, from 1."""
    return node.start_mark.line + 1


def entries(node: yaml.Node, where: str, problems: Problems) -> list[Entry]:
    """The keys of a mapping in their order; other nodes and repeated keys are problems.

    An empty section, as `hp:` with nothing behind it, is an empty mapping.
    """
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
        return []
    if not isinstance(node, yaml.MappingNode):
        problems.add(line_of(node), f"{where} must be a mapping, KEY: VALUE")
        return []
    found: dict[str, Entry] = {}
    for key, value in node.value:
        line = line_of(key)
        if not isinstance(key, yaml.ScalarNode):
            problems.add(line, f"{where}: a key must be a word")
        elif key.value in found:
            earlier = found[key.value].line
            problems.add(line, f"{where}: {key.value!r} stands here and in line {earlier}")
        else:
            found[key.value] = Entry(key.value, line, value)
    return list(found.values())


def scalar(node: yaml.Node, where: str, problems: Problems) -> Scalar | None:
    """A single value as it is written; anything else is a problem, and None."""
    if not isinstance(node, yaml.ScalarNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
        problems.add(line_of(node), f"{where} takes a single value, not {kind}")
        return None
    if node.tag not in _PLAIN and not node.tag.startswith("tag:yaml.org,2002:timestamp"):
        problems.add(line_of(node), f"{where}: the tag {node.tag} is not allowed")
        return None
    return Scalar(line_of(node), None if node.tag.endswith(":null") else node.value)


def scalars(node: yaml.Node, where: str, problems: Problems) -> list[Scalar]:
    """The values of a list; a single value is a list of one."""
    if not isinstance(node, yaml.SequenceNode):
        found = scalar(node, where, problems)
        return [] if found is None else [found]
    if not node.value:
        problems.add(line_of(node), f"{where} is an empty list: give at least one value")
    each = (scalar(item, where, problems) for item in node.value)
    return [item for item in each if item is not None]
