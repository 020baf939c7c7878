"""The options of a run on a large image set, read from the disk while it is trained on."""

from typing import Any

from sparsemlp.configuration.config import Config
from sparsemlp.data import is_streamed
from sparsemlp.data.imagenet.image_set import IMAGE_SIZE
from sparsemlp.errors import InputError
from sparsemlp.options import flag

_MOST_WORKERS = 1024
_BY_PIPELINE = {"flip": 0.0, "crop_padding": 0}
"""What the input pipeline does in its own way, a random resized crop and a flip."""


def stream_defaults(config: Config) -> dict[str, Any]:
    """Defaults that differ from the recipe's where the data set is a large one."""
    if not is_streamed(config.dataset):
        return {}
    size = IMAGE_SIZE if config.image_size is None else config.image_size
    return _BY_PIPELINE | {"image_size": size}


def check_left_to_pipeline(config: Config) -> None:
    """Raises InputError for a choice, before it is resolved, that the pipeline would not follow."""
    if not is_streamed(config.dataset):
        return
    for name in _BY_PIPELINE:
        if getattr(config, name) is not None:
            raise _left_to_pipeline(config, name)


def check_stream_options(config: Config) -> None:
    """Checks what a large image set allows, and its own options, in a resolved configuration.

    Raises:
      InputError: an option is out of its range, or is not for data sets of this kind.
    """
    streamed = is_streamed(config.dataset)
    if config.image_size is not None and not streamed:
        raise InputError(
            f"--image-size={config.image_size} is for folders and large sets in TFDS: the images "
            f"of {config.dataset} have their size, leave it out"
        )
    for name in ("workers", "unreadable"):
        value = getattr(config, name)
        if value != getattr(Config, name) and not streamed:
            raise InputError(
                f"{flag(name)}={value} is for folders and large sets in TFDS, whose images are "
                f"decoded while they are used: leave it out with {config.dataset}"
            )
    if config.workers is not None and not 0 <= config.workers <= _MOST_WORKERS:
        raise InputError(f"--workers={config.workers} is outside 0 to {_MOST_WORKERS}")
    if not 0 <= config.unreadable <= 1:
        raise InputError(f"--unreadable={config.unreadable} is no share: choose it in [0, 1]")
    if not streamed:
        return
    for name in _BY_PIPELINE:
        if getattr(config, name):
            raise _left_to_pipeline(config, name)


def _left_to_pipeline(config: Config, name: str) -> InputError:
    return InputError(
        f"{flag(name)}={getattr(config, name)} does not go with "
        f"--dataset={config.dataset}: images of large sets are cropped and flipped at random as "
        "they are decoded, leave it out"
    )
