"""Reads and decodes chunks of a batch: the work of a worker process."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, UInt8

from sparsemlp.data.imagenet.batch_plan import BatchPlan
from sparsemlp.data.imagenet.crops import N_NUMBERS
from sparsemlp.data.imagenet.decoding import decode_training, decode_validation
from sparsemlp.data.imagenet.draws import uniform_numbers
from sparsemlp.data.imagenet.unreadable import Unreadable
from sparsemlp.errors import InputError, in_a_line

_ENDLESS = 2**62
_REPLACEMENTS = 16

type _Labelled = tuple[UInt8[np.ndarray, "height width 3"], int]


@runtime_checkable
class ImageSource(Protocol):
    """Encoded images with labels, read in any order; sent to worker processes by pickle."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    def read(self, index: int) -> tuple[bytes, int]:
        """An encoded image and its label."""
        ...

    def name(self, index: int) -> str:
        """What a person finds the image by."""
        ...


class Chunk(NamedTuple):
    """Some rows of a batch.

    Attributes:
      images: uint8 [rows, height, width, 3].
      labels: int32 [rows]; -1 for a row without an image.
      unreadable: The images of these rows that cannot be read.
    """

    images: UInt8[np.ndarray, "rows height width 3"]
    labels: Int32[np.ndarray, " rows"]
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True)
class Loader:
    """The chunks of a plan as an endless sequence; a chunk is a function of its number.

    A training image that cannot be read is replaced by another one, drawn from (seed, epoch,
    image), so that no row is empty. A validation image that cannot be read leaves an empty row.

    Attributes:
      source: Where the encoded images are.
      plan: Which image stands in which row. One with a seed is for training.
      image_size: Height and width of the result, in pixels.
    """

    source: ImageSource
    plan: BatchPlan
    image_size: int

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, number: int) -> Chunk:
        epoch, rows = self.plan.chunk(number)
        images = np.zeros((len(rows), self.image_size, self.image_size, 3), np.uint8)
        labels = np.full(len(rows), -1, np.int32)
        unreadable = []
        for row, image in enumerate(rows.tolist()):
            if image < 0:
                continue
            loaded = self._load(epoch, image, image)
            if isinstance(loaded, Unreadable):
                unreadable.append(loaded)
                loaded = self._replacement(epoch, image, loaded)
            if loaded is not None:
                images[row], labels[row] = loaded
        return Chunk(images, labels, tuple(unreadable))

    def _load(self, epoch: int, image: int, shown: int) -> _Labelled | Unreadable:
        """The image `shown`, cropped as `image` is in this epoch."""
        try:
            data, label = self.source.read(shown)
            if (seed := self.plan.seed) is None:
                return decode_validation(data, self.image_size), label
            numbers = uniform_numbers(seed, "crop", epoch, image, N_NUMBERS)
            return decode_training(data, self.image_size, numbers.tolist()), label
        except MemoryError:
            raise
        # Files, TFDS, array_record and Pillow each report damage in classes of their own.
        except Exception as error:
            return Unreadable(self.source.name(shown), _reason(error))

    def _replacement(self, epoch: int, image: int, unreadable: Unreadable) -> _Labelled | None:
        """What is shown in the place of an image that cannot be read; None in validation."""
        if self.plan.seed is None:
            return None
        numbers = uniform_numbers(self.plan.seed, "replacement", epoch, image, _REPLACEMENTS)
        for shown in (numbers * len(self.source)).astype(np.int64).tolist():
            loaded = self._load(epoch, image, shown)
            if not isinstance(loaded, Unreadable):
                return loaded
        raise InputError(
            f"{unreadable.name} cannot be read ({unreadable.reason}), nor {_REPLACEMENTS} other "
            "images in its place: look after the files and start again"
        )


def _reason(error: Exception) -> str:
    reason = in_a_line(error)
    # Pillow names the memory that the bytes were in, not the file.
    return "no image that Pillow knows" if "cannot identify image file" in reason else reason
