"""The exponential moving average of a model over its training steps, which is evaluated."""

from typing import Any

import jax.numpy as jnp
import optax

Average = dict[str, Any]
"""`params` and `batch_stats`, each as in the state of the run; empty if nothing is averaged."""


def initial_average(params: Any, batch_stats: Any, decay: float) -> Average:
    """The average before the first step: the initial values; empty if the decay is 0."""
    return {"params": params, "batch_stats": batch_stats} if decay else {}


def move_average(average: Average, params: Any, batch_stats: Any, decay: float, step: Any) -> Any:
    """The average after a step: `d * average + (1 - d) * values`, `d = min(decay, (1+t) / (10+t))`.

    The decay grows so that the initial values are forgotten as soon as there are better ones; the
    rule is that of `num_updates` of TensorFlow's `tf.train.ExponentialMovingAverage`. Running
    statistics are averaged as the parameters are, for they belong to them.

    Args:
      average: before the step; if it is empty it stays so.
      params: after the step.
      batch_stats: after the step.
      decay: what the decay grows to, in `[0, 1)`.
      step: t, the steps before this one, int32.
    """
    if not average:
        return average
    t = jnp.asarray(step).astype(jnp.float32)
    own = jnp.minimum(jnp.float32(decay), (1 + t) / (10 + t))
    values = {"params": params, "batch_stats": batch_stats}
    return optax.incremental_update(values, average, 1 - own)
