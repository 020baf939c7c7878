"""The moving average of a model is that of its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.train.averaging import initial_average, move_average


@pytest.mark.parametrize("decay", [0.15, 0.9999])
def test_the_average_is_its_recurrence(decay):
    """Three steps in float64: a decay that is reached at the second, and one that never is."""
    rng = np.random.default_rng(0)
    values = [{"w": np.float32(rng.normal(size=(4, 3)))} for _ in range(4)]
    stats = [{"mean": np.float32(rng.normal(size=3))} for _ in range(4)]
    average = initial_average(values[0], stats[0], decay)
    expected = np.float64(values[0]["w"]), np.float64(stats[0]["mean"])
    move = jax.jit(lambda average, new, stats, t: move_average(average, new, stats, decay, t))
    for step in range(3):
        average = move(average, values[step + 1], stats[step + 1], jnp.int32(step))
        own = min(decay, (1 + step) / (10 + step))
        new = values[step + 1]["w"], stats[step + 1]["mean"]
        expected = tuple(own * a + (1 - own) * b for a, b in zip(expected, new, strict=True))
    # Four roundings a step of numbers of order 1.
    tolerance = 3 * 4 * 4 * np.finfo(np.float32).eps
    np.testing.assert_allclose(average["params"]["w"], expected[0], rtol=0, atol=tolerance)
    found = average["batch_stats"]["mean"]
    np.testing.assert_allclose(found, expected[1], rtol=0, atol=tolerance)


def test_without_a_decay_there_is_nothing_to_keep():
    average = initial_average({"w": jnp.ones(3)}, {}, 0.0)
    assert jax.tree.leaves(average) == []
    assert move_average(average, {"w": jnp.ones(3)}, {}, 0.0, jnp.int32(0)) == average


def test_what_stands_still_is_its_own_average():
    params = {"w": jnp.full(3, 0.5)}
    average = initial_average(params, {}, 0.99)
    for step in range(50):
        average = move_average(average, params, {}, 0.99, jnp.int32(step))
    np.testing.assert_allclose(average["params"]["w"], 0.5, rtol=50 * 2 * 2**-24)
