"""What the engine computes on Hopper: which kernel, cut in which way."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_product_program import INTERPRETED
from test_products import normal

from pallas_kernels import Mosaic, Reference, SparseLayer, tuning
from pallas_kernels.device_table import Problem
from pallas_kernels.mosaic import balanced_gradient, gradient
from pallas_kernels.mosaic.gradient_tiles import DENSE, GradientTiles
from pallas_kernels.mosaic.search_space import configurations


@INTERPRETED
@pytest.mark.parametrize("kernel", ["product", "kernel_gradient"])
def test_a_cut_that_is_forced_is_the_one_that_computes(kernel, monkeypatch):
    """Unlike the heuristic's, in the same process, with the same result."""
    layer = SparseLayer((96, 64), (32, 32), 3, -1, "bfloat16")
    x, dy = normal(70, 96, dtype="bfloat16"), normal(70, 64, dtype="bfloat16", seed=1)
    w, kept = normal(96, 64, dtype="bfloat16", seed=2), jnp.asarray([0, 3, 4], jnp.int32)
    space = configurations(layer.problem("mosaic", 1, kernel, 70))
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

    monkeypatch.setattr("pallas_kernels.mosaic.hopper.configure", configure)
    engine = Mosaic(interpret=True)
    first = compute(engine)
    with tuning.forced(chosen):
        second = compute(engine)
    assert taken == [space[0], chosen]
    want = np.asarray(compute(Reference()), np.float32)
    for found in (first, second):
        tolerance = 2 * float(jnp.finfo("bfloat16").eps) * np.abs(want).max()
        np.testing.assert_allclose(np.asarray(found, np.float32), want, rtol=0, atol=tolerance)


BALANCED = GradientTiles(2, 4, 132, by_rows=False, balanced=True)
IN_GROUPS = GradientTiles(2, 4, 132, by_rows=False)


@pytest.mark.parametrize(
    ("tiles", "dtype", "taken"),
    [
        (DENSE, "bfloat16", []),
        (IN_GROUPS, "bfloat16", ["in groups"]),
        (BALANCED, "bfloat16", ["balanced with bias"]),
        (BALANCED, "float32", ["balanced"]),
    ],
    ids=["dense", "in groups", "balanced", "balanced float32"],
)
def test_the_cut_says_which_kernel_computes_dw_and_whether_db_is_its_too(
    tiles, dtype, taken, monkeypatch
):
    layer = SparseLayer((96, 64), (32, 32), 3, -1, dtype)
    x, dy = normal(70, 96, dtype=dtype), normal(70, 64, dtype=dtype, seed=1)
    kept = jnp.asarray([0, 3, 4], jnp.int32)
    want = Reference().parameter_gradients(x, dy, kept, layer)
    called: list[str] = []

    def instead_of(name: str, result: Any) -> Any:
        return lambda *_, **__: called.append(name) or result

    both = instead_of("balanced with bias", want)
    monkeypatch.setattr(balanced_gradient, "parameter_gradients", both)
    monkeypatch.setattr(balanced_gradient, "kernel_gradient", instead_of("balanced", want[0]))
    monkeypatch.setattr(gradient, "kernel_gradient", instead_of("in groups", want[0]))
    with tuning.forced(tiles):
        found = Mosaic(capability="9.0").parameter_gradients(x, dy, kept, layer)
    assert called == taken
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
