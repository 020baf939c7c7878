"""The forward and backward pass of a batch, on one device or on a mesh of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sparsemlp.exchange import sum_gradients
from sparsemlp.losses import cross_entropy
from sparsemlp.parallel import on_every_device, usable
from sparsemlp.plan import Masks
from sparsemlp.train_state import Program
from sparsemlp.varying import AXIS


def loss_and_gradients(
    program: Program,
    params: Any,
    masks: Masks,
    batch_stats: Any,
    inputs: Float[Array, "batch height width channels"],
    targets: Float[Array, "batch classes"],
    rngs: dict[str, PRNGKeyArray],
) -> tuple[Array, Array, Any, Any]:
    """The mean loss of a batch, its logits, the batch statistics after it, and the gradients.

    On a mesh of devices that divide the batch each takes its part of it, and the gradients are
    summed as `exchange` does.
    """

    def own_part(
        params: Any, masks: Masks, inputs: Array, targets: Array, rngs: Any
    ) -> tuple[tuple[Array, tuple[Array, Any]], Any]:
        def loss(params: Any) -> tuple[Array, tuple[Array, Any]]:
            variables = {"params": params, "masks": masks, "batch_stats": batch_stats}
            logits, changed = program.train_logits(variables, inputs, rngs)
            return jnp.sum(cross_entropy(logits, targets)) / n_images, (logits, changed)

        return jax.value_and_grad(loss, has_aux=True)(params)

    n_images = inputs.shape[0]
    mesh = usable(program.mesh, n_images)
    if mesh is None:
        (loss, (logits, changed)), gradients = own_part(params, masks, inputs, targets, rngs)
        return loss, logits, changed, gradients

    def on_device(params: Any, masks: Masks, rngs: Any, inputs: Array, targets: Array) -> Any:
        (loss, (logits, _)), gradients = own_part(params, masks, inputs, targets, rngs)
        summed = sum_gradients(gradients, masks, program.model.plan, AXIS)
        return (jax.lax.psum(loss, AXIS), summed), logits

    (loss, gradients), logits = on_every_device(
        mesh, on_device, whole=(params, masks, rngs), parts=(inputs, targets)
    )
    return loss, logits, batch_stats, gradients


def test_logits(
    program: Program, params: Any, masks: Masks, batch_stats: Any, inputs: Array
) -> Array:
    """The logits of test images; each device of a mesh that divides them computes its part."""

    def on_device(params: Any, masks: Masks, batch_stats: Any, inputs: Array) -> Any:
        variables = {"params": params, "masks": masks, "batch_stats": batch_stats}
        return (), program.test_logits(variables, inputs)

    mesh = usable(program.mesh, inputs.shape[0])
    if mesh is None:
        return on_device(params, masks, batch_stats, inputs)[1]
    whole = (params, masks, batch_stats)
    return on_every_device(mesh, on_device, whole=whole, parts=(inputs,))[1]
