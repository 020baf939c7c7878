"""The tables hold what was measured, and a trial is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from gpu import report as gpu_report
from gpu.points import Point

from sparsemlp import InputError


def write_results(folder: Path, is_measured: bool = True) -> Path:
    """A folder with a product, PyTorch's time, and two training steps."""
    device = {
        "measured": is_measured,
        "device": "NVIDIA Dream",
        "environment": {"versions": {"jax": "9"}, "commit": "abc"},
        "ceilings": {"bytes_per_second": 2e12, "flops": {"bfloat16": 4e14, "float32": 1e14}},
    }
    (folder / "device.json").write_text(json.dumps(device))
    point = Point((64, 128), (32, 32), 0.5, 1024, "bfloat16")

    def numbers(microseconds: float) -> dict[str, float]:
        rates = {"tflops": 12.5, "gigabytes_per_second": 700.0, "share_of_roofline": 0.5}
        return {"microseconds": microseconds, "flops_per_byte": 30.0, **rates}

    product = {
        "key": str(point),
        "point": {**vars(point), "shape": [64, 128], "block": [32, 32]},
        "phases": {
            "forward": {
                "dense": numbers(12.0),
                "mosaic": numbers(4.0),
                "metadata": {"microseconds": 3.0},
            }
        },
        "failed": {"triton forward": "no room"},
    }
    (folder / "products.jsonl").write_text(json.dumps(product) + "\n")
    peer = {
        "key": str(point),
        "phases": {"forward": {"microseconds": 6.0}},
        "failed": {"dx": "no kernel"},
    }
    (folder / "peers.jsonl").write_text(json.dumps(peer) + "\n")
    checks = [
        {"key": "mosaic a", "engine": "mosaic", "wrong": ""},
        {"key": "mosaic b", "engine": "mosaic", "wrong": "is off by 1"},
    ]
    (folder / "correctness.jsonl").write_text("".join(json.dumps(c) + "\n" for c in checks))
    (folder / "steps").mkdir()
    for contender, ms in (("dense", 30.0), ("mosaic", 20.0)):
        step: dict[str, Any] = {
            "key": contender,
            "model": "resmlp_b24",
            "contender": contender,
            "batch": 64,
            "dtype": "bfloat16",
            "step_ms": ms,
            "planned_bytes": 2**30,
            "allocator_peak_bytes": 2**31,
            "selection_ms": 0.5,
            "metadata_ms": 0.1,
        }
        (folder / "steps" / f"{contender}.json").write_text(json.dumps(step))
    failed = {"key": "resmlp_s24 dense", "failed": "out of memory"}
    (folder / "steps" / "z.json").write_text(json.dumps(failed))
    return folder


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_row_follows_from_the_records(tmp_path: Path):
    text = gpu_report.write_report(write_results(tmp_path))
    assert (tmp_path / "table.md").read_text() == text
    table = rows(text)
    by = {row[6]: row[7:] for row in table if len(row) == 12 and row[5] == "forward"}
    assert by["mosaic"] == ["4.0", "3.00x", "12.5", "700", "50%"]
    assert by["metadata"][0] == "3.0"
    flops = 2 * 1024 * 64 * 128 / 2
    assert by["PyTorch BSR"][:3] == ["6.0", "2.00x", f"{flops / 6e-6 / 1e12:.1f}"]
    assert any("failed: no room" in cell for row in table for cell in row)
    assert any(row[5:7] == ["PyTorch BSR dx", "failed: no kernel"] for row in table)
    assert any("failed: out of memory" in cell for row in table for cell in row)
    steps = {row[3]: row for row in table if row[0] == "resmlp_b24"}
    assert steps["mosaic"][4:] == ["20.00", "1.50x", "2048", "1024", "2.5%", "0.5%"]
    assert "1 of 2 products are right; mosaic b: is off by 1" in text
    assert "no measurement" not in text


def test_all_rows_of_a_table_are_as_long_as_its_head(tmp_path: Path):
    widths = {len(row) for row in rows(gpu_report.write_report(write_results(tmp_path)))}
    assert widths == {10, 12}


def test_a_trial_is_called_so_in_every_heading_and_refused_for_readme(tmp_path: Path, monkeypatch):
    folder = write_results(tmp_path, is_measured=False)
    headings = [
        line for line in gpu_report.write_report(folder).splitlines() if line.startswith("#")
    ]
    assert len(headings) == 4
    assert all("no measurement" in line for line in headings)
    with pytest.raises(InputError, match="no measurement"):
        gpu_report.print_tables(folder)
