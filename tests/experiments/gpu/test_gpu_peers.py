"""PyTorch's part: its weights are those of the point, its products are checked, and it says so."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu import peers as gpu_peers
from gpu.points import tiny_points


class Tensor(np.ndarray):
    """As much of a tensor as the program uses, on top of NumPy."""

    def to(self, device: str, dtype: Any) -> "Tensor":
        assert device == "cpu"
        return self.astype(dtype).view(Tensor)

    def repeat_interleave(self, times: int, axis: int) -> "Tensor":
        return np.repeat(self, times, axis).view(Tensor)

    def abs(self) -> "Tensor":
        return np.abs(self).view(Tensor)

    def contiguous(self) -> "Tensor":
        return np.ascontiguousarray(self).view(Tensor)

    def to_sparse_bsr(self, block: tuple[int, int]) -> "Tensor":
        assert all(side % part == 0 for side, part in zip(self.shape, block, strict=True))
        return self


def stand_in() -> Any:
    rng = np.random.default_rng(0)

    def randn(*shape: int, device: str = "cpu", dtype: Any = np.float32) -> Tensor:
        return rng.normal(size=shape).astype(dtype).view(Tensor)

    return SimpleNamespace(
        __version__="0.stand-in",
        float32=np.float32,
        randn=randn,
        from_numpy=lambda a: a.view(Tensor),
        matmul=lambda a, b: (a @ b).view(Tensor),
        cuda=SimpleNamespace(is_available=lambda: False),
    )


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["peers.py", *arguments])
    return gpu_peers.main()


def test_both_products_of_a_point_are_there_and_marked_as_a_trial(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(gpu_peers, "load_torch", lambda is_smoke: stand_in())
    out = tmp_path / "peers.jsonl"
    for _ in range(2):
        assert run(monkeypatch, f"--out={out}", "--smoke") == 0
    (record,) = map(json.loads, out.read_text().splitlines())
    assert record["key"] == str(tiny_points()[0])
    assert set(record["phases"]) == {"forward", "input_gradient"}
    assert record["measured"] is False
    assert record["failed"] == {}


def test_a_wrong_product_is_said_and_not_timed():
    torch = stand_in()
    torch.matmul = lambda a, b: 1.1 * (a @ b)
    record = gpu_peers.measure(torch, tiny_points()[0], True)
    assert record["phases"] == {}
    assert set(record["failed"]) == {"forward", "input_gradient"}


def test_without_pytorch_or_its_gpu_the_way_out_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_peers.importlib.util, "find_spec", lambda name: None)
    assert run(monkeypatch, f"--out={tmp_path / 'p.jsonl'}") == 2
    assert "'.[peers]'" in capsys.readouterr().err
    monkeypatch.setattr(gpu_peers.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(gpu_peers.importlib, "import_module", lambda name: stand_in())
    assert run(monkeypatch, f"--out={tmp_path / 'p.jsonl'}") == 2
    assert "finds no GPU" in capsys.readouterr().err
