"""Schedules against the formulas, computed by hand in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.errors import InputError
from sparsemlp.train.learning_rates import by_epoch, by_step, learning_rate, triangular_rate

THESIS = {"peak": 0.01, "epochs": 200, "warmup_epochs": 5, "start": 1e-3, "minimum": 1e-5}
EPS = float(np.finfo(np.float32).eps)


def rate_by_hand(epoch: int) -> float:
    if epoch < 5:
        return 1e-3 + epoch * (0.01 - 1e-3) / 5
    return 1e-5 + (0.01 - 1e-5) * (1 + math.cos(math.pi * epoch / 200)) / 2


def test_schedule_equals_the_formula_at_every_epoch():
    epochs = jnp.arange(201, dtype=jnp.int32)
    with jax.numpy_dtype_promotion("strict"):
        rates = jax.jit(functools.partial(learning_rate, **THESIS))(epochs)
    assert rates.dtype == jnp.float32
    expected = [rate_by_hand(epoch) for epoch in range(201)]
    # Rounding the angle moves the cosine by up to pi * eps, an absolute error.
    np.testing.assert_allclose(rates, expected, rtol=4 * EPS, atol=4 * math.pi * EPS * 0.01)


def test_schedule_starts_low_peaks_after_the_warmup_and_stays_at_the_minimum():
    rate = functools.partial(learning_rate, **THESIS)
    assert float(rate(0)) == pytest.approx(1e-3)
    assert float(rate(4)) < float(rate(5)) < 0.01
    assert float(rate(200)) == float(rate(1000)) == pytest.approx(1e-5)


def test_schedule_without_warmup_starts_at_the_peak():
    rate = learning_rate(0, peak=0.5, epochs=10, warmup_epochs=0, start=0.1, minimum=0.0)
    assert rate.shape == ()
    assert float(rate) == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peak": math.nan}, "peak=nan is no learning rate: choose a finite number >= 0"),
        ({"minimum": -1.0}, "minimum=-1.0 is no learning rate"),
        ({"epochs": 0}, "epochs=0 leaves nothing to train"),
        ({"warmup_epochs": 201}, r"warmup_epochs=201 does not fit into 200 epochs"),
    ],
)
def test_schedule_refuses(change, message):
    with pytest.raises(InputError, match=message):
        learning_rate(0, **(THESIS | change))


@pytest.mark.parametrize("paced", [by_epoch, by_step])
def test_an_epoch_has_a_step_at_least(paced):
    with pytest.raises(InputError, match="steps_per_epoch=0 makes no epoch: choose at least 1"):
        paced(lambda epoch: jnp.float32(0.01), 0)


def test_the_triangle_peaks_after_the_warm_up_and_is_straight_on_both_sides():
    rate = functools.partial(
        triangular_rate, peak=0.5, epochs=150, warmup_epochs=5, start=5e-5, minimum=0.0
    )
    positions = jnp.asarray([0, 2.5, 5, 77.5, 150, 160], jnp.float32)
    expected = [5e-5, (5e-5 + 0.5) / 2, 0.5, 0.25, 0, 0]
    np.testing.assert_allclose(jax.jit(rate)(positions), expected, rtol=8 * EPS)
    started = triangular_rate(0, peak=0.5, epochs=2, warmup_epochs=0, start=0.1, minimum=0.0)
    assert float(started) == 0.5
    with pytest.raises(InputError, match="epochs=0 leaves nothing to train"):
        triangular_rate(0, peak=0.5, epochs=0, warmup_epochs=0, start=0.1, minimum=0.0)
