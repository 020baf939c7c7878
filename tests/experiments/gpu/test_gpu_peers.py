"""PyTorch's part: its weights are those of the point, its products are checked, and it says so."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu import peers as gpu_peers
from gpu.points import Point, tiny_points


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


def test_the_weight_has_so_many_blocks():
    point = Point((64, 128), (32, 16), 0.8, 8, "float32")
    weight = np.asarray(gpu_peers.masked_weight(stand_in(), point))
    assert weight.shape == (64, 128)
    blocks = weight.reshape(4, 16, 4, 32).swapaxes(1, 2).any(axis=(2, 3))
    assert blocks.sum() == point.layer.n_kept


def test_without_pytorch_or_its_gpu_the_way_out_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_peers.importlib.util, "find_spec", lambda name: None)
    assert run(monkeypatch, f"--out={tmp_path / 'p.jsonl'}") == 2
    assert "'.[peers]'" in capsys.readouterr().err
    monkeypatch.setattr(gpu_peers.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(gpu_peers.importlib, "import_module", lambda name: stand_in())
    assert run(monkeypatch, f"--out={tmp_path / 'p.jsonl'}") == 2
    assert "finds no GPU" in capsys.readouterr().err


def test_the_fastest_right_parameters_are_timed():
    seconds = {"own": 3.0, "wrong": 1.0, "fast": 2.0}
    called: list[str] = []
    looks: list[tuple[str, int]] = []

    def multiply(sparse: Any, x: Any, choice: Any) -> Any:
        called.append("own" if choice is None else choice["name"])
        if called[-1] == "refused":
            raise RuntimeError("out of resources\nmore")
        return x + (called[-1] == "wrong")

    def timed(call: Any, share: float, rounds: int) -> float:
        call()
        looks.append((called[-1], rounds))
        return seconds[called[-1]]

    x = np.ones((2, 2), np.float32).view(Tensor)
    product = gpu_peers.Product(multiply, x, x, x)
    choices = [None, *({"name": name} for name in ("wrong", "refused", "fast"))]
    found = gpu_peers.fastest(product, choices, timed)
    assert found == {"microseconds": 2e6, "parameters": {"name": "fast"}, "own_microseconds": 3e6}
    assert looks == [("own", 2), ("fast", 2), ("fast", 7)]
    with pytest.raises(ValueError, match=r"RuntimeError: out of resources more$"):
        gpu_peers.fastest(product, [{"name": "refused"}], timed)


def test_other_parameters_cut_the_rows_evenly():
    own, *others = gpu_peers.parameters(8192, 32)
    assert own is None
    tiles = {8192 // choice["SPLIT_N"] for choice in others if choice}
    assert tiles == {32, 64, 128}
    assert all(8192 % tile == 0 for tile in tiles)
    assert gpu_peers.parameters(8190, 32) == [None]
