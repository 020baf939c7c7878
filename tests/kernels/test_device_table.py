"""What a table of measurements holds, and what becomes of a file that is none."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels import ENGINES, Reference
from pallas_kernels.device_table import TABLES, Entry, Problem, TableError, read_table, table_file

PROBLEM = Problem("triton", 1, "product", "bfloat16", (32, 32), (384, 1536), -1, 0.2, 8192)


def record(found: Entry) -> dict[str, Any]:
    return dataclasses.asdict(found) | {"rejected": []}


def test_a_table_is_read_as_it_was_written(tmp_path: Path):
    path = tmp_path / "table.json"
    assert read_table(path) == ()
    other = dataclasses.replace(PROBLEM, density=0.5)
    cut = {"columns": 64, "warps": 8, "stages": 2}
    entries = [Entry(PROBLEM, cut, 50.0, 100.0), Entry(other, {}, 70.0, None)]
    table = {"format": 1, "measured": True, "entries": list(map(record, entries))}
    path.write_text(json.dumps(table))
    assert read_table(path) == tuple(entries)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "no table"),
        (b'{"format": 2}', "format 2"),
        (b'{"format": 1, "measured": false, "entries": []}', "no measurements"),
        (b'{"format": 1, "measured": true, "entries": [{}]}', "no table"),
        (b'{"format": 1, "measured": true, "entries": [{"problem": {"block": [1]}}]}', "no table"),
        (b'{"format": 1, "measured": true, "entries": [{"problem": "lost"}]}', "no table"),
        (b'{"format": 1}', "no table"),
        (b'{"format": "\xff"}', "no table"),
    ],
)
def test_a_file_that_is_no_table_says_so_with_the_way_out(tmp_path: Path, text: bytes, words: str):
    path = tmp_path / "table.json"
    path.write_bytes(text)
    with pytest.raises(TableError, match=words) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    assert "tune.py" in str(caught.value)


def test_the_file_of_a_device_has_its_name():
    assert table_file("NVIDIA H200").name == "nvidia_h200.json"
    assert table_file("NVIDIA A100-SXM4-80GB").name == "nvidia_a100_sxm4_80gb.json"


@pytest.mark.parametrize("path", [*TABLES.glob("*.json")], ids=lambda path: path.stem)
def test_every_table_that_is_there_is_measured_and_holds_what_kernels_take(path: Path):
    for found in read_table(path):
        problem = found.problem
        assert found.microseconds is None or found.microseconds > 0
        assert found.dense_microseconds is None or found.dense_microseconds > 0
        engine = ENGINES.get(problem.engine, Reference())
        if engine.version == problem.version and found.configuration:
            known = engine.configurations(problem)
            assert type(known[0])(**found.configuration) in known
