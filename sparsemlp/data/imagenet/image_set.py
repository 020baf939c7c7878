"""Opening a large image set: a plain folder, or TFDS, by name."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsemlp.data.imagenet.folder import check_same_classes, find_images
from sparsemlp.data.imagenet.loading import ImageSource
from sparsemlp.data.imagenet.records import RecordSource, prepared_builder
from sparsemlp.errors import InputError, in_a_line
from sparsemlp.paths import at_home, default_data_dir

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
IMAGE_SIZE = 224
"""Height and width that ImageNet's images are decoded to unless told otherwise, in pixels."""
_VALIDATION_SPLITS = ("validation", "test")


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A labelled image set on the disk, opened but not read.

    Attributes:
      name: The name of the folder, or of the data set in TFDS.
      source: Where the pixels come from, to be printed beside a result.
      train: The training images.
      validation: The validation images.
      n_classes: The number of classes.
      digest: A checksum of the names of classes and files, or of TFDS' description: to know
        the set again when a run is resumed. It does not cover the pixels.
      mean: Per channel, of pixels scaled to 0..1: ImageNet's.
      std: Per channel, of pixels scaled to 0..1: ImageNet's.
      notice: A single line that a program must show the user prominently, or None.
      image_size: Height and width that images are decoded to, in pixels.
    """

    name: str
    source: str
    train: ImageSource
    validation: ImageSource
    n_classes: int
    digest: str
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    notice: str | None = None
    image_size: int = IMAGE_SIZE

    @property
    def n_train(self) -> int:
        """The number of training images."""
        return len(self.train)

    @property
    def n_test(self) -> int:
        """The number of validation images."""
        return len(self.validation)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a decoded image."""
        return self.image_size, self.image_size, 3


def open_image_set(
    name: str, data_dir: Path | None = None, *, image_size: int = IMAGE_SIZE
) -> ImageSet:
    """Opens a large image set.

    Args:
      name: The path of a folder with `train/CLASS/*.JPEG` and `val/CLASS/*.JPEG`, whose classes
        are the sorted names of the class folders; or the name of a data set in TFDS with the
        features `image` and `label` and the splits `train` and `validation` (or `test`), such
        as `imagenet2012`, prepared in array_record files.
      data_dir: The TFDS `data_dir`; None means the default of TFDS.
      image_size: Height and width that images are decoded to, in pixels.

    Returns:
      The image set. Its `notice`, if there is one, must be shown to the user.

    Raises:
      InputError: What is named is missing, damaged or against the rules above.
    """
    folder = at_home(Path(name))
    if names_folder(name):
        return replace(_open_folder(folder), image_size=image_size)
    if len(folder.parts) > 2 or folder.is_absolute():
        raise InputError(
            f"{name} is not a folder: give one with train/CLASS/*.JPEG and val/CLASS/*.JPEG, or "
            "the name of a data set in TFDS such as imagenet2012"
        )
    data_dir = default_data_dir() if data_dir is None else at_home(data_dir)
    return replace(_open_tfds(name, data_dir), image_size=image_size)


def names_folder(name: str) -> bool:
    """Whether a name is that of a folder of images.

    A bare name may also be that of a data set in TFDS, which has a folder without `train` where it
    was prepared.
    """
    folder = at_home(Path(name))
    is_bare = name == folder.name
    return (folder / "train").is_dir() if is_bare else folder.is_dir()


def _open_folder(folder: Path) -> ImageSet:
    train, validation = find_images(folder / "train"), find_images(folder / "val")
    check_same_classes(train, validation)
    oddities = []
    for source in (train, validation):
        if empty := source.empty_classes:
            oddities.append(f"{len(empty)} classes of {source.folder} have no images ({empty[0]})")
        if source.n_ignored:
            oddities.append(f"{source.n_ignored} files of {source.folder} are not named as images")
        if source.n_elsewhere:
            oddities.append(
                f"{source.n_elsewhere} images or folders of {source.folder} do not lie in "
                "CLASS/*.JPEG and are left out"
            )
    return ImageSet(
        name=folder.resolve().name,
        source=f"{folder.resolve().name} (folder)",
        train=train,
        validation=validation,
        n_classes=len(train.classes),
        digest=_digest(train.content, validation.content),
        notice="; ".join(oddities) or None,
    )


def _open_tfds(name: str, data_dir: Path) -> ImageSet:
    builder = prepared_builder(name, data_dir)
    splits: dict[str, Any] = dict(builder.info.splits)
    chosen = ["train", *(split for split in _VALIDATION_SPLITS if split in splits)][:2]
    if len(chosen) < 2 or "train" not in splits:
        raise InputError(
            f"{name} has the splits {', '.join(sorted(splits)) or 'none'}: it needs train, and "
            f"{' or '.join(_VALIDATION_SPLITS)}"
        )
    directory = Path(builder.data_dir)
    try:
        train, validation = (RecordSource(directory, split) for split in chosen)
        for source in (train, validation):
            source.read(0)  # Files that are missing or empty are noticed no earlier.
    # array_record reports damage in classes of its own.
    except Exception as error:
        reason = in_a_line(error)
        raise InputError(f"{directory} cannot be read ({reason}): prepare it anew") from error
    lengths = [f"{split}:{splits[split].num_examples}" for split in chosen]
    return ImageSet(
        name=builder.info.name,
        source=builder.info.full_name,
        train=train,
        validation=validation,
        n_classes=builder.info.features["label"].num_classes,
        digest=_digest(builder.info.full_name.encode(), *map(str.encode, lengths)),
    )


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
