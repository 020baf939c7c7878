"""Any small image set from a NumPy archive."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Int32, UInt8

from sparsemlp.data.dataset import ImageDataset, channel_statistics
from sparsemlp.errors import InputError, in_a_line

_REQUIRED = ("train_images", "train_labels", "test_images", "test_labels")


def load_npz(path: Path) -> ImageDataset:
    """Loads and checks an image set that `numpy.savez` wrote.

    Args:
      path: A file with `train_images` and `test_images`, uint8 [n, height, width, channels] or
        grey [n, height, width]; `train_labels` and `test_labels`, any integer type [n], at
        least 0; and optionally `n_classes`, an integer. Without `n_classes` the classes are
        0 to the largest training label.

    Returns:
      The data set, with the mean and standard deviation of its training images.

    Raises:
      InputError: The file is missing, is no readable `.npz`, or breaks one of the rules above.
    """
    arrays = _read_arrays(path)
    train_images = _checked_images(path, "train_images", arrays["train_images"])
    test_images = _checked_images(path, "test_images", arrays["test_images"])
    if train_images.shape[1:] != test_images.shape[1:]:
        raise InputError(
            f"{path}: train_images are {_shape_text(train_images.shape[1:])} but test_images are "
            f"{_shape_text(test_images.shape[1:])} (height x width x channels): "
            "bring both to one shape"
        )
    train_labels = _checked_labels(path, "train_labels", arrays["train_labels"], len(train_images))
    test_labels = _checked_labels(path, "test_labels", arrays["test_labels"], len(test_images))
    n_classes = _checked_n_classes(path, arrays.get("n_classes"), train_labels, test_labels)
    mean, std = channel_statistics(train_images)
    return ImageDataset(
        name=path.stem,
        source=path.name,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        n_classes=n_classes,
        mean=mean,
        std=std,
        notice=_notice(path, train_labels, n_classes),
    )


def _notice(path: Path, labels: Int32[np.ndarray, " n"], n_classes: int) -> str | None:
    """What a user should know of classes without a training image."""
    n_without = n_classes - len(np.unique(labels))
    if not n_without:
        return None
    return (
        f"{path.name} has no training image of {n_without} of its {n_classes} classes: renumber "
        "the labels if there are no such classes"
    )


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise InputError(f"{path} is not a file: give the path of an existing .npz file")
    try:
        # Opened here, because numpy leaves a file open that turns out to be damaged, and because of
        # one that may not be read zipfile says that it is none.
        with path.open("rb") as opened:
            if not zipfile.is_zipfile(opened):
                raise InputError(f"{path} is not an .npz file: write one with numpy.savez(...)")
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            missing = [key for key in _REQUIRED if key not in file]
            if missing:
                raise InputError(
                    f"{path} lacks {', '.join(missing)} and holds "
                    f"{', '.join(file.files) or 'nothing'}: store {', '.join(_REQUIRED)}"
                )
            arrays = {key: file[key] for key in (*_REQUIRED, "n_classes") if key in file}
            # What is no .npy file comes back as its bytes.
            if raw := [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise InputError(
                    f"{path}: {', '.join(raw)} is no array: write it anew with numpy.savez(...)"
                )
            return arrays
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): make it readable, or give another .npz file"
        ) from error
    except (
        OSError,
        EOFError,
        MemoryError,
        RuntimeError,
        SyntaxError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = in_a_line(error)
        raise InputError(
            f"{path} cannot be read ({reason}): write it anew with numpy.savez(...), "
            "plain arrays only"
        ) from error


def _checked_images(
    path: Path, key: str, images: np.ndarray
) -> UInt8[np.ndarray, "n height width channels"]:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InputError(
            f"{path}: {key} is {images.dtype} {list(images.shape)}, must be uint8 "
            f"[n, height, width, channels] or [n, height, width]: {_to_pixels(key, images)}"
        )
    if images.ndim == 4 and images.shape[1] <= 4 < min(images.shape[2:]):
        raise InputError(
            f"{path}: {key} of the shape {list(images.shape)} seems to have its channels first, "
            f"must be [n, height, width, channels]: store {key}.transpose(0, 2, 3, 1)"
        )
    if images.size == 0:
        raise InputError(f"{path}: {key} has the shape {list(images.shape)}: it must not be empty")
    return images if images.ndim == 4 else images[..., None]


def _to_pixels(key: str, images: np.ndarray) -> str:
    """How to make uint8 of what are no such images."""
    if images.dtype == np.uint8:
        return "bring it to these axes"
    if images.dtype.kind == "f":
        return f"of pixels in 0..1 store numpy.round(255 * {key}).astype('uint8')"
    return f"of pixels in 0..255 store {key}.astype('uint8')"


def _checked_labels(
    path: Path, key: str, labels: np.ndarray, n_images: int
) -> Int32[np.ndarray, " n"]:
    if labels.dtype.kind not in "iu" or labels.shape != (n_images,):
        if labels.ndim == 2 and labels.shape[0] == n_images and labels.shape[1] > 1:
            way_out = f"of one-hot rows store {key}.argmax(axis=1)"
        elif labels.dtype.kind in "US":
            way_out = (
                f"number the names alike in both sets, e.g. numpy.searchsorted(names, {key}), of "
                "names = numpy.unique(train_labels)"
            )
        elif labels.size == n_images:
            way_out = f"convert it, e.g. {key}.astype('int32').reshape(-1)"
        else:
            way_out = "store the label of each image, in their order"
        raise InputError(
            f"{path}: {key} is {labels.dtype} {list(labels.shape)}, must be one integer for each "
            f"of the {n_images} images: {way_out}"
        )
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest < 0 or largest >= np.iinfo(np.int32).max:
        raise InputError(
            f"{path}: {key} holds {smallest if smallest < 0 else largest}, labels must count "
            "from 0 up to the number of classes - 1: renumber them"
        )
    return labels.astype(np.int32)


def _checked_n_classes(
    path: Path,
    entry: np.ndarray | None,
    train_labels: Int32[np.ndarray, " train"],
    test_labels: Int32[np.ndarray, " test"],
) -> int:
    if entry is None:
        n_classes, origin = int(train_labels.max()) + 1, "the training labels"
        if n_classes > len(train_labels):
            raise InputError(
                f"{path}: train_labels holds {n_classes - 1}, more classes than the "
                f"{len(train_labels)} training images: correct the labels, or store n_classes"
            )
    elif entry.dtype.kind in "iu" and entry.size == 1 and int(entry.item()) >= 1:
        n_classes, origin = int(entry.item()), "n_classes"
    else:
        raise InputError(
            f"{path}: n_classes is {entry.dtype} {list(entry.shape)} {entry.tolist()}, "
            "must be a single integer >= 1: correct it or leave it out"
        )
    for key, labels in (("train_labels", train_labels), ("test_labels", test_labels)):
        if labels.max() >= n_classes:
            raise InputError(
                f"{path}: {key} holds {labels.max()}, outside the {n_classes} classes that "
                f"{origin} give (0 to {n_classes - 1}): correct the labels, or store n_classes"
            )
    return n_classes


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
