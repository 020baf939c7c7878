"""The summary of the GPU benchmark names the fastest engine and what it was compared with."""

import json
from pathlib import Path
from typing import Any

from gpu.points import Point
from gpu.summary import summary_rows

POINT = Point((1024, 4096), (64, 64), 0.8, 8192, "bfloat16")
PHASES = ("forward_backward", "forward", "input_gradient", "kernel_gradient")


def write(folder: Path, contenders: dict[str, float], peer: dict[str, float] | None) -> None:
    """Times in microseconds, a product's of each contender; all three take three times as long."""

    def phase(name: str) -> dict[str, Any]:
        n_products = 3 if name == "forward_backward" else 1
        return {
            each: {"microseconds": n_products * one, "share_of_roofline": 0.62}
            for each, one in contenders.items()
        }

    record = {
        "key": str(POINT),
        "point": {**vars(POINT), "shape": [1024, 4096], "block": [64, 64]},
        "phases": {name: phase(name) for name in PHASES},
        "failed": {},
    }
    (folder / "products.jsonl").write_text(json.dumps(record) + "\n")
    if peer is not None:
        times = {name: {"microseconds": one} for name, one in peer.items()}
        peers = {"key": str(POINT), "phases": times}
        (folder / "peers.jsonl").write_text(json.dumps(peers) + "\n")


TIMES = {"dense": 100.0, "masked dense": 104.0, "reference": 90.0, "triton": 60.0, "mosaic": 40.0}
LAYER = ("1024x4096", "64x64", "0.8", 8192, "bfloat16")


def test_the_fastest_engine_is_compared_with_xla_and_pytorch(tmp_path):
    write(tmp_path, TIMES, {"forward": 50.0, "input_gradient": 70.0})
    assert summary_rows(tmp_path) == [(*LAYER, "mosaic", "2.50x", "1.50x", "62%")]


def test_what_pytorch_lacks_is_left_open(tmp_path):
    write(tmp_path, TIMES, {"forward": 50.0})
    assert summary_rows(tmp_path) == [(*LAYER, "mosaic", "2.50x", "", "62%")]
    (tmp_path / "peers.jsonl").unlink()
    assert summary_rows(tmp_path) == [(*LAYER, "mosaic", "2.50x", "", "62%")]


def test_a_point_without_an_engine_has_no_row(tmp_path):
    write(tmp_path, {"dense": 100.0, "reference": 90.0}, None)
    assert summary_rows(tmp_path) == []
    assert summary_rows(tmp_path / "nothing") == []
