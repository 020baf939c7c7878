"""Which image stands in which row of which batch, for each of several processes."""

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from sparsemlp.data.imagenet.draws import image_order
from sparsemlp.errors import InputError

IMAGES_PER_CHUNK = 32
"""About how many images a worker process loads at a time."""


@dataclass(frozen=True)
class BatchPlan:
    """The batches of an endless row of epochs, each epoch with every image once.

    The batch of a step is the same whatever the number of processes: each has its part of the rows,
    all parts of a batch equally long, in the order of the processes. The last batch of an epoch
    holds the images that are left; rows without an image fill it up, at its end, to a multiple of
    `multiple`.

    Attributes:
      n_images: Images in an epoch.
      batch_size: Rows of a batch over all processes.
      seed: Seed of the order of each epoch; None keeps the order of the source.
      multiple: What the rows of the last batch are a multiple of.
      process: Which process this is, from 0.
      n_processes: How many there are.

    Raises:
      InputError: No images, or sizes that do not divide each other.
    """

    n_images: int
    batch_size: int
    seed: int | None = None
    multiple: int = 1
    process: int = 0
    n_processes: int = 1

    def __post_init__(self) -> None:
        if self.n_images < 1:
            raise InputError(f"{self.n_images} images make no batch: give at least one")
        for name in ("batch_size", "multiple", "n_processes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.process < self.n_processes:
            raise InputError(
                f"process={self.process} is none of {self.n_processes}: they count from 0"
            )
        if self.batch_size % self.multiple:
            raise InputError(
                f"batch_size={self.batch_size} is not a multiple of {self.multiple}: "
                f"choose {self._next_multiple(self.batch_size)}"
            )
        if self.multiple % self.n_processes:
            raise InputError(
                f"rows in multiples of {self.multiple} cannot be dealt out evenly to "
                f"{self.n_processes} processes: choose a multiple of {self.n_processes}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the last, partial one included."""
        return -(-self.n_images // self.batch_size)

    def n_rows(self, step: int) -> int:
        """Rows of this process in the batch of a step of an epoch."""
        left = self.n_images - step * self.batch_size
        rows = self.batch_size if left >= self.batch_size else self._next_multiple(left)
        return rows // self.n_processes

    def rows(self, epoch: int, step: int) -> Int64[np.ndarray, " rows"]:
        """The images of this process in a batch, -1 for a row without one."""
        n_rows = self.n_rows(step)
        first = step * self.batch_size + self.process * n_rows
        places = np.arange(first, first + n_rows)
        images = places if self.seed is None else _order(self.seed, epoch, self.n_images)
        if self.seed is not None:
            images = images[np.minimum(places, self.n_images - 1)]
        return np.where(places < self.n_images, images, -1)

    @functools.cached_property
    def chunks_per_epoch(self) -> int:
        """Into how many chunks the rows of this process are cut in an epoch."""
        last = self.steps_per_epoch - 1
        return last * self.n_chunks(0) + self.n_chunks(last)

    def n_chunks(self, step: int) -> int:
        """Into how many chunks the rows of this process are cut in a step."""
        return -(-self.n_rows(step) // IMAGES_PER_CHUNK)

    def first_chunk(self, epoch: int, step: int) -> int:
        """The number of the first chunk of a step, counted through all epochs."""
        return epoch * self.chunks_per_epoch + step * self.n_chunks(0)

    def chunk(self, number: int) -> tuple[int, Int64[np.ndarray, " rows"]]:
        """The epoch of a chunk and its images, -1 for a row without one."""
        epoch, place = divmod(number, self.chunks_per_epoch)
        step = min(place // self.n_chunks(0), self.steps_per_epoch - 1)
        start, stop = self.chunk_rows(step, place - step * self.n_chunks(0))
        return epoch, self.rows(epoch, step)[start:stop]

    def chunk_rows(self, step: int, index: int) -> tuple[int, int]:
        """The first row of a chunk in the rows of this process, and the first behind it."""
        n_rows, n_chunks = self.n_rows(step), self.n_chunks(step)
        return index * n_rows // n_chunks, (index + 1) * n_rows // n_chunks

    def _next_multiple(self, rows: int) -> int:
        return -(-rows // self.multiple) * self.multiple


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n_images: int) -> Int64[np.ndarray, " n_images"]:
    """The order of an epoch, kept: prefetching looks into two epochs at a time."""
    return image_order(seed, epoch, n_images)
