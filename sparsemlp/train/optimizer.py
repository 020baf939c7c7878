"""Adam and SGD with coupled L2, and AdamW."""

import math
from typing import Any

import jax
import optax

from sparsemlp.errors import InputError
from sparsemlp.train.learning_rates import RateOfStep


def decayed(params: Any) -> Any:
    """Which parameters L2 applies to: all but biases and others of rank 0 or 1.

    Args:
      params: a pytree of arrays.

    Returns:
      The same tree with a bool for each array.
    """
    return jax.tree.map(lambda value: value.ndim > 1, params)


def adam_with_l2(rate_of_step: RateOfStep, *, weight_decay: float) -> optax.GradientTransformation:
    """Adam whose gradient holds the weight decay, as in `torch.optim.Adam`, not as in AdamW.

    `weight_decay * value` is added to the gradient before the moments are taken. A weight whose
    loss gradient is zero, as a dropped block's, therefore still moves, by about the learning
    rate at each step: Adam normalises whatever gradient is left.

    Args:
      rate_of_step: learning rate of a step, see `learning_rates`.
      weight_decay: factor of the L2 term's gradient, for the parameters of `decayed`.

    Returns:
      A gradient transformation whose `update` needs the parameters.

    Raises:
      InputError: `weight_decay` is negative or not finite.

    References:
      Kingma and Ba, Adam, https://arxiv.org/abs/1412.6980, algorithm 1
    """
    return optax.chain(
        _l2(weight_decay),
        _with_standard_promotion(optax.scale_by_adam()),
        optax.scale_by_learning_rate(rate_of_step),
    )


def adamw(rate_of_step: RateOfStep, *, weight_decay: float) -> optax.GradientTransformation:
    """Adam with decoupled weight decay: a weight shrinks by `rate * weight_decay` of itself a step.

    A dropped block, whose loss gradient is zero, therefore only shrinks, and the moments know
    nothing of the decay.

    Args:
      rate_of_step: learning rate of a step, see `learning_rates`.
      weight_decay: share of the decay, for the parameters of `decayed`.

    Returns:
      A gradient transformation whose `update` needs the parameters.

    Raises:
      InputError: `weight_decay` is negative or not finite.

    References:
      Loshchilov and Hutter, Decoupled Weight Decay Regularization,
      https://arxiv.org/abs/1711.05101, algorithm 2
    """
    _check_decay(weight_decay)
    return _with_standard_promotion(
        optax.adamw(rate_of_step, weight_decay=weight_decay, mask=decayed)
    )


def sgd_with_l2(rate_of_step: RateOfStep, *, weight_decay: float) -> optax.GradientTransformation:
    """Stochastic gradient descent with momentum 0.9 and weight decay, as in `torch.optim.SGD`.

    Args:
      rate_of_step: learning rate of a step, see `learning_rates`.
      weight_decay: factor of the L2 term's gradient, for the parameters of `decayed`.

    Returns:
      A gradient transformation whose `update` needs the parameters.

    Raises:
      InputError: `weight_decay` is negative or not finite.
    """
    return optax.chain(
        _l2(weight_decay),
        optax.trace(decay=0.9),
        optax.scale_by_learning_rate(rate_of_step),
    )


def _l2(weight_decay: float) -> optax.GradientTransformation:
    _check_decay(weight_decay)
    return optax.add_decayed_weights(weight_decay, mask=decayed)


def _check_decay(weight_decay: float) -> None:
    if not 0 <= weight_decay < math.inf:
        raise InputError(
            f"weight_decay={weight_decay} would not shrink weights: choose a finite number >= 0"
        )


def _with_standard_promotion(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Let a caller use strict dtype promotion, although optax raises a float to an int step."""

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return inner.update(updates, state, params)

    return optax.GradientTransformation(inner.init, update)
