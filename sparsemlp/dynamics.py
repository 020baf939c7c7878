"""How masks move from step to step, beyond "the k largest blocks of this moment".

Each part is a small pure function of the parameters and of a memory, a pytree that is part of the
training state and holds only what the chosen options need.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from sparsemlp.blocks import n_kept_blocks
from sparsemlp.errors import InputError, require_known
from sparsemlp.mask_trees import Masks, largest_by_rule, list_masks, mask_tree, masks_of
from sparsemlp.plan import Plan
from sparsemlp.planned_kernels import block_counts, masked_kernels
from sparsemlp.selection import GRADIENT_SCORE, block_scores, cut, l2

Moments = Literal["keep", "reset"]
Memory = dict[str, dict[str, Any]]
"""`scores`: for each masked kernel float32 `[n_blocks]`, the scores that the last step left;
`kept`: for each bool `[n_blocks]`, the blocks that the last masked step kept. Either is there only
if an option needs it."""


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """Options of moving masks; the defaults are the thesis' way, without memory.

    Attributes:
      score_decay: share of the last step's scores in those of this step, in `[0, 1)`: an
        exponential mean over the steps.
      hysteresis: a dropped block returns only if its score reaches a kept one's raised by this
        share of that one's size; at equality the lower id is kept, as without it, and zeros are
        not raised.
      dropped_decay: factor of the dropped weights that is added to their gradient, SR-STE's
        decay (Zhou et al., arXiv 2102.04010, equation 8); with Adam it is normalised like any
        other gradient.
      moments: what happens to the optimizer's moments of a block that returns: `keep` leaves
        them as the steps without a loss gradient left them, `reset` makes them zero. Adam's first
        update of such a block is then `(1 - b1) / sqrt(1 - b2)` learning rates, 3.2 at its
        defaults, since its correction for young moments counts the steps of the run.
      freezes: whether the mask stays from some step on, so that it must be remembered.
    """

    score_decay: float = 0.0
    hysteresis: float = 0.0
    dropped_decay: float = 0.0
    moments: Moments = "keep"
    freezes: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.score_decay < 1:
            raise InputError(
                f"score decay {self.score_decay} is outside [0, 1): it is the share of the last "
                "step's scores, 0 for none"
            )
        for name, value in (
            ("hysteresis", self.hysteresis),
            ("dropped decay", self.dropped_decay),
        ):
            if not 0 <= value < math.inf:
                raise InputError(f"{name} {value} must be a finite number, at least 0")
        require_known(f"moments {self.moments!r}", self.moments, get_args(Moments))

    @property
    def remembers_kept(self) -> bool:
        """Whether the blocks that the last step kept must be known."""
        return self.hysteresis > 0 or self.moments == "reset" or self.freezes


def initial_memory(params: Mapping[str, Any], plan: Plan, dynamics: Dynamics) -> Memory:
    """The memory before the first step: scores of the initial weights, every block kept.

    Where gradients rank the blocks, none is known yet: l2 norms rank them, by scores below zero,
    which the first gradients replace.
    """
    memory: Memory = {}
    kernels = list(masked_kernels(params, plan))
    if _remembers_scores(plan, params, dynamics):
        memory["scores"] = {
            path: _flat(
                -1 / jnp.maximum(block_scores(kernel, rule.block, l2, path), 1e-30)
                if _by_gradient(rule)
                else block_scores(kernel, rule.block, rule.score, path)
            )
            for path, kernel, rule in kernels
        }
    if dynamics.remembers_kept:
        memory["kept"] = {
            path: jnp.ones(n_blocks, bool) for path, n_blocks in block_counts(params, plan).items()
        }
    return memory


def select_dynamic_masks(
    params: Mapping[str, Any],
    plan: Plan,
    dynamics: Dynamics,
    memory: Memory,
    *,
    frozen: bool,
    engine: str = "auto",
) -> tuple[Masks, Memory]:
    """Selects the kept blocks of every masked kernel, and remembers what the next step needs.

    Without options of `dynamics` these are the masks of `mask_trees.select_masks`.

    Args:
      params: nested mapping of arrays.
      plan: which parameter gets which rules.
      dynamics: the options.
      memory: what the step before remembered, or `initial_memory`.
      frozen: whether the blocks stay those of the step before, which kept as many; not before the
        first step with masks.
      engine: who scores the blocks, as `selection.block_scores`.

    Returns:
      The masks, and the memory with the blocks that they keep. Scores that are ranked by
      gradients are left to `remember_gradients`.

    Raises:
      InputError: frozen masks whose last step was not remembered, or a memory that lacks what the
        options need.
    """
    if frozen and "kept" not in memory:
        raise InputError(
            "frozen masks are those that the step before remembered, and this memory has none: "
            "make it with Dynamics(freezes=True)"
        )
    _check_memory(dynamics, memory)
    kernels = list(masked_kernels(params, plan))
    found = dict(memory)
    if frozen:
        kept = {path: _kept_ids(memory["kept"][path], rule.ratio) for path, _, rule in kernels}
    else:
        scores = _scores_of_step(params, plan, dynamics, memory, engine)
        if "scores" in memory:
            found["scores"] = scores
        if dynamics.hysteresis > 0:
            before = memory["kept"]
            scores = {
                path: _favoured(score, before[path], dynamics.hysteresis)
                for path, score in scores.items()
            }
        kept = largest_by_rule(kernels, scores)
    masks = masks_of(kernels, kept)
    if "kept" in memory:
        found["kept"] = {path: mask.grid().reshape(-1) for path, mask in masks.items()}
    return mask_tree(list_masks(masks, engine)), found


def remember_unmasked(
    params: Mapping[str, Any],
    plan: Plan,
    dynamics: Dynamics,
    memory: Memory,
    engine: str = "auto",
) -> Memory:
    """The memory after a step with dense weights: scores go on, kept blocks stay."""
    if "scores" not in memory:
        return memory
    return memory | {"scores": _scores_of_step(params, plan, dynamics, memory, engine)}


def remember_gradients(
    params: Mapping[str, Any],
    gradients: Mapping[str, Any],
    plan: Plan,
    dynamics: Dynamics,
    memory: Memory,
) -> Memory:
    """The memory with the scores of a step that rank by gradients.

    A block's score is `|sum(weight * gradient)|` over its weights, to first order how much the
    loss of this batch changes if the block is set to zero (Molchanov et al., arXiv 1906.10771,
    for single weights), and with `score_decay` the exponential mean of it.

    Args:
      params: the parameters of the step.
      gradients: of the loss, without weight decay, the same tree.
      plan: which parameter gets which rules.
      dynamics: the options.
      memory: as `select_dynamic_masks` returned it.
    """
    if "scores" not in memory:
        return memory
    scores = dict(memory["scores"])
    of_path = {path: kernel for path, kernel, _ in masked_kernels(gradients, plan)}
    for path, kernel, rule in masked_kernels(params, plan):
        if _by_gradient(rule):
            product = (kernel * of_path[path]).astype(jnp.float32)
            score = _flat(jnp.abs(jnp.sum(cut(product, rule.block), axis=(-2, -1))))
            before = scores[path]
            mean = _mean(before, score, dynamics.score_decay)
            scores[path] = jnp.where(before < 0, score, mean)
    return memory | {"scores": scores}


def _check_memory(dynamics: Dynamics, memory: Memory) -> None:
    """Raises InputError unless a memory has what the options need of the step before."""
    for needed, name, what in (
        (dynamics.hysteresis > 0, "kept", "hysteresis favours the blocks that it kept"),
        (dynamics.moments == "reset", "kept", "moments are reset of the blocks that it dropped"),
        (dynamics.score_decay > 0, "scores", "score decay goes on with its scores"),
    ):
        if needed and name not in memory:
            raise InputError(
                f"this memory knows nothing of the step before, and {what}: begin with "
                "initial_memory of the same Dynamics"
            )


def _scores_of_step(
    params: Mapping[str, Any], plan: Plan, dynamics: Dynamics, memory: Memory, engine: str
) -> dict[str, Array]:
    """What ranks the blocks of each kernel now: what gradients left, or the mean of its scores."""
    before = memory.get("scores", {})
    scores: dict[str, Array] = {}
    for path, kernel, rule in masked_kernels(params, plan):
        if _by_gradient(rule):
            if path not in before:
                raise InputError(
                    f"{path} is ranked by gradients, and this memory has no scores of it: begin "
                    "with initial_memory, and call remember_gradients after each step"
                )
            scores[path] = before[path]
            continue
        now = _flat(block_scores(kernel, rule.block, rule.score, path, engine))
        scores[path] = _mean(before[path], now, dynamics.score_decay) if before else now
    return scores


def _favoured(
    score: Float[Array, " n"], kept: Bool[Array, " n"], hysteresis: float
) -> Float[Array, " n"]:
    """The scores with those of kept blocks raised by this share of their size, if not all are."""
    more, less = jnp.float32(1 + hysteresis), jnp.float32(1 - hysteresis)
    favoured = kept & ~jnp.all(kept)
    return jnp.where(favoured, score * jnp.where(score < 0, less, more), score)


def _kept_ids(flags: Bool[Array, " n"], ratio: float) -> Int32[Array, " k"]:
    """The ids of blocks that are flagged, as many as the ratio keeps."""
    (ids,) = jnp.nonzero(flags, size=n_kept_blocks(flags.size, ratio))
    return ids.astype(jnp.int32)


def _remembers_scores(plan: Plan, params: Mapping[str, Any], dynamics: Dynamics) -> bool:
    by_gradient = (_by_gradient(rule) for _, _, rule in masked_kernels(params, plan))
    return dynamics.score_decay > 0 or any(by_gradient)


def _by_gradient(rule: Any) -> bool:
    return isinstance(rule.score, str) and rule.score == GRADIENT_SCORE


def _mean(before: Float[Array, " n"], now: Float[Array, " n"], decay: float) -> Array:
    if not decay:
        return now
    # An infinity, or NaN, would stay in the mean for ever: it is forgotten with its step.
    mean = jnp.float32(decay) * before + jnp.float32(1 - decay) * now
    return jnp.where(jnp.isfinite(before), mean, now)


def _flat(scores: Array) -> Array:
    return scores.reshape(scores.size)
