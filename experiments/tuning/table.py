"""The table of a device while `tune.py` measures it: written anew after each problem."""

import contextlib
import datetime
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pallas_kernels.device_table import FORMAT
from sparsemlp import InputError
from sparsemlp.files import Record, read_record, write_json


class TuningTable:
    """A table as far as it is, which a stopped program leaves for the next.

    A problem is here as plain data, as its entry has it. An entry that was measured with other
    versions of JAX says so, and is kept until it is measured anew.

    Args:
      path: the file; made with the first entry.
      environment: of `sparsemlp.runs.environment.describe_environment`.
      is_measured: whether times mean something; kernels that are interpreted have none.
      told: what to call the file in an error, its path by itself.

    Raises:
      InputError: the file was made on another device, or of what means something else.
    """

    def __init__(
        self,
        path: Path,
        environment: Mapping[str, Any],
        *,
        is_measured: bool,
        told: str | None = None,
    ) -> None:
        self.path = path
        self.is_measured = is_measured
        about: Record = {
            "format": FORMAT,
            "measured": is_measured,
            "device": environment["device"],
            "versions": {name: environment["versions"][name] for name in ("jax", "jaxlib")},
            "script": "experiments/tune.py",
            "date": str(datetime.date.today()),
        }
        self._table = (
            _read(path, about, told or str(path)) if path.exists() else {**about, "entries": []}
        )
        self._entries = {problem_key(entry["problem"]): entry for entry in self._table["entries"]}

    @property
    def n_entries(self) -> int:
        """How many problems have an entry."""
        return len(self._entries)

    def has(self, problem: Record, code: str | None = None) -> bool:
        """Whether a problem has an entry of these versions; of that code, if one is given."""
        entry = self._entries.get(problem_key(problem))
        if entry is None or "versions" in entry:
            return False
        return code in (None, entry.get("code"))

    def add(self, entry: Record) -> None:
        """Writes the entry of a problem, whose breakages are of no interest any more.

        It takes the place of one that was there.
        """
        key = problem_key(entry["problem"])
        self._entries[key] = entry
        self._table["entries"] = list(self._entries.values())
        self._table.get("broken", {}).pop(key, None)
        write_json(self.path, self._table)

    def broken(self, problem: Record) -> dict[str, str]:
        """What broke a problem that has no entry yet: the reason against each configuration."""
        return dict(self._table.get("broken", {}).get(problem_key(problem), {}))

    def write_down(self, key: str, name: str, reason: str) -> None:
        """Writes what broke the problem of that key: a configuration or "dense"."""
        self._table.setdefault("broken", {}).setdefault(key, {})[name] = reason
        write_json(self.path, self._table)


def problem_key(problem: Record) -> str:
    """What a problem is called."""
    return str(sorted(problem.items()))


def line_of(entry: Record) -> str:
    """What was found of a problem, in a line."""
    problem, rejected = entry["problem"], entry["rejected"]
    (n_in, n_out), (rows, cols) = problem["kernel_shape"], problem["block"]
    title = f"{problem['engine']} {problem['kernel']} {n_in}x{n_out} {rows}x{cols} at "
    title += f"{1 - problem['density']:.2g}, {problem['n_rows']} rows, {problem['dtype']}: "
    if entry["microseconds"] is None:
        return f"{title}none is right{''.join(f', {each["reason"]}' for each in rejected[:1])}"
    ratio = entry["dense_microseconds"] / entry["microseconds"]
    wrong = f", {len(rejected)} of them rejected" if rejected else ""
    return f"{title}dense / this {ratio:.2f}, {entry['tried']} tried{wrong}"


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keeps other programs of this user and machine from writing a table, or sees that one does.

    Raises:
      InputError: another program writes it.
    """
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    lock = Path(tempfile.gettempdir()) / f"sparsemlp_table_{os.getuid()}_{name}.lock"
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{path} is being written by another tune.py: wait for it, or choose another file "
                "with --out"
            ) from error
        yield


def _read(path: Path, about: Record, told: str) -> Record:
    if (table := read_record(path)) is None:
        raise InputError(f"{told} is damaged: remove it, or choose another file with --out")
    for name in ("format", "measured", "device"):
        if table.get(name) != about[name]:
            raise InputError(
                f"{told} was made with {name} {table.get(name)}, this is {about[name]}: "
                "remove it to begin anew, or choose another file with --out"
            )
    if table.get("versions") == about["versions"]:
        return table
    own = {name: table.get(name) for name in ("versions", "date")}
    entries = [{**own, **entry} for entry in table["entries"]]
    for entry in entries:
        if entry["versions"] == about["versions"]:
            del entry["versions"]
    return {**about, "entries": entries}
