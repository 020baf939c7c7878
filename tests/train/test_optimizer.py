"""Adam and SGD against the formulas, computed by hand in float64."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsemlp.errors import InputError
from sparsemlp.train.learning_rates import by_epoch, by_step, learning_rate, triangular_rate
from sparsemlp.train.optimizer import adam_with_l2, adamw, decayed, sgd_with_l2

EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("is_decoupled", [False, True], ids=["adam_with_l2", "adamw"])
def test_several_steps_equal_adam_by_hand(is_decoupled):
    rng = np.random.default_rng(0)
    steps, steps_per_epoch, weight_decay = 5, 2, 0.1
    schedule = {"peak": 0.1, "epochs": 3, "warmup_epochs": 1, "start": 0.02, "minimum": 0.001}
    rates = [0.02, *(0.001 + 0.099 * (1 + math.cos(math.pi * e / 3)) / 2 for e in (1, 2))]
    values = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}
    gradients = [{n: rng.normal(size=v.shape) for n, v in values.items()} for _ in range(steps)]

    params = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
    rate = by_epoch(functools.partial(learning_rate, **schedule), steps_per_epoch)
    optimizer = (adamw if is_decoupled else adam_with_l2)(rate, weight_decay=weight_decay)

    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("strict"):
        state = optimizer.init(params)
        moments = {name: (np.zeros(v.shape), np.zeros(v.shape)) for name, v in values.items()}
        for i, gradient in enumerate(gradients):
            rounded = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), gradient)
            params, state = step(params, state, rounded)
            for name, value in values.items():
                decay = (weight_decay if name == "kernel" else 0.0) * value
                g = gradient[name] + (0.0 if is_decoupled else decay)
                m, v = moments[name]
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                moments[name] = m, v
                corrected = m / (1 - 0.9 ** (i + 1)), v / (1 - 0.999 ** (i + 1))
                rate = rates[i // steps_per_epoch]
                update = corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
                values[name] = value - rate * (update + (decay if is_decoupled else 0.0))
            # 1 - 0.999 ** t loses about 1 / 0.001 units in the last place at the first step.
            for name, value in values.items():
                np.testing.assert_allclose(params[name], value, atol=1000 * EPS * rates[1])


def test_a_dropped_weight_still_moves_by_about_the_learning_rate():
    params = {"kernel": jnp.full((2, 2), 0.5)}
    optimizer = adam_with_l2(lambda step: jnp.float32(0.01), weight_decay=1e-4)
    updates, _ = optimizer.update({"kernel": jnp.zeros((2, 2))}, optimizer.init(params), params)
    (update,) = jax.tree.leaves(updates)
    np.testing.assert_allclose(update, np.full((2, 2), -0.01), rtol=1e-3)


def test_l2_spares_biases_and_other_vectors():
    params = {
        "head": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)},
        "scale1": {"scale": jnp.ones(4)},
    }
    assert decayed(params) == {
        "head": {"kernel": True, "bias": False},
        "scale1": {"scale": False},
    }


@pytest.mark.parametrize("make", [adam_with_l2, adamw, sgd_with_l2])
@pytest.mark.parametrize(
    ("weight_decay", "message"),
    [
        (-0.1, "weight_decay=-0.1 would not shrink weights"),
        (math.inf, "weight_decay=inf would not shrink weights"),
    ],
)
def test_optimizers_refuse(make, weight_decay, message):
    with pytest.raises(InputError, match=message):
        make(lambda step: jnp.float32(0.01), weight_decay=weight_decay)


def test_several_steps_equal_sgd_with_momentum_and_l2_by_hand():
    rng = np.random.default_rng(1)
    values = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}
    params: Any = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
    triangle = functools.partial(
        triangular_rate, peak=0.5, epochs=4, warmup_epochs=1, start=0.1, minimum=0.0
    )
    optimizer = sgd_with_l2(by_step(triangle, 2), weight_decay=0.1)
    state = optimizer.init(params)
    moved = {name: np.zeros(value.shape) for name, value in values.items()}
    rates = [0.1, 0.3, 0.5, 0.5 - 0.5 / 6, 0.5 - 1 / 6]
    for rate in rates:
        gradient = {name: rng.normal(size=value.shape) for name, value in values.items()}
        rounded = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), gradient)
        with jax.numpy_dtype_promotion("strict"):
            updates, state = jax.jit(optimizer.update)(rounded, state, params)
        params = optax.apply_updates(params, updates)
        for name, value in values.items():
            decay = 0.1 if name == "kernel" else 0.0
            moved[name] = 0.9 * moved[name] + gradient[name] + decay * value
            values[name] = value - rate * moved[name]
    for name, value in values.items():
        np.testing.assert_allclose(params[name], value, atol=100 * EPS)
