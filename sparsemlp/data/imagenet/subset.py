"""Some images of a source as a source of their own, and holding images out of a set."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64

from sparsemlp.data.dataset import evenly_spaced
from sparsemlp.data.imagenet.image_set import ImageSet
from sparsemlp.data.imagenet.loading import ImageSource


@dataclass(frozen=True, eq=False)
class Subset:
    """Some images of a source, in its order.

    Attributes:
      source: Where the encoded images are.
      chosen: Which images of it, ascending.
    """

    source: ImageSource
    chosen: Int64[np.ndarray, " n_images"]

    def __len__(self) -> int:
        return len(self.chosen)

    def read(self, index: int) -> tuple[bytes, int]:
        """An encoded image and its label."""
        return self.source.read(int(self.chosen[index]))

    def name(self, index: int) -> str:
        """What a person finds the image by."""
        return self.source.name(int(self.chosen[index]))


def hold_out_images(images: ImageSet, share: float) -> tuple[ImageSet, ImageSource | None]:
    """Takes evenly spaced training images out of a large set, to validate on them.

    Where images are ordered by class, as in a folder, each class loses that share.

    Args:
      images: The image set.
      share: Share of the training images to take, in [0, 1); 0 takes none.

    Returns:
      The set without them, and they; None if there are none.

    Raises:
      InputError: The share is out of its range, or takes no image or all of them.
    """
    if share == 0:
        return images, None
    taken = evenly_spaced(images.n_train, share)
    left, held_out = (Subset(images.train, np.flatnonzero(kept)) for kept in (~taken, taken))
    return replace(images, train=left), held_out
