"""Any data set by name: small ones in memory, large ones on the disk."""

from pathlib import Path
from typing import NamedTuple

from sparsemlp.data.dataset import ImageDataset
from sparsemlp.data.imagenet.image_set import IMAGE_SIZE, ImageSet, open_image_set
from sparsemlp.data.load import load_dataset
from sparsemlp.errors import InputError, SaveError
from sparsemlp.paths import at_home, is_npz


class Outline(NamedTuple):
    """What is known of a small data set before it is loaded; its images are square.

    Attributes:
      n_train: training images, before any are held out.
      n_test: test images.
      side: of an image, in pixels.
      channels: of an image.
      n_classes: how many classes.
    """

    n_train: int
    n_test: int
    side: int
    channels: int
    n_classes: int


OUTLINES = {
    "cifar10": Outline(50_000, 10_000, 32, 3, 10),
    "digits": Outline(1_437, 360, 32, 3, 10),
}
"""The small data sets that have names."""
_IN_MEMORY = ("auto", *OUTLINES)


LabelledImages = ImageDataset | ImageSet
"""A data set, wherever its pixels are: in memory or on the disk."""


def is_streamed(name: str) -> bool:
    """Whether a data set is read from the disk while it is trained on, judged by its name."""
    return name not in _IN_MEMORY and not is_npz(name)


def load_images(
    name: str, data_dir: Path | None = None, *, image_size: int | None = None
) -> LabelledImages:
    """Loads a small data set into memory, or opens a large one.

    Args:
      name: As for `load_dataset`; or a folder with `train/CLASS/*.JPEG` and `val/CLASS/*.JPEG`,
        or a data set in TFDS such as `imagenet2012`, as for `open_image_set`.
      data_dir: The TFDS `data_dir`; None means the default of TFDS.
      image_size: Height and width that a large set is decoded to, in pixels; None for 224.

    Raises:
      InputError: What is named is missing, damaged or against the rules.
    """
    try:
        if is_streamed(name):
            return _opened(name, data_dir, image_size or IMAGE_SIZE)
        return load_dataset(name, data_dir)
    except SaveError:
        raise
    except OSError as error:
        raise InputError(f"data set {name!r} cannot be read: {error.strerror or error}") from error


class DataSets:
    """Data sets, each loaded once."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, Path | None, int | None], LabelledImages] = {}

    def load(
        self, name: str, data_dir: Path | None, *, image_size: int | None = None
    ) -> LabelledImages:
        """A data set, as `load_images` finds it.

        Raises:
          InputError: It cannot be found or is damaged.
        """
        key = name, data_dir, image_size
        if key not in self._loaded:
            self._loaded[key] = load_images(name, data_dir, image_size=image_size)
        return self._loaded[key]


def _opened(name: str, data_dir: Path | None, image_size: int) -> ImageSet:
    try:
        return open_image_set(name, data_dir, image_size=image_size)
    except InputError as error:
        if at_home(Path(name)).exists():
            raise
        small = ", ".join(_IN_MEMORY)
        raise InputError(f"{error}; small sets are {small} and FILE.npz") from error
