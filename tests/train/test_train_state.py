"""Randomness is a function of seed, use and place, and a run starts from one state."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from sparsemlp.checkpoints.manifest import named_leaves
from sparsemlp.configuration.program import build_program
from sparsemlp.train.train_state import epoch_order, initial_state, no_totals, stream_key


def order(seed: int, epoch: int, n_images: int = 100) -> np.ndarray:
    return np.asarray(epoch_order(seed, jnp.int32(epoch), n_images))


@pytest.mark.parametrize("n_images", [1, 2, 44, 1437])
def test_an_epoch_shows_every_image_once(n_images):
    found = order(0, 0, n_images)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(np.sort(found), np.arange(n_images))


def test_the_order_is_a_function_of_seed_and_epoch_and_differs_between_them():
    places = list(itertools.product(range(3), range(4)))
    orders = {place: order(*place).tobytes() for place in places}
    assert len(set(orders.values())) == len(places)
    for place in reversed(places):
        assert order(*place).tobytes() == orders[place]


def test_no_key_serves_two_purposes():
    drawn = {
        tuple(np.asarray(jax.random.key_data(stream_key(seed, stream, index))).tolist())
        for seed in (0, 1, 2**32 - 1)
        for stream in ("init", "order", "step", "gradient")
        for index in (0, 1, 2, 78_200)
    }
    assert len(drawn) == 3 * 4 * 4


def test_a_run_starts_from_the_seed_alone_whatever_is_masked():
    data = tiny.dataset()
    states = {
        (seed, ratio): initial_state(build_program(tiny.settings(seed=seed, ratio=ratio), data))
        for seed, ratio in ((0, 0.5), (0, 0.0), (1, 0.5))
    }
    tiny.assert_same_bits(states[0, 0.5].params, states[0, 0.0].params)
    one, other = states[0, 0.5].params["embed"]["kernel"], states[1, 0.5].params["embed"]["kernel"]
    assert not np.any(np.asarray(one) == np.asarray(other))


def test_nothing_is_done_or_dropped_before_the_first_step():
    state = initial_state(build_program(tiny.settings(), tiny.dataset()))
    # Blocks of 2 outputs x 4 inputs on [in, out] kernels of 4x4, 8x16 and 16x8.
    n_blocks = {
        "block_0/XPatch/kernel": 1 * 2,
        "block_0/XChannel1/kernel": 2 * 8,
        "block_0/XChannel2/kernel": 4 * 4,
    }
    assert {path: kept.shape for path, kept in state.last_kept.items()} == {
        path: (n,) for path, n in n_blocks.items()
    }
    assert state.activity.keys() == n_blocks.keys()
    assert all(np.asarray(kept).all() for kept in state.last_kept.values())
    assert not any(
        np.asarray(leaf).any()
        for leaf in jax.tree.leaves((state.step, state.optimizer, state.totals, state.activity))
    )
    tiny.assert_same_bits(state.totals, no_totals())


def test_an_average_is_in_the_state_only_of_a_run_that_asked_for_it():
    """Checkpoints name leaves: one of a run without an average is what it was before there were."""
    shapes = {
        ema: jax.eval_shape(
            lambda ema=ema: initial_state(build_program(tiny.settings(ema=ema), tiny.dataset()))
        )
        for ema in (0.0, 0.9)
    }
    without, with_it = named_leaves(shapes[0.0]), named_leaves(shapes[0.9])
    added = {name: leaf for name, leaf in with_it.items() if name not in without}
    assert set(without) <= set(with_it)
    assert {name.removeprefix("average/") for name in added} == {
        name for name in without if name.startswith("params/")
    }
    for name, leaf in added.items():
        own = without[name.removeprefix("average/")]
        assert (leaf.shape, leaf.dtype) == (own.shape, own.dtype)


def test_what_is_evaluated_is_the_average_where_there_is_one():
    program = build_program(tiny.settings(ema=0.9), tiny.dataset())
    state = initial_state(program)
    assert state.evaluated == (state.average["params"], state.average["batch_stats"])
    state = initial_state(build_program(tiny.settings(), tiny.dataset()))
    assert state.evaluated == (state.params, state.batch_stats)
