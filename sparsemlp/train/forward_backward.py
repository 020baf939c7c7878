"""The forward and backward pass of a batch, on one device or on a mesh of them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sparsemlp.distributed.exchange import sum_gradients
from sparsemlp.distributed.parallel import on_every_device, usable
from sparsemlp.errors import InputError
from sparsemlp.mask_trees import Masks
from sparsemlp.train.accumulation import sum_over_parts
from sparsemlp.train.losses import cross_entropy
from sparsemlp.train.train_state import Program
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

    Only a batch that is computed whole on one device has batch statistics.

    On a mesh of devices that divide the batch each takes its part of it, and the gradients are
    summed as `exchange` does. A device computes `program.images_at_once` of its images at a time;
    gradients are summed over these parts first and exchanged once. Masks, gradients and what is
    drawn at random are then those of the whole batch to rounding, but a rule that prunes blocks of
    activations finds the largest of what is computed at once, as it does on several devices.

    Args:
      program: what is trained.
      params: parameters of the model.
      masks: of its masked kernels; empty is dense.
      batch_stats: running statistics of its batch normalisations; empty if it has none.
      inputs: normalised images.
      targets: the distribution over the classes that each should be given.
      rngs: keys of what the model draws.

    Raises:
      InputError: the model has batch statistics, and the batch is computed in parts or divided
        among devices, which would each have statistics of their own.
    """
    n_images = inputs.shape[0]
    at_once = program.images_at_once(n_images)
    mesh = usable(program.mesh, n_images)
    if batch_stats and (mesh is not None or at_once < n_images):
        raise InputError(
            f"the model normalises by the statistics of its batch, {n_images} images, and they are "
            "divided among devices or computed in parts: use one device and whole batches"
        )

    def of_images(
        params: Any, masks: Masks, rngs: Any, inputs: Array, targets: Array
    ) -> tuple[tuple[Array, Any, Any], Array]:
        def loss(params: Any) -> tuple[Array, tuple[Array, Any]]:
            variables = {"params": params, "masks": masks, "batch_stats": batch_stats}
            logits, changed = program.train_logits(variables, inputs, rngs)
            return jnp.sum(cross_entropy(logits, targets)) / n_images, (logits, changed)

        (total, (logits, changed)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return (total, gradients, changed), logits

    def own_part(
        params: Any, masks: Masks, rngs: Any, inputs: Array, targets: Array
    ) -> tuple[tuple[Array, Any, Any], Array]:
        function = functools.partial(of_images, params, masks, rngs)
        start = jnp.float32(0), jax.tree.map(jnp.zeros_like, params), {}
        return sum_over_parts(function, (inputs, targets), start, at_once)

    if mesh is None:
        found, logits = own_part(params, masks, rngs, inputs, targets)
        loss, gradients, changed = found
        return loss, logits, changed, gradients

    def on_device(*operands: Any) -> Any:
        (loss, gradients, _), logits = own_part(*operands)
        summed = sum_gradients(gradients, operands[1], program.model.plan, AXIS)
        return (jax.lax.psum(loss, AXIS), summed), logits

    (loss, gradients), logits = on_every_device(
        mesh, on_device, whole=(params, masks, rngs), parts=(inputs, targets)
    )
    return loss, logits, batch_stats, gradients


def evaluation_logits(
    program: Program, params: Any, masks: Masks, batch_stats: Any, inputs: Array
) -> Array:
    """The logits of test images; each device of a mesh that divides them computes its part."""

    def on_device(params: Any, masks: Masks, batch_stats: Any, inputs: Array) -> Any:
        variables = {"params": params, "masks": masks, "batch_stats": batch_stats}
        return (), program.evaluation_logits(variables, inputs)

    mesh = usable(program.mesh, inputs.shape[0])
    if mesh is None:
        return on_device(params, masks, batch_stats, inputs)[1]
    whole = (params, masks, batch_stats)
    return on_every_device(mesh, on_device, whole=whole, parts=(inputs,))[1]
