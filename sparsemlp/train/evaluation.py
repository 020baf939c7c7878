"""Evaluation: how many guesses of a model are right, with masks of the weights it evaluates."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8

from sparsemlp.distributed.parallel import join
from sparsemlp.dynamics import Memory
from sparsemlp.mask_trees import flatten_masks
from sparsemlp.planned_kernels import block_counts, masked_kernels
from sparsemlp.train.augment import normalize
from sparsemlp.train.forward_backward import evaluation_logits
from sparsemlp.train.losses import cross_entropy
from sparsemlp.train.metrics import n_correct
from sparsemlp.train.step_masks import MasksOf, step_masks
from sparsemlp.train.train_state import Program


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

    Where masks remember (means of scores, scores of gradients), what they remember is that of the
    run, also if the parameters are an average of it.

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
    masks, _ = step_masks(program, params, memory, masked=masked, masks_of=masks_of)

    def count(batch: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        images, labels = batch
        inputs = normalize(images, program.mean, program.std)
        logits = evaluation_logits(program, params, masks, batch_stats, inputs)
        loss = cross_entropy(logits, jax.nn.one_hot(labels, program.model.n_classes))
        return (
            n_correct(logits, labels, 1),
            n_correct(logits, labels, 5),
            jnp.sum(jnp.where(labels >= 0, loss, 0)),
        )

    top1, top5, loss = jax.lax.map(count, (images, labels))
    found = flatten_masks(masks)
    squares = [
        jnp.sum(jnp.where(mask.dense(), 0.0, jnp.square(kernel.reshape(mask.kernel_shape))))
        for path, kernel, _ in masked_kernels(params, program.model.plan)
        if (mask := found.get(path)) is not None
    ]
    evaluation = Evaluation(
        top1=jnp.sum(top1),
        top5=jnp.sum(top5),
        loss=jnp.sum(loss),
        images=jnp.sum(labels >= 0, dtype=jnp.int32),
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
