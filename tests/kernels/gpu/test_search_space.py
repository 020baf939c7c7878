"""The ways to cut Mosaic's kernels for Hopper that the tuner tries."""

import dataclasses
import json

import pytest

from pallas_kernels import Mosaic, SparseLayer
from pallas_kernels.device_table import Problem
from pallas_kernels.mosaic.search_space import configurations

LAYER = SparseLayer((1024, 4096), (64, 64), 205, -1, "bfloat16")
NARROW = SparseLayer((384, 1536), (32, 32), 116, -1, "bfloat16")
KERNELS = ("product", "input_gradient", "kernel_gradient")


def problem(kernel: str, layer: SparseLayer = LAYER, n_rows: int = 8192) -> Problem:
    return layer.problem("mosaic", 1, kernel, n_rows)


@pytest.mark.parametrize(
    ("kernel", "layer"),
    [*((kernel, LAYER) for kernel in KERNELS), ("mlp", NARROW), ("mlp_gradients", NARROW)],
)
def test_the_heuristic_comes_first_and_each_once_as_a_table_holds_it(kernel, layer):
    space = configurations(problem(kernel, layer))
    assert len(space) == len(set(space)) > 8
    again = [type(c)(**json.loads(json.dumps(dataclasses.asdict(c)))) for c in space]
    assert again == space


def test_other_kernels_and_those_of_ampere_have_no_choice():
    assert configurations(problem("compact_gradient")) == []
    assert Mosaic(capability="8.0").configurations(problem("product")) == []
    assert len(Mosaic(capability="9.0").configurations(problem("product"))) > 8
