"""Every engine computes what the reference does: masked products against float64 NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES, PLANNED_ENGINES, Reference, SparseLayer

IN, OUT, CHANNELS, BLOCK = 6, 8, 3, (4, 2)
KEPT = np.array([0, 3, 4], np.int32)


@pytest.fixture(scope="module")
def mask() -> np.ndarray:
    grid = np.zeros((IN // BLOCK[1], OUT // BLOCK[0]), bool)
    grid.flat[KEPT] = True
    return np.kron(grid, np.ones((BLOCK[1], BLOCK[0]), bool))


@pytest.fixture(params=[-1, -2], ids=["features", "tokens"])
def layer(request) -> SparseLayer:
    return SparseLayer((IN, OUT), BLOCK, len(KEPT), request.param, "float32")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_an_engine_multiplies_by_the_masked_kernel_and_masks_its_gradient(engine, layer, mask):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=(4, IN)), rng.normal(size=(4, OUT))
    kernel, bias = rng.normal(size=(IN, OUT)), rng.normal(size=OUT)
    expected = (x @ (kernel * mask) + bias, dy @ (kernel * mask).T, (x.T @ dy) * mask)
    turn = layer.axis == -2
    x32, dy32 = (jnp.asarray(a.T if turn else a, jnp.float32) for a in (x, dy))
    w32, b32, kept = jnp.asarray(kernel, jnp.float32), jnp.asarray(bias, jnp.float32), KEPT
    kept = jnp.asarray(kept)
    y = engine.product(x32, w32, b32, kept, layer)
    dx = engine.input_gradient(dy32, w32, kept, layer)
    dw = engine.kernel_gradient(x32, dy32, kept, layer)
    actual = (y.T if turn else y, dx.T if turn else dx, dw)
    # Sums of at most 9 terms of magnitude up to about 4 x 3, inputs rounded to float32.
    tolerance = 4 * np.finfo(np.float32).eps * np.sqrt(9) * 12
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance)
    np.testing.assert_array_equal(np.asarray(dw)[~mask], 0.0)
    assert np.all(np.asarray(dw)[mask] != 0)


def test_dropped_weights_do_not_matter_even_when_they_are_not_finite(layer, mask):
    kernel = jnp.where(jnp.asarray(mask), 1.0, jnp.nan).astype(jnp.float32)
    x = jnp.ones((4, IN) if layer.axis == -1 else (IN, 4))
    y = Reference().product(x, kernel, None, jnp.asarray(KEPT), layer)
    assert np.all(np.isfinite(y))


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_reference_runs_everywhere(layer, platform):
    assert Reference().reason_against(layer, platform) is None


def test_every_engine_is_known_by_its_own_name_and_none_is_still_planned():
    assert {name: engine.name for name, engine in ENGINES.items()} == {
        name: name for name in ENGINES
    }
    assert "reference" in ENGINES
    assert not set(ENGINES) & set(PLANNED_ENGINES)
