"""The models whose training steps are timed on a GPU, and the memory that a step needs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from benchmarks.residuals import saved_bytes

from sparsemlp import (
    ResMLP,
    resmlp_b24,
    resmlp_cifar10,
    resmlp_imagenet,
    resmlp_s12,
    resmlp_s24,
    select_masks,
)
from sparsemlp.train.losses import cross_entropy

RATIO = 0.8


def _tiny(**changes: Any) -> ResMLP:
    return ResMLP(image_size=32, patch_size=8, dim=32, depth=1, expansion=2, **changes)


class Case(NamedTuple):
    """A model as it is timed.

    Attributes:
      make: makes the model.
      batch: images in a step.
      block: of the mask.
      with_tokens: whether the token mixing, whose sides the block then divides, is masked beside
        the channel mixing.
    """

    make: Callable[..., ResMLP]
    batch: int
    block: tuple[int, int]
    with_tokens: bool


MODELS = {
    "resmlp_b24": Case(resmlp_b24, 64, (64, 64), with_tokens=False),
    "resmlp_imagenet": Case(resmlp_imagenet, 256, (64, 64), with_tokens=True),
    "resmlp_s24": Case(resmlp_s24, 256, (64, 64), with_tokens=False),
    "resmlp_s12": Case(resmlp_s12, 256, (64, 64), with_tokens=False),
    "resmlp_cifar10": Case(resmlp_cifar10, 128, (32, 32), with_tokens=True),
    "tiny": Case(_tiny, 2, (32, 32), with_tokens=False),
}
"""By name, the ones that tell most first."""


def loss_of(model: ResMLP) -> Callable[[Any, Any], Any]:
    """The loss of parameters and images, whose masks are selected anew."""

    def loss(params: Any, images: Any) -> Any:
        masks = select_masks(params, model.plan, model.engine)
        logits: Any = model.apply({"params": params, "masks": masks}, images, train=True)
        targets = jax.nn.one_hot(jnp.zeros(len(logits), int), logits.shape[-1])
        return jnp.mean(cross_entropy(logits, targets))

    return loss


def images_of(model: ResMLP, batch: int) -> tuple[int, ...]:
    """The shape of so many images."""
    return batch, model.image_size, model.image_size, model.channels


def fitting_batch(model: ResMLP, batch: int, limit: int | None) -> int:
    """The largest batch of so many images, halved as often as the bytes of the device ask.

    A quarter of them is left for what `needed_bytes` does not count.
    """
    while limit is not None and batch > 1 and needed_bytes(model, batch) > 0.75 * limit:
        batch //= 2
    return batch


def needed_bytes(model: ResMLP, batch: int) -> int:
    """What the forward pass keeps for the backward pass, parameters, gradients, AdamW's moments."""
    images = jax.ShapeDtypeStruct(images_of(model, batch), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    return saved_bytes(loss_of(model), params, images) + 5 * 4 * n_params
