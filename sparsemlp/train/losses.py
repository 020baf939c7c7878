"""The loss of a classifier."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Float32


def cross_entropy(
    logits: Float[Array, "batch classes"], targets: Float[Array, "batch classes"]
) -> Float32[Array, " batch"]:
    """Cross entropy of each sample against a distribution over the classes.

    Args:
      logits: unnormalised log probabilities, of any floating dtype.
      targets: the distribution that each row should have (one-hot, smoothed or mixed).

    Returns:
      `-sum(targets * log_softmax(logits))` in nats for each sample, computed in float32.
    """
    return optax.softmax_cross_entropy(logits.astype(jnp.float32), targets.astype(jnp.float32))
