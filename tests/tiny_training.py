"""A tiny program, its steps, and its masks and logits computed by hand."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from sparsemlp.configuration.program import build_program
from sparsemlp.mask_trees import select_masks
from sparsemlp.train.augment import normalize
from sparsemlp.train.evaluation import evaluation_batches
from sparsemlp.train.train_state import Program, TrainState, epoch_order
from sparsemlp.train.training import train_steps

DATA = tiny.dataset()
RATE = 0.03
KINDS = ("XPatch", "XChannel1", "XChannel2")
PATHS = [f"block_0/{kind}/kernel" for kind in KINDS]


@functools.cache
def built(**changes: Any) -> Program:
    """A program whose first epoch trains at the peak rate, high enough to change masks."""
    return build_program(tiny.settings(**({"lr": RATE, "warmup_epochs": 0} | changes)), DATA)


@functools.cache
def on_device() -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(DATA.train_images), jnp.asarray(DATA.train_labels)


def run(
    program: Program, state: TrainState, n_steps: int, *, start: int = 0, masked: bool = True
) -> tuple[TrainState, bool]:
    """Whole batches of epoch 0 from `start`; the state is used up."""
    state, healthy = train_steps(
        program,
        state,
        *on_device(),
        epoch_order(program.seed, jnp.int32(0), tiny.N_TRAIN),
        jnp.int32(start * tiny.BATCH),
        jnp.int32(n_steps),
        batch_size=tiny.BATCH,
        masked=masked,
    )
    return state, bool(healthy)


def kernel(params: Any, path: str) -> np.ndarray:
    for key in path.split("/"):
        params = params[key]
    return np.asarray(params, np.float64)


def kept_by_hand(weights: np.ndarray) -> np.ndarray:
    """The k largest blocks of a kernel `[in, out]`, bool `[in / cols, out / rows]`."""
    rows, cols = tiny.BLOCK
    n_in, n_out = weights.shape
    tiles = weights.reshape(n_in // cols, cols, n_out // rows, rows)
    squares = np.square(tiles).sum(axis=(1, 3))
    k = math.ceil(squares.size * (1 - tiny.RATIO))
    return squares >= np.sort(squares.reshape(-1))[-k]


def spread(grid: np.ndarray) -> np.ndarray:
    """A block grid as a mask of single weights, `[in, out]`."""
    rows, cols = tiny.BLOCK
    return np.kron(grid, np.ones((cols, rows))).astype(bool)


@functools.cache
def _logits(program: Program, masked: bool) -> Any:
    def compute(params: Any, images: jax.Array) -> Any:
        masks = select_masks(params, program.model.plan) if masked else {}
        inputs = normalize(images, program.mean, program.std)
        return program.model.apply({"params": params, "masks": masks}, inputs)

    return jax.jit(compute)


def all_logits(program: Program, params: Any, images: np.ndarray, *, masked: bool) -> np.ndarray:
    """The logits of images, in one batch."""
    return np.asarray(_logits(program, masked)(params, jnp.asarray(images)), np.float64)


@functools.cache
def batches() -> tuple[jax.Array, jax.Array]:
    """The test set in batches that it does not fill."""
    return evaluation_batches(DATA.test_images, DATA.test_labels, 8)
