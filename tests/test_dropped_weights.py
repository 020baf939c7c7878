"""SR-STE's decay of dropped weights, and moments of blocks that return."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from one_kernel import PATH, PLAN, parameters, with_norms

from sparsemlp.dropped_weights import decay_dropped, reset_returned
from sparsemlp.mask_trees import flatten_masks, select_masks
from sparsemlp.train.optimizer import adam_with_l2

select = jax.jit(functools.partial(select_masks, plan=PLAN))


def moments_of(state: Any, name: str) -> Any:
    return optax.tree_utils.tree_get(state, name)


def test_the_decay_of_dropped_weights_touches_nothing_else():
    params, gradients = parameters(0), parameters(1)
    masks = select(params)
    mask = np.asarray(flatten_masks(masks)[PATH].dense())
    decayed = decay_dropped(gradients, params, masks, 0.5)
    before, weight = (np.asarray(tree["layer"]["kernel"]) for tree in (gradients, params))
    found = np.asarray(decayed["layer"]["kernel"])
    np.testing.assert_array_equal(found[mask], before[mask])
    np.testing.assert_array_equal(found[~mask], (before + np.float32(0.5) * weight)[~mask])
    np.testing.assert_array_equal(decayed["layer"]["bias"], gradients["layer"]["bias"])


def test_the_factor_of_the_decay_may_be_data():
    gradients, params = parameters(1), parameters()
    masks = select(params)
    found = jax.jit(decay_dropped)(gradients, params, masks, jnp.float32(0.5))
    for one, another in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(decay_dropped(gradients, params, masks, 0.5)),
        strict=True,
    ):
        np.testing.assert_allclose(one, another, rtol=1e-6)


def test_without_decay_gradients_stay_as_they_are():
    gradients = parameters(1)
    assert decay_dropped(gradients, parameters(), select(parameters()), 0.0) is gradients


def test_only_the_moments_of_returned_blocks_are_reset():
    optimizer = adam_with_l2(lambda step: 0.1, weight_decay=1e-4)
    params = parameters()
    state = optimizer.init(params)
    for seed in range(3):
        _, state = optimizer.update(parameters(seed), state, params)
    kept_before = {PATH: jnp.array([True, False] * 4)}
    masks = select(with_norms([2, 2, 2, 2, 1, 1, 1, 1]))
    found = reset_returned(optimizer, state, params, masks, kept_before)
    returned = np.zeros((8, 8), bool)
    returned[:4, 2:4] = returned[:4, 6:8] = True
    for moment in ("mu", "nu"):
        before = np.asarray(moments_of(state, moment)["layer"]["kernel"])
        after = np.asarray(moments_of(found, moment)["layer"]["kernel"])
        assert np.all(before != 0)
        np.testing.assert_array_equal(after, np.where(returned, 0, before))
        np.testing.assert_array_equal(
            moments_of(found, moment)["layer"]["bias"],
            moments_of(state, moment)["layer"]["bias"],
        )
    counts = cast(Any, optax.tree_utils.tree_get_all_with_path(found, "count"))
    assert [int(count) for _, count in counts] == [3, 3]


def test_the_first_update_after_a_reset_is_as_large_as_documented():
    optimizer = adam_with_l2(lambda step: 1.0, weight_decay=0.0)
    params = with_norms([1] * 8)
    state = optimizer.init(params)
    zero = jax.tree.map(jnp.zeros_like, params)
    state = optax.tree_utils.tree_set(state, count=jnp.int32(100_000))
    updates: Any = optimizer.update(jax.tree.map(lambda z: z + 0.01, zero), state, params)[0]
    step = -np.asarray(updates["layer"]["kernel"])
    np.testing.assert_allclose(step, 0.1 / np.sqrt(0.001), rtol=1e-3)


def test_a_moment_that_is_not_finite_is_reset_to_zero_as_well():
    optimizer = adam_with_l2(lambda step: 0.1, weight_decay=0.0)
    params = parameters()
    state = jax.tree.map(
        lambda a: jnp.full_like(a, jnp.inf) if a.ndim == 2 else a, optimizer.init(params)
    )
    kept_before = {PATH: jnp.zeros(8, bool)}
    masks = select(with_norms([2, 2, 2, 2, 1, 1, 1, 1]))
    found = moments_of(reset_returned(optimizer, state, params, masks, kept_before), "nu")
    kernel = np.asarray(found["layer"]["kernel"])
    assert np.all(kernel[:4] == 0)
    assert np.all(np.isinf(kernel[4:]))


@pytest.mark.parametrize(
    ("optimizer", "is_reset"),
    [
        (optax.masked(optax.adam(0.1), {"layer": {"kernel": True, "bias": False}}), True),
        (optax.masked(optax.adam(0.1), {"layer": {"kernel": False, "bias": True}}), False),
        (optax.adafactor(0.1, min_dim_size_to_factor=4), False),
    ],
    ids=["kernels alone", "biases alone", "factored"],
)
def test_what_has_no_moment_of_its_own_stays_as_it_is(optimizer, is_reset):
    params = parameters()
    _, state = optimizer.update(parameters(1), optimizer.init(params), params)
    kept_before = {PATH: jnp.array([True, False] * 4)}
    masks = select(with_norms([2, 2, 2, 2, 1, 1, 1, 1]))
    found = reset_returned(optimizer, state, params, masks, kept_before)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, state)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), found, state)
    assert any(jax.tree.leaves(changed)) == is_reset
