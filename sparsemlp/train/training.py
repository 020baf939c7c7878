"""The compiled programs of training: one step, and many of them in one call."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float32, Int, Key, UInt8

from sparsemlp.distributed.parallel import join, split, usable
from sparsemlp.dropped_weights import decay_dropped, reset_returned
from sparsemlp.dynamics import remember_gradients
from sparsemlp.mask_trees import flatten_masks
from sparsemlp.train.augment import augment, batch_lambda
from sparsemlp.train.averaging import move_average
from sparsemlp.train.forward_backward import loss_and_gradients
from sparsemlp.train.metrics import n_correct
from sparsemlp.train.step_masks import MasksOf, step_masks
from sparsemlp.train.train_state import Program, TrainState, stream_key


def train_step(
    program: Program,
    state: TrainState,
    images: UInt8[Array, "batch height width channels"],
    labels: Int[Array, " batch"],
    *,
    masked: bool,
    masks_of: MasksOf | None = None,
    lam: Float32[Array, ""] | None = None,
) -> TrainState:
    """One step of training on one batch.

    Masks are selected anew from the parameters of this step.

    Args:
      program: what to train and how.
      state: the state before the step.
      images: raw pixels.
      labels: class indices, int32.
      masked: whether weights are masked; the plan's other rules hold from the first step.
      masks_of: what selects the masks from the parameters alone; by default the model's plan and
        the dynamics do.
      lam: of this step's mixup or CutMix, if `lambdas` drew it before.

    Returns:
      The state after the step.
    """
    augment_key, drop_path_key = _step_keys(program, state.step)
    inputs, targets = augment(
        augment_key,
        images,
        labels,
        augmentation=program.augmentation,
        n_classes=program.model.n_classes,
        mean=program.mean,
        std=program.std,
        lam=lam,
    )
    masks, memory = step_masks(
        program, state.params, state.memory, masked=masked, masks_of=masks_of
    )
    rngs = {
        "drop_path": drop_path_key,
        "gradient": stream_key(program.seed, "gradient", state.step),
    }
    loss, logits, batch_stats, gradients = loss_and_gradients(
        program, state.params, masks, state.batch_stats, inputs, targets, rngs
    )
    plan, dynamics = program.model.plan, program.dynamics
    memory = remember_gradients(state.params, gradients, plan, dynamics, memory)
    gradients = decay_dropped(gradients, state.params, masks, dynamics.dropped_decay)
    optimizer = state.optimizer
    if masked and dynamics.moments == "reset":
        before = state.memory["kept"]
        optimizer = reset_returned(program.optimizer, optimizer, state.params, masks, before)
    updates, optimizer = program.optimizer.update(gradients, optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    likeliest = jnp.argmax(targets, axis=-1).astype(jnp.int32)
    batch = images.shape[0]
    totals = {
        "loss": state.totals["loss"] + loss * batch,
        "top1": state.totals["top1"] + n_correct(logits, likeliest, 1),
        "top5": state.totals["top5"] + n_correct(logits, likeliest, 5),
        "images": state.totals["images"] + batch,
    }
    kept = {path: mask.grid().reshape(-1) for path, mask in flatten_masks(masks).items()}
    activity = {
        path: count + kept[path].astype(jnp.int32) if masked else count
        for path, count in state.activity.items()
    }
    return TrainState(
        step=state.step + 1,
        params=params,
        batch_stats=batch_stats,
        optimizer=optimizer,
        totals=totals,
        activity=activity,
        last_kept=state.last_kept,
        memory=memory,
        average=move_average(state.average, params, batch_stats, program.ema, state.step),
    )


def _step_keys(program: Program, step: Int[Array, ""]) -> Key[Array, "2"]:
    """The keys of a step's augmentation and of its drop path."""
    return jax.random.split(stream_key(program.seed, "step", step))


def lambdas(
    program: Program, first: Int[Array, ""], n_steps: int
) -> Float32[Array, " n_steps"] | None:
    """The lambda of mixup or CutMix of each of some steps; None if nothing is mixed.

    Args:
      program: what to train and how.
      first: number of the first step.
      n_steps: how many.
    """
    if not program.augmentation.mixes:
        return None

    def of_step(step: Array) -> Array:
        return batch_lambda(_step_keys(program, step)[0], program.augmentation)

    return jax.vmap(of_step)(first + jnp.arange(n_steps, dtype=first.dtype))


def many_steps(
    program: Program,
    state: TrainState,
    images: UInt8[Array, "n height width channels"],
    labels: Int[Array, " n"],
    order: Int[Array, " n"],
    start: Int[Array, ""],
    n_steps: Int[Array, ""],
    *,
    batch_size: int,
    masked: bool,
    masks_of: MasksOf | None = None,
) -> tuple[TrainState, Bool[Array, ""]]:
    """Many steps in one loop; the number of steps is data.

    Args:
      program: what to train and how.
      state: the state before the first step; `train_steps` is donated it.
      images: all training images.
      labels: their labels, int32.
      order: the order of this epoch.
      start: index into `order` of the first image of the first step, int32.
      n_steps: how many steps, int32.
      batch_size: images in a step.
      masked: whether weights are masked.
      masks_of: as for `train_step`.

    Returns:
      The state after the last step, and whether its loss and parameters are all finite.
    """
    lams = lambdas(program, state.step, order.size // batch_size)

    def body(index: Array, state: TrainState) -> TrainState:
        chosen = jax.lax.dynamic_slice_in_dim(order, start + index * batch_size, batch_size)
        batch = split((images[chosen], labels[chosen]), usable(program.mesh, batch_size))
        lam = None if lams is None else lams[index]
        return train_step(program, state, *batch, masked=masked, masks_of=masks_of, lam=lam)

    state = join(jax.lax.fori_loop(0, n_steps, body, state), program.mesh)
    return state, join(is_healthy(state), program.mesh)


def is_healthy(state: TrainState) -> Bool[Array, ""]:
    """Whether the loss of the epoch so far and all parameters are finite."""
    leaves = [state.totals["loss"], *jax.tree.leaves(state.params)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


train_steps = jax.jit(
    many_steps,
    static_argnums=0,
    static_argnames=("batch_size", "masked", "masks_of"),
    donate_argnums=1,
)
"""`many_steps`, compiled."""
