"""The ways to cut Mosaic's kernels for Hopper that the tuner tries."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_product_program import INTERPRETED
from test_products import normal

from pallas_kernels import Mosaic, Reference, SparseLayer, tuning
from pallas_kernels.mosaic.search_space import configurations
from pallas_kernels.tuning import Problem

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


@INTERPRETED
@pytest.mark.parametrize("kernel", ["product", "kernel_gradient"])
def test_a_cut_that_is_forced_is_the_one_that_computes(kernel, monkeypatch):
    """Unlike the heuristic's, in the same process, with the same result."""
    layer = SparseLayer((96, 64), (32, 32), 3, -1, "bfloat16")
    x, dy = normal(70, 96, dtype="bfloat16"), normal(70, 64, dtype="bfloat16", seed=1)
    w, kept = normal(96, 64, dtype="bfloat16", seed=2), jnp.asarray([0, 3, 4], jnp.int32)
    space = configurations(problem(kernel, layer, 70))
    # One program for each multiprocessor would take long to interpret.
    chosen = next(c for c in space[1:] if not getattr(c, "balanced", False))

    def compute(engine: Any) -> Any:
        if kernel == "product":
            return engine.product(x, w, None, kept, layer)
        return engine.kernel_gradient(x, dy, kept, layer)

    taken: list[Any] = []

    def configure(problem: Problem, heuristic: Any) -> Any:
        taken.append(tuning.configure(problem, heuristic))
        return taken[-1]

    monkeypatch.setattr("pallas_kernels.mosaic.engine.configure", configure)
    engine = Mosaic(interpret=True)
    first = compute(engine)
    with tuning.forced(chosen):
        second = compute(engine)
    assert taken == [space[0], chosen]
    want = np.asarray(compute(Reference()), np.float32)
    for found in (first, second):
        tolerance = 2 * float(jnp.finfo("bfloat16").eps) * np.abs(want).max()
        np.testing.assert_allclose(np.asarray(found, np.float32), want, rtol=0, atol=tolerance)
