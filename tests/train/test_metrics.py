"""Top-k against a stable sort, and where a count must not be flattered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.errors import InputError
from sparsemlp.train.metrics import top_k_correct

CLASSES = 6
top_k = jax.jit(top_k_correct, static_argnames="k")


@pytest.mark.parametrize("k", [1, 2, 5, CLASSES])
def test_equals_membership_in_a_stable_descending_sort(k):
    rng = np.random.default_rng(k)
    logits = rng.integers(-2, 3, size=(200, CLASSES)).astype(np.float32)
    labels = rng.integers(0, CLASSES, size=200).astype(np.int32)
    best = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    expected = (best == labels[:, None]).any(axis=1)
    with jax.numpy_dtype_promotion("strict"):
        correct = top_k(jnp.asarray(logits), jnp.asarray(labels), k=k)
    np.testing.assert_array_equal(correct, expected)


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf])
def test_constant_logits_score_the_chance_level(value):
    logits = jnp.full((CLASSES, CLASSES), value, jnp.float32)
    labels = jnp.arange(CLASSES, dtype=jnp.int32)
    assert int(top_k(logits, labels, k=2).sum()) == 2


def test_a_row_with_a_nan_is_never_correct():
    logits = jnp.array([[0.0, 9.0, jnp.nan], [jnp.nan, 0.0, 1.0], [0.0, 9.0, 1.0]])
    labels = jnp.array([1, 0, 1], jnp.int32)
    for k in (1, 3, 5):
        np.testing.assert_array_equal(top_k(logits, labels, k=k), [False, False, True])


def test_more_guesses_than_classes_are_always_correct():
    logits = jax.random.normal(jax.random.key(0), (4, CLASSES))
    assert bool(top_k(logits, jnp.array([0, 5, 2, 3], jnp.int32), k=100).all())


def test_a_label_outside_the_classes_is_never_correct():
    logits = jnp.zeros((2, CLASSES))
    assert not bool(top_k(logits, jnp.array([-1, CLASSES], jnp.int32), k=CLASSES).any())


def test_bfloat16_logits_are_accepted():
    logits = jnp.array([[0.0, 1.0]], jnp.bfloat16)
    assert bool(top_k(logits, jnp.array([1], jnp.int32), k=1)[0])


def test_zero_guesses_are_refused():
    with pytest.raises(InputError, match="k=0 guesses cannot be right: choose k >= 1"):
        top_k_correct(jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32), 0)
