"""Batches of a large image set, loaded ahead of the steps that need them."""

import collections
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from sparsemlp.cores import usable_cores
from sparsemlp.data.imagenet.batch_plan import BatchPlan
from sparsemlp.data.imagenet.loading import ImageSource, Loader
from sparsemlp.data.imagenet.unreadable import LARGEST_SHARE, Unreadable, UnreadableCount
from sparsemlp.data.imagenet.workers import leave_signals_to_parent, load_ahead, require_grain
from sparsemlp.errors import InputError

_BATCHES_AHEAD = 2


class Batch(NamedTuple):
    """The rows of this process in a batch.

    Attributes:
      images: uint8 [rows, height, width, 3].
      labels: int32 [rows]; -1 for a row that does not count, whose pixels are black.
    """

    images: UInt8[np.ndarray, "rows height width 3"]
    labels: Int32[np.ndarray, " rows"]


class Pipeline:
    """The batches of an image source from a position on, for ever.

    What a batch holds is a function of the source, the plan and its position (epoch, step), so a
    run that is resumed passes the position of its next step; nothing before it is decoded. With a
    seed in the plan the images of each epoch are shuffled, and cropped and mirrored at random;
    without, they come in order, each with its centred square.

    Images that cannot be read are reported, each with a warning of one line, when their batch is
    handed out. In training another image takes the place, and rows and labels are as ever; in
    validation the row is black and labelled -1. More than a share of all images is an error; each
    process counts its own, so that none refuses what fewer processes take.

    Attributes:
      position: (epoch, step) of the batch that is handed out next.
      seconds_waited: Time spent waiting for batches since it was last set to 0, the start of
        the worker processes included.

    Args:
      source: Where the encoded images are.
      plan: Which image stands in which row.
      image_size: Height and width of the images, in pixels.
      epoch: Epoch of the first batch, from 0.
      step: Step of the first batch in that epoch, from 0.
      n_workers: Worker processes that decode; 0 does it in a thread of this process, and None
        takes as many as there are cores.
      largest_unreadable_share: Of the images of an epoch, those of all processes.
      n_unreadable: How many were in that epoch before the first batch.

    Raises:
      InputError: A value that breaks a rule, or grain is missing.
    """

    def __init__(
        self,
        source: ImageSource,
        plan: BatchPlan,
        image_size: int,
        *,
        epoch: int = 0,
        step: int = 0,
        n_workers: int | None = None,
        largest_unreadable_share: float = LARGEST_SHARE,
        n_unreadable: int = 0,
    ) -> None:
        if n_workers is None:
            n_workers = usable_cores()
        _check(plan, source, image_size, epoch, step, n_workers)
        require_grain()
        self.plan = plan
        self.position = (epoch, step)
        self.seconds_waited = 0.0
        self._unreadable = UnreadableCount(
            plan.n_images,
            largest_unreadable_share,
            replaced=plan.seed is not None,
            epoch=epoch,
            count=n_unreadable,
        )
        n_ahead = -(-_BATCHES_AHEAD * plan.n_chunks(0) // max(1, n_workers))
        self._image_size = image_size
        self._chunks = load_ahead(
            Loader(source, plan, image_size),
            plan.first_chunk(epoch, step),
            n_workers=n_workers,
            n_ahead=n_ahead,
        )
        self._closing = False
        self._thread = ThreadPoolExecutor(1, "input", initializer=leave_signals_to_parent)
        self._ahead: collections.deque[Future[tuple[Batch, tuple[Unreadable, ...]]]] = (
            collections.deque()
        )
        self._next_to_load = self.position
        for _ in range(_BATCHES_AHEAD):
            self._load_another()

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the last, partial one included."""
        return self.plan.steps_per_epoch

    @property
    def n_unreadable(self) -> int:
        """Rows whose image cannot be read, so far in the epoch of the batch handed out last.

        Of this process alone, of the batches that this pipeline handed out and those before.
        """
        return self._unreadable.count

    @property
    def n_ready(self) -> int:
        """Batches that are handed out without waiting."""
        return sum(batch.done() for batch in self._ahead)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
          InputError: Too many images cannot be read, or the pipeline is closed.
          WorkerError: A worker process died, or failed otherwise.
        """
        if self._closing:
            raise InputError("this input pipeline is closed: make another one")
        began = time.perf_counter()
        try:
            batch, unreadable = self._ahead.popleft().result()
            self._unreadable.add(self.position[0], unreadable)
        except BaseException:
            self.close()
            raise
        finally:
            self.seconds_waited += time.perf_counter() - began
        self.position = self._after(self.position)
        self._load_another()
        return batch

    def rest_of_epoch(self) -> Iterator[Batch]:
        """The batches that are left of the epoch of the next one."""
        for _ in range(self.steps_per_epoch - self.position[1]):
            yield next(self)

    def close(self) -> None:
        """Ends the worker processes; a second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._ahead.clear()
        # In the thread that started the workers: signals stay blocked while they end.
        closed = self._thread.submit(self._chunks.close)
        self._thread.shutdown(wait=True)
        closed.result()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _load_another(self) -> None:
        self._ahead.append(self._thread.submit(self._assemble, self._next_to_load[1]))
        self._next_to_load = self._after(self._next_to_load)

    def _assemble(self, step: int) -> tuple[Batch, tuple[Unreadable, ...]]:
        """Puts the chunks of a batch together."""
        n_rows = self.plan.n_rows(step)
        images = np.empty((n_rows, self._image_size, self._image_size, 3), np.uint8)
        labels = np.empty(n_rows, np.int32)
        unreadable: list[Unreadable] = []
        for index in range(self.plan.n_chunks(step)):
            if self._closing:
                break
            start, stop = self.plan.chunk_rows(step, index)
            chunk = next(self._chunks)
            images[start:stop], labels[start:stop] = chunk.images, chunk.labels
            unreadable += chunk.unreadable
        return Batch(images, labels), tuple(unreadable)

    def _after(self, position: tuple[int, int]) -> tuple[int, int]:
        epoch, step = position
        return (epoch, step + 1) if step + 1 < self.steps_per_epoch else (epoch + 1, 0)


def _check(
    plan: BatchPlan,
    source: ImageSource,
    image_size: int,
    epoch: int,
    step: int,
    n_workers: int,
) -> None:
    if plan.n_images != len(source):
        raise InputError(f"a plan of {plan.n_images} images for {len(source)}: plan for all")
    if image_size < 1:
        raise InputError(f"image_size={image_size} must be at least 1 pixel")
    if epoch < 0 or not 0 <= step < plan.steps_per_epoch:
        raise InputError(
            f"(epoch, step)=({epoch}, {step}) is no position: an epoch has the steps 0 to "
            f"{plan.steps_per_epoch - 1}"
        )
    if n_workers < 0:
        raise InputError(f"n_workers={n_workers} must be at least 0")
