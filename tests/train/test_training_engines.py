"""An epoch of training is the same with every engine, within what rounding comes to."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native

from pallas_kernels import ENGINES, Reference
from pallas_kernels.cpu import calls, pair_calls
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import resolve
from sparsemlp.data import ImageDataset, load_dataset
from sparsemlp.train.train_state import Program, epoch_order, initial_state
from sparsemlp.train.training import train_steps

BATCH, N_COMPARED = 32, 20
# Masks that change every few steps, of layers that engine cpu computes by itself.
CONFIG = Config(
    dim=64, depth=1, expansion=4, block="16x16", ratio=0.7, lr=0.002, warmup_epochs=0, epochs=2
)
pytestmark = needs_native


class Epoch(NamedTuple):
    """What an epoch left: masks `[steps, blocks]` of all layers, mean loss, parameters."""

    masks: np.ndarray
    loss: float
    params: Any


@functools.cache
def digits() -> ImageDataset:
    return load_dataset("digits")


def program_of(engine: str) -> Program:
    settings = resolve(dataclasses.replace(CONFIG, engine=engine), "digits")
    return build_program(settings, digits())


def train(program: Program, params: Any = None) -> Epoch:
    """The first epoch, a step at a time; `params` in the place of the initial ones."""
    data = digits()
    images, labels = jnp.asarray(data.train_images), jnp.asarray(data.train_labels)
    order = epoch_order(program.seed, jnp.int32(0), len(images))
    state = initial_state(program)
    state = state if params is None else dataclasses.replace(state, params=params)
    counts = [np.concatenate([np.asarray(a) for a in state.activity.values()])]
    for start in range(0, len(images) - BATCH + 1, BATCH):
        state, healthy = train_steps(
            program,
            state,
            images,
            labels,
            order,
            jnp.int32(start),
            jnp.int32(1),
            batch_size=BATCH,
            masked=True,
        )
        assert healthy
        counts.append(np.concatenate([np.asarray(a) for a in state.activity.values()]))
    loss = float(state.totals["loss"]) / int(state.totals["images"])
    return Epoch(np.diff(counts, axis=0), loss, state.params)


def distance(a: Epoch, b: Epoch) -> float:
    """Root of the mean square difference of all parameters."""
    pairs = zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True)
    squares = [np.square(np.float64(p) - np.float64(q)).ravel() for p, q in pairs]
    return float(np.sqrt(np.concatenate(squares).mean()))


@pytest.fixture(scope="module")
def reference() -> Program:
    return program_of("reference")


@pytest.fixture(scope="module")
def expected(reference) -> Epoch:
    return train(reference)


@pytest.fixture(scope="module")
def tolerance(reference, expected) -> float:
    """How far rounding may lead, measured with the reference alone.

    Its parameters at the start are moved by one unit in the last place each, up or down, and what
    that grows to is the distance at the end. Another engine rounds its sums otherwise at every
    step; a gradient errs by a few roundings at most, and Adam passes on a share of that which is
    below one rounding of a parameter where the gradient is not near zero, but up to the learning
    rate where it is. Ten times the distance allows for both, and a wrong mask leads far beyond.
    """
    rng = np.random.default_rng(0)

    def move(a: jax.Array) -> jax.Array:
        towards = np.float32(rng.choice([-np.inf, np.inf], a.shape))
        return jnp.asarray(np.nextafter(np.asarray(a), towards))

    moved = train(reference, jax.tree.map(move, initial_state(reference).params))
    return 10 * distance(moved, expected)


def assert_together(found: Epoch, expected: Epoch, tolerance: float) -> None:
    """Raises AssertionError unless two epochs are the same within rounding."""
    differ = np.flatnonzero((found.masks != expected.masks)[:N_COMPARED].any(axis=1))
    assert differ.size == 0, f"the masks differ at step {differ[0]}"
    apart = distance(found, expected)
    assert apart <= tolerance, f"parameters are {apart:.2g} apart, tolerance {tolerance:.2g}"
    # A loss near ln 10 moves by its gradient, at most of the order of one, times the parameters'
    # way of `tolerance` each; summed over the epoch in float32.
    n_parameters = sum(p.size for p in jax.tree.leaves(expected.params))
    rounding = float(np.finfo(np.float32).eps) * len(expected.masks)
    assert found.loss == pytest.approx(
        expected.loss, abs=tolerance * np.sqrt(n_parameters), rel=rounding
    )


def test_the_masks_of_the_epoch_change(expected):
    """Otherwise that they are the same would say little."""
    assert len(expected.masks) == 44
    changed = (np.diff(expected.masks[:N_COMPARED], axis=0) != 0).any(axis=1)
    assert changed.sum() >= 3
    # XPatch has 4x4 blocks, XChannel1 4x16 and XChannel2 16x4; k = ceil(0.3 n).
    assert np.all(expected.masks.sum(axis=1) == 5 + 20 + 20)


def test_native_training_stays_with_the_reference(expected, tolerance, monkeypatch):
    traced = []
    of_one, of_two = ("multiply", "gradient"), ("mlp", "mlp_gradients")
    for module, name in [(calls, n) for n in of_one] + [(pair_calls, n) for n in of_two]:
        kernel = getattr(module, name)

        def counted(*arguments: Any, kernel: Any = kernel, name: str = name, **options: Any) -> Any:
            traced.append(name)
            return kernel(*arguments, **options)

        monkeypatch.setattr(module, name, counted)
    found = train(program_of("cpu"))
    assert set(traced) == {*of_one, *of_two}
    assert_together(found, expected, tolerance)


class TakesAnotherBlock(Reference):
    """Multiplies with the block after the last kept one instead, if there is one."""

    def product(self, x, kernel, bias, kept, layer):
        rows, cols = layer.block
        n_blocks = layer.kernel_shape[0] // cols * (layer.kernel_shape[1] // rows)
        kept = kept.at[-1].set(jnp.minimum(kept[-1] + 1, n_blocks - 1))
        return super().product(x, kernel, bias, kept, layer)


def test_training_with_a_wrong_mask_does_not_pass(expected, tolerance, monkeypatch):
    monkeypatch.setitem(ENGINES, "wrong", TakesAnotherBlock())
    found = train(program_of("wrong"))
    assert distance(found, expected) > 10 * tolerance
    with pytest.raises(AssertionError):
        assert_together(found, expected, tolerance)
    # The parameters tell even where the masks do not.
    with pytest.raises(AssertionError, match="parameters are"):
        assert_together(found._replace(masks=expected.masks), expected, tolerance)
