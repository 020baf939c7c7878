"""Random numbers of the input pipeline, each a function of what it is for and of nothing else.

A counter-based generator needs no state: its counter is (epoch, image), so a number does not depend
on who draws it, when, or what was drawn before. The raw output of NumPy's bit generators is
promised to stay the same in all versions.

References:
  Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (Philox), SC 2011
"""

from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64, UInt64

_USES = {"order": 0, "crop": 1, "replacement": 2}
_BITS = 64


def uniform_numbers(
    seed: int, use: Literal["crop", "replacement"], epoch: int, image: int, n_numbers: int
) -> Float64[np.ndarray, " n_numbers"]:
    """Draws numbers that are uniform in [0, 1), float64, for one image in one epoch."""
    return (_raw(seed, use, epoch, image, n_numbers) >> np.uint64(11)) * 2.0**-53


def image_order(seed: int, epoch: int, n_images: int) -> Int64[np.ndarray, " n_images"]:
    """The order of the images in an epoch: each index once, all orders equally likely."""
    return np.argsort(_raw(seed, "order", epoch, 0, n_images), kind="stable")


def _raw(
    seed: int, use: str, epoch: int, image: int, n_numbers: int
) -> UInt64[np.ndarray, " n_numbers"]:
    key = np.array([seed % 2**_BITS, _USES[use]], np.uint64)
    counter = np.array([0, 0, image, epoch], np.uint64)  # Drawing counts the first word up.
    return np.random.Philox(key=key, counter=counter).random_raw(n_numbers)
