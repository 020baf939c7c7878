"""Trains on a large image set: batches come from an input pipeline, one program call a step."""

import collections
import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, UInt8

from sparsemlp.data.imagenet import (
    Batch,
    ImageSet,
    ImageSource,
    Pipeline,
    training_pipeline,
    validation_pipeline,
)
from sparsemlp.distributed.parallel import join, split, usable
from sparsemlp.distributed.processes import wait_for_all
from sparsemlp.errors import InputError
from sparsemlp.schedule import Phase
from sparsemlp.train.evaluation import Evaluation
from sparsemlp.train.train_state import Program, TrainState
from sparsemlp.train.trainer import PhasedTrainer
from sparsemlp.train.training import is_healthy, train_step
from sparsemlp.varying import AXIS

_STEPS_AHEAD = 2
"""How far the host may be ahead of the device: each batch on its way takes memory there."""


class StreamTrainer(PhasedTrainer):
    """As `Trainer`, with images that are decoded while the device computes.

    A batch is a function of (seed, epoch, step) whatever the number of devices, of processes and
    of workers. The input pipelines, for training, for evaluation and for held-out images, start
    their worker processes when they are first needed and keep them until the trainer is left.

    Attributes:
      seconds_waiting: time spent waiting for batches of training since it was last set to 0,
        contained in `seconds`.

    Args:
      program: what to train and how.
      images: what to train on.
      batch_size: images in a step, over all devices and processes.
      held_out: training images to validate on, not among those of `images`; or None.
      n_workers: processes that decode, for each pipeline; None takes as many as cores.
      largest_unreadable_share: of the images of an epoch.
    """

    def __init__(
        self,
        program: Program,
        images: ImageSet,
        batch_size: int,
        held_out: ImageSource | None = None,
        *,
        n_workers: int | None = None,
        largest_unreadable_share: float,
    ) -> None:
        super().__init__(program, images.n_train, batch_size)
        self._images = images
        self._held_out = held_out
        self._reading = {
            "process": jax.process_index(),
            "n_processes": jax.process_count(),
            "n_workers": n_workers,
            "largest_unreadable_share": largest_unreadable_share,
        }
        self._training: Pipeline | None = None
        self._evaluating: dict[str, Pipeline] = {}
        self._unreadable = {"training": 0, "validation": 0}
        self.seconds_waiting = 0.0

    def __enter__(self) -> "StreamTrainer":
        return self

    def __exit__(self, *_: object) -> None:
        for pipeline in (self._training, *self._evaluating.values()):
            if pipeline is not None:
                pipeline.close()
        self._training, self._evaluating = None, {}

    def train(
        self, state: TrainState, epoch: int, position: int, *, seconds: float, phase: Phase
    ) -> tuple[TrainState, int, Any]:
        """Trains as `Trainer.train`.

        Raises:
          InputError: too many images cannot be read.
          WorkerError: a worker process died, or failed otherwise.
        """
        size = self._size(position)
        n_steps = self._n_steps(position, seconds)
        pipeline = self._training_from(epoch, position)
        program = self._compiled.get((size, phase))
        began, waited = time.perf_counter(), pipeline.seconds_waited
        running: collections.deque[jax.Array] = collections.deque()
        for _ in range(n_steps):
            batch = self._placed_batch(next(pipeline))
            if program is None:
                program = self._compile(state, batch, size, phase)
                # The first step; neither compiling nor the start of the workers is training.
                began, waited = time.perf_counter(), pipeline.seconds_waited
            state, healthy = program(state, *batch)
            running.append(healthy)
            if len(running) > _STEPS_AHEAD:
                jax.block_until_ready(running.popleft())
        healthy = np.asarray(running[-1]).tolist()
        self._took(time.perf_counter() - began, n_steps, size)
        self.seconds_waiting += pipeline.seconds_waited - waited
        self._unreadable["training"] = pipeline.n_unreadable
        return state, n_steps, healthy

    def evaluate(self, state: TrainState, phase: Phase) -> Evaluation:
        """Evaluates the parameters of a state, or their average, on all readable validation images.

        Raises:
          InputError: too many images cannot be read.
          WorkerError: a worker process died, or failed otherwise.
        """
        return self._evaluate_all("validation", self._images.validation, state, phase)

    def validate(self, state: TrainState, phase: Phase) -> float | None:
        """The mean loss of the readable images that were held out; None if there are none.

        Raises:
          InputError: too many images cannot be read.
          WorkerError: a worker process died, or failed otherwise.
        """
        if self._held_out is None:
            return None
        found = self._evaluate_all("held_out", self._held_out, state, phase)
        return float(found.loss) / int(found.images)

    def measures(self) -> dict[str, float]:
        """Of an epoch, in this process: seconds waiting for images, and how many are unreadable."""
        waited, self.seconds_waiting = self.seconds_waiting, 0.0
        unreadable = {f"{name}_unreadable": count for name, count in self._unreadable.items()}
        self._unreadable["training"] = 0
        return {"seconds_waiting": waited} | unreadable

    def counted(self) -> dict[str, float]:
        """Of the epoch under way: seconds waiting for images, and how many are unreadable."""
        unreadable = self._unreadable["training"]
        return {"seconds_waiting": self.seconds_waiting, "training_unreadable": unreadable}

    def go_on_from(self, counted: Mapping[str, float]) -> None:
        """Counts on from there."""
        self.seconds_waiting = float(counted.get("seconds_waiting", 0.0))
        self._unreadable["training"] = int(counted.get("training_unreadable", 0))

    def _evaluate_all(
        self, name: str, source: ImageSource, state: TrainState, phase: Phase
    ) -> Evaluation:
        """An evaluation on a whole source, whose pipeline is opened at its first."""
        if name not in self._evaluating:
            self._evaluating[name] = validation_pipeline(
                source,
                batch_size=self._batch_size,
                image_size=self._images.image_size,
                **self._reading,
            )
        pipeline = self._evaluating[name]
        total: Evaluation | None = None
        for batch in pipeline.rest_of_epoch():
            images, labels = self._placed_batch(Batch(batch.images[None], batch.labels[None]))
            # The last one is done before the next begins; the host has decoded that meanwhile.
            found = jax.block_until_ready(total)
            total = self._evaluate(state, phase, (images, labels))
            total = total if found is None else found.with_batch(total)
        self._unreadable[name] = pipeline.n_unreadable
        if total is None:
            raise ValueError("an epoch has at least one batch")
        if not int(total.images):
            raise InputError(
                f"none of the {len(source)} {name.replace('_', '-')} images can be read: repair "
                "or replace them"
            )
        return total

    def _training_from(self, epoch: int, position: int) -> Pipeline:
        """The training pipeline, its next batch being that of this position."""
        if self._training is not None and self._training.position != (epoch, position):
            self._training.close()
            self._training = None
        if self._training is None:
            mesh = self.mesh
            self._training = training_pipeline(
                self._images.train,
                batch_size=self._batch_size,
                image_size=self._images.image_size,
                seed=int(self._program.seed),
                epoch=epoch,
                step=position,
                multiple=1 if mesh is None else mesh.size,
                n_unreadable=self._unreadable["training"],
                **self._reading,
            )
        return self._training

    def _compile(self, state: TrainState, batch: Any, size: int, phase: Phase) -> Any:
        """The program of a step on batches like this one, once all processes have theirs."""
        lowered = train_batch.lower(
            self.program(phase), state, *batch, n_images=size, masked=phase.masked
        )
        program = self._compiled[size, phase] = lowered.compile()
        wait_for_all()
        return program

    def _placed_batch(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The rows of all processes as arrays whose last axis but the pixels' is divided."""
        if self.mesh is None:
            return jnp.asarray(batch.images), jnp.asarray(batch.labels)
        leading = (None,) * (batch.labels.ndim - 1)
        sharding = NamedSharding(self.mesh, P(*leading, AXIS))
        images, labels = (
            jax.make_array_from_process_local_data(sharding, array)
            for array in (batch.images, batch.labels)
        )
        return images, labels


@functools.partial(
    jax.jit, static_argnums=0, static_argnames=("n_images", "masked"), donate_argnums=1
)
def train_batch(
    program: Program,
    state: TrainState,
    images: UInt8[Array, "rows height width channels"],
    labels: Int[Array, " rows"],
    *,
    n_images: int,
    masked: bool,
) -> tuple[TrainState, Bool[Array, ""]]:
    """One step on a batch of the input pipeline.

    Args:
      program: what to train and how.
      state: the state before the step, donated.
      images: raw pixels.
      labels: class indices, int32; rows from `n_images` on have none and do not count.
      n_images: how many rows are images.
      masked: whether weights are masked.

    Returns:
      The state after the step, and whether its loss and parameters are all finite.
    """
    batch = split((images[:n_images], labels[:n_images]), usable(program.mesh, n_images))
    state = join(train_step(program, state, *batch, masked=masked), program.mesh)
    return state, join(is_healthy(state), program.mesh)
