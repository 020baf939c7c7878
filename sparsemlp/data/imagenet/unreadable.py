"""Images that cannot be read: each is reported once, and too many are an error."""

import warnings
from typing import NamedTuple

from sparsemlp.errors import InputError

LARGEST_SHARE = 0.001
_NAMED = 3


class Unreadable(NamedTuple):
    """An image that cannot be read.

    Attributes:
      name: What a person finds it by.
      reason: Why, in a line.
    """

    name: str
    reason: str


class UnreadableCount:
    """Counts the images of an epoch that cannot be read.

    Attributes:
      count: So many in the current epoch.

    Args:
      n_images: Images in an epoch.
      largest_share: The share of them up to which a run goes on.
      replaced: Whether another image takes the place of each.
      epoch: The epoch to begin in, from 0.
      count: So many were counted in it before.

    Raises:
      InputError: A share outside [0, 1].
    """

    def __init__(
        self,
        n_images: int,
        largest_share: float,
        *,
        replaced: bool,
        epoch: int = 0,
        count: int = 0,
    ) -> None:
        if not 0 <= largest_share <= 1:
            raise InputError(
                f"a share of {largest_share} unreadable images is none: choose it in [0, 1]"
            )
        self.count = count
        self._epoch = epoch
        self._n_images = n_images
        self._largest_share = largest_share
        self._what_happens = "replaced by another image" if replaced else "left out"
        self._reasons: dict[str, str] = {}

    def add(self, epoch: int, images: tuple[Unreadable, ...]) -> None:
        """Counts images of an epoch, with a warning for each that was not reported before.

        Raises:
          InputError: They are too many.
        """
        if epoch != self._epoch:
            self._epoch, self.count = epoch, 0
        self.count += len(images)
        for name, reason in images:
            if name not in self._reasons:
                self._reasons[name] = reason
                warnings.warn(
                    f"{name} cannot be read ({reason}): {self._what_happens}", stacklevel=3
                )
        if self.count > self._largest_share * self._n_images:
            first = list(self._reasons.items())[:_NAMED]
            raise InputError(
                f"{self.count} of {self._n_images} images cannot be read, more than the share of "
                f"{self._largest_share:g} that is allowed: "
                + ", ".join(f"{name} ({reason})" for name, reason in first)
                + "; repair or remove them, or allow a larger share by --unreadable"
            )
