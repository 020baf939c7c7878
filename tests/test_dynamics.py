"""Masks that move: what each option does to masks, gradients and moments, and what it leaves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_kernel import PATH, PLAN, parameters, with_norms

from sparsemlp.dynamics import (
    Dynamics,
    initial_memory,
    remember_gradients,
    remember_unmasked,
    select_dynamic_masks,
)
from sparsemlp.errors import InputError
from sparsemlp.mask_trees import flatten_masks, select_masks
from sparsemlp.plan import Plan
from sparsemlp.rules import BlockMasking
from sparsemlp.selection import l2

BY_GRADIENT: Plan = {"*/kernel": BlockMasking((2, 4), 0.5, "straight_through", "gradient")}


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


def test_hysteresis_favours_kept_blocks_of_scores_below_zero_too():
    def below_zero(blocks):
        return l2(blocks) - 10

    plan: Plan = {"*/kernel": BlockMasking((2, 4), 0.5, score=below_zero)}
    dynamics = Dynamics(hysteresis=0.1)

    def choose(norms, memory):
        return select_dynamic_masks(with_norms(norms), plan, dynamics, memory, frozen=False)

    _, memory = choose([1, 1, 1, 1, 2, 2, 2, 2], initial_memory(parameters(), plan, dynamics))
    # A kept block counts as -8 + 0.8: -7.9 does not displace it, -7.1 does.
    assert kept(choose([2.1, 1, 1, 1, 2, 2, 2, 2], memory)[0]) == [4, 5, 6, 7]
    assert kept(choose([2.9, 1, 1, 1, 2, 2, 2, 2], memory)[0]) == [0, 4, 5, 6]


def test_a_frozen_mask_is_the_one_remembered_whatever_the_weights():
    dynamics = Dynamics(freezes=True)
    masks, memory = select(
        with_norms([3, 1, 3, 1, 3, 1, 3, 1]), initial_memory(parameters(), PLAN, dynamics), dynamics
    )
    assert kept(masks) == [0, 2, 4, 6]
    frozen, after = select(with_norms([1, 3, 1, 3, 1, 3, 1, 3]), memory, dynamics, frozen=True)
    assert kept(frozen) == [0, 2, 4, 6]
    np.testing.assert_array_equal(after["kept"][PATH], memory["kept"][PATH])


def test_frozen_masks_that_nobody_remembered_are_refused():
    with pytest.raises(InputError, match=r"this memory has none: make it with Dynamics\(freezes"):
        select(parameters(), {}, Dynamics(), frozen=True)


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


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_a_score_that_is_no_number_is_forgotten_with_its_step(decay):
    params, infinite = parameters(), with_norms([1.0] * 7 + [float("inf")])
    dynamics = Dynamics(score_decay=decay)
    memory = initial_memory(params, BY_GRADIENT, dynamics)
    for gradients in (infinite, params):
        memory = remember_gradients(params, gradients, BY_GRADIENT, dynamics, memory)
    expected = initial_memory(params, BY_GRADIENT, Dynamics())
    expected = remember_gradients(params, params, BY_GRADIENT, Dynamics(), expected)
    scores, alone = (np.asarray(m["scores"][PATH]) for m in (memory, expected))
    assert np.all(np.isfinite(scores))
    assert scores[-1] == alone[-1]
    assert np.array_equal(scores, alone) == (decay == 0)


def test_the_first_gradients_are_the_mean_of_scores_so_far():
    """Norms, which rank the blocks before, are of another size."""
    dynamics = Dynamics(score_decay=0.99)
    memory = initial_memory(parameters(), BY_GRADIENT, dynamics)
    alone = initial_memory(parameters(), BY_GRADIENT, Dynamics())
    params, steps = parameters(), [parameters(), with_norms([1, 2, 3, 4, 5, 6, 7, 8])]
    first, second = (
        remember_gradients(params, gradients, BY_GRADIENT, Dynamics(), alone)["scores"][PATH]
        for gradients in steps
    )
    for gradients in steps:
        memory = remember_gradients(params, gradients, BY_GRADIENT, dynamics, memory)
    wanted = 0.99 * np.asarray(first) + 0.01 * np.asarray(second)
    np.testing.assert_allclose(memory["scores"][PATH], wanted, rtol=1e-5)


def test_before_any_gradient_is_known_norms_rank_the_blocks():
    params = with_norms([1, 5, 2, 6, 3, 7, 4, 8])
    for hysteresis in (0.0, 0.5, 1.0, 3.0):
        dynamics = Dynamics(hysteresis=hysteresis)
        memory = initial_memory(params, BY_GRADIENT, dynamics)
        assert kept(select(params, memory, dynamics, by_gradient=True)[0]) == [1, 3, 5, 7]
    with pytest.raises(InputError, match="only a training step knows: select_dynamic_masks"):
        select_masks(params, BY_GRADIENT)


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


def test_a_memory_that_lacks_what_the_options_need_is_refused():
    params = parameters()
    for options, words in (
        (Dynamics(hysteresis=0.1), "hysteresis favours the blocks"),
        (Dynamics(moments="reset"), "moments are reset"),
        (Dynamics(score_decay=0.9), "score decay goes on"),
    ):
        with pytest.raises(InputError, match=f"{words} .*initial_memory"):
            select_dynamic_masks(params, PLAN, options, {}, frozen=False)
    with pytest.raises(InputError, match="ranked by gradients, and this memory has no scores"):
        select_dynamic_masks(params, BY_GRADIENT, Dynamics(), {}, frozen=False)
