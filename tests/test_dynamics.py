"""Masks that move: what each option does to masks, gradients and moments, and what it leaves."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsemlp.dynamics import (
    Dynamics,
    decay_dropped,
    initial_memory,
    remember_gradients,
    remember_unmasked,
    reset_returned,
    select_dynamic_masks,
)
from sparsemlp.errors import InputError
from sparsemlp.mask_trees import flatten_masks, select_masks
from sparsemlp.optimizer import adam_with_l2
from sparsemlp.plan import Plan
from sparsemlp.rules import BlockMasking

PATH = "layer/kernel"
PLAN: Plan = {"*/kernel": BlockMasking((2, 4), 0.5)}
BY_GRADIENT: Plan = {"*/kernel": BlockMasking((2, 4), 0.5, "straight_through", "gradient")}


def parameters(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kernel, bias = rng.normal(size=(8, 8)), rng.normal(size=8)
    return {"layer": {"kernel": jnp.float32(kernel), "bias": jnp.float32(bias)}}


def with_norms(norms: list[float]) -> dict[str, Any]:
    """Parameters whose 8 blocks of `(2, 4)` have these Frobenius norms, by flat id."""
    tiles = np.array(norms).reshape(2, 4)[:, None, :, None] / np.sqrt(8)
    kernel = np.broadcast_to(tiles, (2, 4, 4, 2)).reshape(8, 8)
    return {"layer": {"kernel": jnp.float32(kernel), "bias": jnp.zeros(8)}}


def moments_of(state: Any, name: str) -> Any:
    return optax.tree_utils.tree_get(state, name)


def kept(masks: Any) -> list[int]:
    return np.asarray(flatten_masks(masks)[PATH].kept).tolist()


@functools.partial(jax.jit, static_argnames=("dynamics", "frozen", "by_gradient"))
def select(params, memory, dynamics: Dynamics, frozen: bool = False, by_gradient: bool = False):
    plan = BY_GRADIENT if by_gradient else PLAN
    return select_dynamic_masks(params, plan, dynamics, memory, frozen=frozen)


def test_without_options_nothing_is_remembered_and_masks_are_the_largest_blocks():
    params = parameters()
    assert initial_memory(params, PLAN, Dynamics()) == {}
    masks, memory = select(params, {}, Dynamics())
    assert memory == {}
    assert kept(masks) == kept(select_masks(params, PLAN))
    assert remember_unmasked(params, PLAN, Dynamics(), {}) == {}
    assert remember_gradients(params, params, PLAN, Dynamics(), {}) == {}
    assert decay_dropped(params, params, masks, 0.0) is params


def test_the_exponential_mean_follows_its_recursion_through_dense_and_masked_steps():
    dynamics = Dynamics(score_decay=0.75)
    steps = [[1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1], [9, 1, 9, 1, 9, 1, 9, 1]]
    memory = initial_memory(with_norms([4] * 8), PLAN, dynamics)
    expected = np.full(8, 4.0)
    for index, norms in enumerate(steps):
        params = with_norms(list(map(float, norms)))
        expected = 0.75 * expected + 0.25 * np.array(norms)
        if index == 0:
            memory = remember_unmasked(params, PLAN, dynamics, memory)
        else:
            masks, memory = select(params, memory, dynamics)
            order = np.sort(np.argsort(-expected, kind="stable")[:4])
            assert kept(masks) == order.tolist()
        np.testing.assert_allclose(memory["scores"][PATH], expected, rtol=1e-5)


def test_hysteresis_lets_a_block_return_only_past_its_margin():
    dynamics = Dynamics(hysteresis=0.1)
    _, memory = select(
        with_norms([1, 1, 1, 1, 2, 2, 2, 2]), initial_memory(parameters(), PLAN, dynamics), dynamics
    )
    assert np.asarray(memory["kept"][PATH]).tolist() == [False] * 4 + [True] * 4
    flicker = with_norms([2.1, 1, 1, 1, 2, 2, 2, 2])
    assert kept(select_masks(flicker, PLAN)) == [0, 4, 5, 6]
    assert kept(select(flicker, memory, dynamics)[0]) == [4, 5, 6, 7]
    better = with_norms([2.3, 1, 1, 1, 2, 2, 2, 2])
    assert kept(select(better, memory, dynamics)[0]) == [0, 4, 5, 6]


def test_a_frozen_mask_is_the_one_remembered_whatever_the_weights():
    dynamics = Dynamics(freezes=True)
    masks, memory = select(
        with_norms([3, 1, 3, 1, 3, 1, 3, 1]), initial_memory(parameters(), PLAN, dynamics), dynamics
    )
    assert kept(masks) == [0, 2, 4, 6]
    frozen, after = select(with_norms([1, 3, 1, 3, 1, 3, 1, 3]), memory, dynamics, frozen=True)
    assert kept(frozen) == [0, 2, 4, 6]
    np.testing.assert_array_equal(after["kept"][PATH], memory["kept"][PATH])


def test_gradient_scores_are_the_first_order_change_of_the_loss():
    """Against the change itself, of a loss that is linear in the weights."""
    params = parameters()
    slope = jnp.float32(np.random.default_rng(1).normal(size=(8, 8)))

    def loss(params: Any) -> jax.Array:
        return jnp.sum(slope * params["layer"]["kernel"])

    gradients = jax.grad(loss)(params)
    memory = initial_memory(params, BY_GRADIENT, Dynamics())
    memory = remember_gradients(params, gradients, BY_GRADIENT, Dynamics(), memory)
    for block in range(8):
        down, across = divmod(block, 4)
        kernel = np.array(params["layer"]["kernel"])
        kernel[4 * down : 4 * down + 4, 2 * across : 2 * across + 2] = 0
        change = abs(float(loss({"layer": {"kernel": jnp.asarray(kernel)}}) - loss(params)))
        # Sums of 64 products of order 1 in float32.
        assert abs(float(memory["scores"][PATH][block]) - change) < 64 * 64 * np.finfo("f4").eps
    masks, _ = select(params, memory, Dynamics(), by_gradient=True)
    largest = np.sort(np.argsort(-np.asarray(memory["scores"][PATH]))[:4])
    assert kept(masks) == largest.tolist()


def test_before_any_gradient_is_known_norms_stand_in():
    params = with_norms([1, 5, 2, 6, 3, 7, 4, 8])
    memory = initial_memory(params, BY_GRADIENT, Dynamics())
    assert kept(select(params, memory, Dynamics(), by_gradient=True)[0]) == [1, 3, 5, 7]
    with pytest.raises(InputError, match="only a training step knows: select_dynamic_masks"):
        select_masks(params, BY_GRADIENT)


def test_the_decay_of_dropped_weights_touches_nothing_else():
    params, gradients = parameters(0), parameters(1)
    masks, _ = select(params, {}, Dynamics())
    mask = np.asarray(flatten_masks(masks)[PATH].dense())
    decayed = decay_dropped(gradients, params, masks, 0.5)
    before, weight = (np.asarray(tree["layer"]["kernel"]) for tree in (gradients, params))
    found = np.asarray(decayed["layer"]["kernel"])
    np.testing.assert_array_equal(found[mask], before[mask])
    np.testing.assert_array_equal(found[~mask], (before + np.float32(0.5) * weight)[~mask])
    np.testing.assert_array_equal(decayed["layer"]["bias"], gradients["layer"]["bias"])


def test_only_the_moments_of_returned_blocks_are_reset():
    optimizer = adam_with_l2(lambda step: 0.1, weight_decay=1e-4)
    params = parameters()
    state = optimizer.init(params)
    for seed in range(3):
        _, state = optimizer.update(parameters(seed), state, params)
    kept_before = {PATH: jnp.array([True, False] * 4)}
    masks, _ = select(with_norms([2, 2, 2, 2, 1, 1, 1, 1]), {}, Dynamics())
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score_decay": 1.0}, r"score decay 1.0 is outside \[0, 1\)"),
        ({"hysteresis": -0.1}, "hysteresis -0.1 must be a finite number, at least 0"),
        ({"dropped_decay": float("inf")}, "dropped decay inf must be a finite number"),
        ({"moments": "halve"}, "moments 'halve' is unknown: choose one of keep, reset"),
    ],
)
def test_values_out_of_range_are_refused(options, message, unchecked):
    with pytest.raises(InputError, match=message):
        Dynamics(**options)
