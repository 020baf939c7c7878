"""Runs the compiled programs of a run on its data, a chunk of an epoch at a time."""

import abc
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from sparsemlp.data import ImageDataset
from sparsemlp.distributed.parallel import replicate
from sparsemlp.distributed.processes import agree, count, wait_for_all
from sparsemlp.schedule import Phase
from sparsemlp.train.evaluation import Evaluation, evaluate, evaluation_batches
from sparsemlp.train.train_state import Program, TrainState, epoch_order
from sparsemlp.train.training import train_steps

_EVALUATION_BATCH = 1000


class PhasedTrainer(contextlib.AbstractContextManager["PhasedTrainer"]):
    """The compiled programs of a run; where its images come from is left open.

    Each program is compiled when it is first needed: once for whole batches and once for the
    partial last batch of an epoch, in each phase of the masks.

    Attributes:
      steps_per_epoch: steps in an epoch, the partial last batch included.
      seconds: time spent training since it was last set to 0, without compiling.

    Args:
      program: what to train and how.
      n_images: training images.
      batch_size: images in a step, at most so many.
    """

    def __init__(self, program: Program, n_images: int, batch_size: int) -> None:
        self._program = program
        self._phases: dict[Phase, Program] = {}
        self._batch_size = batch_size
        self._n_whole, self._rest = divmod(n_images, batch_size)
        self._compiled: dict[tuple[int, Phase], Any] = {}
        self._evaluators: dict[tuple[Phase, tuple[int, ...]], Any] = {}
        self._seconds_per_step = 0.0
        self.steps_per_epoch = self._n_whole + bool(self._rest)
        self.seconds = 0.0

    def __exit__(self, *_: object) -> None:
        """Ends what was started for the training."""

    @property
    def mesh(self) -> Mesh | None:
        """The devices that share every batch; None for one."""
        return self._program.mesh

    def use(self, program: Program) -> None:
        """Goes on with another program, whose state has the same structure."""
        self._program = program
        self._phases.clear()
        self._compiled.clear()
        self._evaluators.clear()

    def is_compiled(self, position: int, phase: Phase) -> bool:
        """Whether the program for the batch at `position` of an epoch is compiled already."""
        return (self._size(position), phase) in self._compiled

    def program(self, phase: Phase) -> Program:
        """The program of a phase, the same object at every call."""
        return self._phases.setdefault(phase, self._program.at_phase(phase))

    @abc.abstractmethod
    def train(
        self, state: TrainState, epoch: int, position: int, *, seconds: float, phase: Phase
    ) -> tuple[TrainState, int, Any]:
        """Trains for about so long, at least a step, at most to the end of the epoch.

        Args:
          state: the state, donated.
          epoch: the epoch, from 0.
          position: steps of this epoch that are done.
          seconds: how long to train, in seconds.
          phase: what is masked.

        Returns:
          The state, the steps made, and whether loss and parameters are all finite.
        """

    @abc.abstractmethod
    def evaluate(self, state: TrainState, phase: Phase) -> Evaluation:
        """Evaluates the parameters of a state on the whole test set."""

    def validate(self, state: TrainState, phase: Phase) -> float | None:
        """The mean loss of the images that were held out; None if there are none."""
        del state, phase

    def measures(self) -> dict[str, float]:
        """What else there is to say of an epoch, once it is over."""
        return {}

    def counted(self) -> dict[str, float]:
        """What `measures` would have to know of an epoch under way that another process ends."""
        return {}

    def go_on_from(self, counted: Mapping[str, float]) -> None:
        """Takes over what `counted` said in the process that began the epoch."""
        del counted

    def _evaluate(self, state: TrainState, phase: Phase, batches: Any) -> Evaluation:
        arguments = (*state.evaluated, state.memory, *batches)
        if count() == 1:
            return evaluate(self.program(phase), *arguments, masked=phase.masked)
        key = phase, batches[1].shape
        if key not in self._evaluators:
            lowered = evaluate.lower(self.program(phase), *arguments, masked=phase.masked)
            self._evaluators[key] = lowered.compile()
            wait_for_all()
        return self._evaluators[key](*arguments)

    def _size(self, position: int) -> int:
        """The images of the batch at `position` of an epoch."""
        return self._batch_size if position < self._n_whole else self._rest

    def _n_steps(self, position: int, seconds: float) -> int:
        """How many steps of the same size take about so long, at least one; agreed on by all."""
        left = self._n_whole - position if position < self._n_whole else 1
        wanted = int(seconds / self._seconds_per_step) if self._seconds_per_step else 1
        n_steps, _ = agree(max(1, min(wanted, left)), None)
        return n_steps

    def _took(self, seconds: float, n_steps: int, size: int) -> None:
        """Notes how long so many steps took."""
        self.seconds += seconds
        if size == self._batch_size:
            self._seconds_per_step = seconds / n_steps


class Trainer(PhasedTrainer):
    """A `PhasedTrainer` with the data on the device, many steps in one call of a program.

    Args:
      program: what to train and how.
      dataset: what to train on.
      batch_size: images in a step, at most those of the data set.
      held_out: images and labels to validate on, not among those of `dataset`; or None.
    """

    def __init__(
        self,
        program: Program,
        dataset: ImageDataset,
        batch_size: int,
        held_out: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        super().__init__(program, dataset.n_train, batch_size)
        self._images = self._placed(dataset.train_images)
        self._labels = self._placed(dataset.train_labels)
        self._test = self._batches(dataset.test_images, dataset.test_labels)
        self._held_out = None if held_out is None else self._batches(*held_out)
        self._order: tuple[int, jax.Array] | None = None

    def train(
        self, state: TrainState, epoch: int, position: int, *, seconds: float, phase: Phase
    ) -> tuple[TrainState, int, Any]:
        """Trains as `PhasedTrainer.train`."""
        size, n_steps = self._size(position), self._n_steps(position, seconds)
        if self._order is None or self._order[0] != epoch:
            images = len(self._labels)
            self._order = epoch, self._placed(self._order_of(jnp.int32(epoch), images))
        start = self._placed(jnp.int32(position * self._batch_size))
        wanted_steps = self._placed(jnp.int32(n_steps))
        arguments = (state, self._images, self._labels, self._order[1], start, wanted_steps)
        program = self._compiled.get((size, phase))
        if program is None:
            program = self._lower(arguments, size, phase).compile()
            self._compiled[size, phase] = program
            wait_for_all()
        began = time.perf_counter()
        state, healthy = self._call(program, arguments)
        healthy = np.asarray(healthy).tolist()
        self._took(time.perf_counter() - began, n_steps, size)
        return state, n_steps, healthy

    def evaluate(self, state: TrainState, phase: Phase) -> Evaluation:
        """Evaluates the parameters of a state, or their average, on the whole test set."""
        return self._evaluate(state, phase, self._test)

    def validate(self, state: TrainState, phase: Phase) -> float | None:
        """The mean loss of the images that were held out; None if there are none."""
        if self._held_out is None:
            return None
        found = self._evaluate(state, phase, self._held_out)
        return float(found.loss) / int(found.images)

    def _order_of(self, epoch: jax.Array, n_images: int) -> jax.Array:
        return epoch_order(self._program.seed, epoch, n_images)

    def _lower(self, arguments: tuple, batch_size: int, phase: Phase) -> jax.stages.Lowered:
        """The training program for these arguments, ready to be compiled."""
        return train_steps.lower(
            self.program(phase), *arguments, batch_size=batch_size, masked=phase.masked
        )

    def _call(self, program: Any, arguments: tuple) -> Any:
        return program(*arguments)

    def _placed(self, array: Any) -> jax.Array:
        mesh = self._program.mesh
        return jnp.asarray(array) if mesh is None else replicate(array, mesh)

    def _batches(self, images: np.ndarray, labels: np.ndarray) -> tuple[jax.Array, jax.Array]:
        size = min(_EVALUATION_BATCH, len(labels))
        batched, numbered = evaluation_batches(images, labels, size)
        return self._placed(batched), self._placed(numbered)
