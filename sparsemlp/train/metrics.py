"""How well a classifier does."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from sparsemlp.errors import InputError


def top_k_correct(
    logits: Float[Array, "batch classes"], labels: Int32[Array, " batch"], k: int
) -> Bool[Array, " batch"]:
    """Whether the label is among the k largest logits of each sample.

    Equal logits rank by class, the lower index first, so constant logits are right for the first
    k classes alone and a collapsed model scores the chance level, not 100%.

    Args:
      logits: one score per class.
      labels: class indices.
      k: number of guesses, at least 1; with k >= classes every guess is right.

    Returns:
      One verdict per sample; false for a row that holds a NaN and for a label outside the
      classes.

    Raises:
      InputError: k is less than 1.
    """
    if k < 1:
        raise InputError(f"k={k} guesses cannot be right: choose k >= 1")
    classes = jnp.arange(logits.shape[1], dtype=jnp.int32)
    label = labels[:, None]
    is_label = classes == label
    true_logit = jnp.max(logits, axis=1, keepdims=True, where=is_label, initial=-jnp.inf)
    ahead = (logits > true_logit) | ((logits == true_logit) & (classes < label))
    valid = jnp.any(is_label, axis=1) & ~jnp.any(jnp.isnan(logits), axis=1)
    return valid & (jnp.sum(ahead, axis=1, dtype=jnp.int32) < k)


def n_correct(
    logits: Float[Array, "batch classes"], labels: Int32[Array, " batch"], k: int
) -> Int32[Array, ""]:
    """How many samples `top_k_correct` finds right, int32."""
    return jnp.sum(top_k_correct(logits, labels, k), dtype=jnp.int32)
