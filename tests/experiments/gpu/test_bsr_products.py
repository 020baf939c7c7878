"""PyTorch's block-sparse products: weights as the point says, the fastest of what is right."""

from typing import Any

import numpy as np
import pytest
from gpu.bsr_products import Product, fastest, masked_weight, parameters
from gpu.points import Point
from test_gpu_peers import Tensor, stand_in


def test_the_weight_has_so_many_blocks():
    point = Point((64, 128), (32, 16), 0.8, 8, "float32")
    weight = np.asarray(masked_weight(stand_in(), point))
    assert weight.shape == (64, 128)
    blocks = weight.reshape(4, 16, 4, 32).swapaxes(1, 2).any(axis=(2, 3))
    assert blocks.sum() == point.layer.n_kept


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
    product = Product(multiply, x, x, x)
    choices = [None, *({"name": name} for name in ("wrong", "refused", "fast"))]
    found = fastest(product, choices, timed)
    assert found == {"microseconds": 2e6, "parameters": {"name": "fast"}, "own_microseconds": 3e6}
    assert looks == [("own", 2), ("fast", 2), ("fast", 7)]
    with pytest.raises(ValueError, match=r"RuntimeError: out of resources more$"):
        fastest(product, [{"name": "refused"}], timed)


def test_other_parameters_cut_the_rows_evenly():
    own, *others = parameters(8192, 32)
    assert own is None
    tiles = {8192 // choice["SPLIT_N"] for choice in others if choice}
    assert tiles == {32, 64, 128}
    assert all(8192 % tile == 0 for tile in tiles)
    assert parameters(8190, 32) == [None]
