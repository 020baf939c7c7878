"""Tables as CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sparsemlp.files import write_whole


def write_csv(path: Path, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table, whole or not at all; numbers as they are, unrounded.

    Raises:
      SaveError: the disk is full or refuses the write.
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([heading, *rows])
    write_whole(path, lambda file: file.write(text.getvalue().encode()))
