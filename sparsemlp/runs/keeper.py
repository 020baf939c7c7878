"""When a run saves its state."""

import time

import jax
import jax.numpy as jnp

from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.files import Record
from sparsemlp.train.train_state import TrainState


class Keeper:
    """Decides when to save: at most every so many seconds, and at the end.

    The best epoch between two saves waits in memory for the next one.
    """

    def __init__(self, checkpoints: Checkpoints, every_seconds: float) -> None:
        self._checkpoints = checkpoints
        self._every_seconds = every_seconds
        self._last = time.monotonic()
        self._waiting: tuple[int, TrainState, Record, float] | None = None

    def offer(
        self,
        step: int,
        state: TrainState,
        metadata: Record,
        score: float | None,
        *,
        now: bool,
    ) -> None:
        """Saves this state if it is time; remembers it if it is the best so far."""
        if not now and time.monotonic() - self._last < self._every_seconds:
            if score is not None:
                self._waiting = step, jax.tree.map(jnp.copy, state), metadata, score
            return
        if score is None:
            self.save_waiting()
        self._waiting = None
        self._checkpoints.save(step, state, metadata, score)
        self._last = time.monotonic()

    def save_waiting(self) -> None:
        """Saves the best epoch since the last save, if there is one."""
        if self._waiting is not None:
            self._checkpoints.save(*self._waiting)
            self._waiting = None
