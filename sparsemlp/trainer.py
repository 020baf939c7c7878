"""Runs the compiled programs of a run on its data, a chunk of an epoch at a time."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsemlp.data import ImageDataset
from sparsemlp.train_state import Program, TrainState, epoch_order
from sparsemlp.training import Evaluation, evaluate, evaluation_batches, train_steps

_EVALUATION_BATCH = 1000


class Trainer:
    """The compiled programs, and the data on the device.

    Each program is compiled when it is first needed: once for whole batches and once for the
    partial last batch of an epoch, dense and masked.

    Attributes:
      steps_per_epoch: steps in an epoch, the partial last batch included.
      seconds: time spent in the training programs since it was last set to 0, without compiling.

    Args:
      program: what to train and how.
      dataset: what to train on.
      batch_size: images in a step, at most those of the data set.
    """

    def __init__(self, program: Program, dataset: ImageDataset, batch_size: int) -> None:
        self._program = program
        self._images = jnp.asarray(dataset.train_images)
        self._labels = jnp.asarray(dataset.train_labels)
        self._test = evaluation_batches(
            dataset.test_images,
            dataset.test_labels,
            min(_EVALUATION_BATCH, len(dataset.test_labels)),
        )
        self._batch_size = batch_size
        self._n_whole, self._rest = divmod(len(dataset.train_labels), batch_size)
        self._compiled: dict[tuple[int, bool], Any] = {}
        self._order: tuple[int, jax.Array] | None = None
        self._seconds_per_step = 0.0
        self.steps_per_epoch = self._n_whole + bool(self._rest)
        self.seconds = 0.0

    def is_compiled(self, position: int, *, masked: bool) -> bool:
        """Whether the program for the batch at `position` of an epoch is compiled already."""
        return (self._size(position), masked) in self._compiled

    def train(
        self, state: TrainState, epoch: int, position: int, *, seconds: float, masked: bool
    ) -> tuple[TrainState, int, Any]:
        """Trains for about so long, at least a step, at most to the end of the epoch.

        Args:
          state: the state, donated.
          epoch: the epoch, from 0.
          position: steps of this epoch that are done.
          seconds: how long to train, in seconds.
          masked: whether weights are masked.

        Returns:
          The state, the steps made, and whether loss and parameters are all finite.
        """
        size = self._size(position)
        left = self._n_whole - position if size == self._batch_size else 1
        wanted = int(seconds / self._seconds_per_step) if self._seconds_per_step else 1
        n_steps = max(1, min(wanted, left))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self._order_of(jnp.int32(epoch), len(self._labels))
        start, count = jnp.int32(position * self._batch_size), jnp.int32(n_steps)
        arguments = (state, self._images, self._labels, self._order[1], start, count)
        program = self._compiled.get((size, masked))
        if program is None:
            program = self._lower(arguments, size, masked).compile()
            self._compiled[size, masked] = program
        began = time.perf_counter()
        state, healthy = self._call(program, arguments)
        healthy = np.asarray(healthy).tolist()
        took = time.perf_counter() - began
        self.seconds += took
        if size == self._batch_size:
            self._seconds_per_step = took / n_steps
        return state, n_steps, healthy

    def evaluate(self, state: TrainState, *, masked: bool) -> Evaluation:
        """Evaluates the parameters of a state on the whole test set."""
        return evaluate(self._program, state.params, state.batch_stats, *self._test, masked=masked)

    def _order_of(self, epoch: jax.Array, n_images: int) -> jax.Array:
        return epoch_order(self._program.seed, epoch, n_images)

    def _lower(self, arguments: tuple, batch_size: int, masked: bool) -> jax.stages.Lowered:
        """The training program for these arguments, ready to be compiled."""
        return train_steps.lower(self._program, *arguments, batch_size=batch_size, masked=masked)

    def _call(self, program: Any, arguments: tuple) -> Any:
        return program(*arguments)

    def _size(self, position: int) -> int:
        return self._batch_size if position < self._n_whole else self._rest
