"""The compiled programs: many training steps in one call, and evaluation."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, UInt8

from sparsemlp.augment import augment, normalize
from sparsemlp.averaging import move_average
from sparsemlp.dynamics import (
    Memory,
    decay_dropped,
    remember_gradients,
    remember_unmasked,
    reset_returned,
    select_dynamic_masks,
)
from sparsemlp.forward_backward import loss_and_gradients, test_logits
from sparsemlp.losses import cross_entropy
from sparsemlp.metrics import top_k_correct
from sparsemlp.parallel import join, split, usable
from sparsemlp.plan import Masks, block_counts, flatten_masks
from sparsemlp.train_state import Program, TrainState, stream_key

MasksOf = Callable[[Any], Masks]
"""What selects the masks of parameters."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("top1", "top5", "loss", "images", "dropped_norm", "kept"),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """What one evaluation found.

    Attributes:
      top1: int32, images whose label has the largest logit.
      top5: int32, images whose label is among the five largest.
      loss: float32, sum over the images of the cross entropy with their labels, unsmoothed.
      images: int32, how many images have a label.
      dropped_norm: float32, Frobenius norm of all dropped weights together.
      kept: for each masked kernel bool `[n_blocks]`; all, if the evaluation was dense.
    """

    top1: Any
    top5: Any
    loss: Any
    images: Any
    dropped_norm: Any
    kept: dict[str, Any]

    def with_batch(self, other: "Evaluation") -> "Evaluation":
        """This evaluation and that of further images with the same parameters."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("top1", "top5", "loss", "images")
        }
        return dataclasses.replace(self, **sums)


def train_step(
    program: Program,
    state: TrainState,
    images: UInt8[Array, "batch height width channels"],
    labels: Int[Array, " batch"],
    *,
    masked: bool,
    masks_of: MasksOf | None = None,
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

    Returns:
      The state after the step.
    """
    augment_key, drop_path_key = jax.random.split(stream_key(program.seed, "step", state.step))
    inputs, targets = augment(
        augment_key,
        images,
        labels,
        augmentation=program.augmentation,
        n_classes=program.n_classes,
        mean=program.mean,
        std=program.std,
    )
    masks, memory = _masks_of_step(program, state, masked=masked, masks_of=masks_of)

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
        "top1": state.totals["top1"] + _count(top_k_correct(logits, likeliest, 1)),
        "top5": state.totals["top5"] + _count(top_k_correct(logits, likeliest, 5)),
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


def _masks_of_step(
    program: Program, state: TrainState, *, masked: bool, masks_of: MasksOf | None
) -> tuple[Masks, Memory]:
    """The masks of one training step, and what the next one has to know of this selection."""
    plan, dynamics = program.model.plan, program.dynamics
    if not masked:
        return {}, remember_unmasked(state.params, plan, dynamics, state.memory)
    if masks_of is not None:
        return masks_of(state.params), state.memory
    return select_dynamic_masks(
        state.params,
        plan,
        dynamics,
        state.memory,
        frozen=program.frozen,
        engine=program.model.engine,
    )


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

    def body(index: Array, state: TrainState) -> TrainState:
        chosen = jax.lax.dynamic_slice_in_dim(order, start + index * batch_size, batch_size)
        batch = split((images[chosen], labels[chosen]), usable(program.mesh, batch_size))
        return train_step(program, state, *batch, masked=masked, masks_of=masks_of)

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


def count_correct(
    program: Program,
    params: Any,
    batch_stats: Any,
    memory: Memory,
    images: UInt8[Array, "batches batch height width channels"],
    labels: Int[Array, "batches batch"],
    *,
    masked: bool,
    masks_of: MasksOf | None = None,
) -> Evaluation:
    """Counts the right guesses, with masks selected from the parameters it evaluates.

    Args:
      program: what to evaluate.
      params: parameters of the model.
      batch_stats: running statistics of its batch normalisations; empty if it has none.
      memory: what the selection of masks remembers.
      images: raw pixels, in batches.
      labels: class indices, int32; -1 marks a row that does not count.
      masked: whether weights are masked.
      masks_of: as for `train_step`.
    """
    masks: Masks = {}
    if masked and masks_of is not None:
        masks = masks_of(params)
    elif masked:
        masks, _ = select_dynamic_masks(
            params,
            program.model.plan,
            program.dynamics,
            memory,
            frozen=program.frozen,
            engine=program.model.engine,
        )

    def count(batch: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        images, labels = batch
        inputs = normalize(images, program.mean, program.std)
        logits = test_logits(program, params, masks, batch_stats, inputs)
        loss = cross_entropy(logits, jax.nn.one_hot(labels, program.n_classes))
        return (
            _count(top_k_correct(logits, labels, 1)),
            _count(top_k_correct(logits, labels, 5)),
            jnp.sum(jnp.where(labels >= 0, loss, 0)),
        )

    top1, top5, loss = jax.lax.map(count, (images, labels))
    found = flatten_masks(masks)
    squares = [
        jnp.sum(
            jnp.where(mask.dense(), 0.0, jnp.square(_at(params, path).reshape(mask.kernel_shape)))
        )
        for path, mask in found.items()
    ]
    evaluation = Evaluation(
        top1=jnp.sum(top1),
        top5=jnp.sum(top5),
        loss=jnp.sum(loss),
        images=_count(labels.reshape(-1) >= 0),
        dropped_norm=jnp.sqrt(sum(squares, jnp.float32(0))),
        kept={
            path: found[path].grid().reshape(-1) if masked else jnp.ones(n, bool)
            for path, n in block_counts(params, program.model.plan).items()
        },
    )
    return join(evaluation, program.mesh)


evaluate = jax.jit(count_correct, static_argnums=0, static_argnames=("masked", "masks_of"))
"""`count_correct`, compiled."""


def evaluation_batches(
    images: UInt8[Any, "n height width channels"], labels: Int[Any, " n"], batch_size: int
) -> tuple[UInt8[Array, "batches batch height width channels"], Int[Array, "batches batch"]]:
    """Cuts a test set into batches for `evaluate`, the last filled up with rows labelled -1."""
    n_batches = -(-images.shape[0] // batch_size)
    missing = n_batches * batch_size - images.shape[0]
    images = jnp.pad(jnp.asarray(images), ((0, missing), (0, 0), (0, 0), (0, 0)))
    labels = jnp.pad(jnp.asarray(labels), (0, missing), constant_values=-1)
    return (
        images.reshape(n_batches, batch_size, *images.shape[1:]),
        labels.reshape(n_batches, batch_size),
    )


def _count(verdicts: Bool[Array, " batch"]) -> Int[Array, ""]:
    return jnp.sum(verdicts, dtype=jnp.int32)


def _at(tree: Mapping[str, Any], path: str) -> Array:
    node: Any = tree
    for key in path.split("/"):
        node = node[key]
    return node
