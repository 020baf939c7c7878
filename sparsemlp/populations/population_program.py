"""The compiled programs of a population: runs that differ in data alone, trained by `jax.vmap`.

How many blocks each kernel keeps, what the backward pass uses of its mask and the seed are data
here. Members of one seed share the order of the images, their augmentation and drop path, which are
then computed once.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8

from sparsemlp.blocks import n_kept_blocks
from sparsemlp.mask_trees import Masks, mask_tree
from sparsemlp.masks import GridMask
from sparsemlp.plan import masking_for
from sparsemlp.planned_kernels import block_counts, masked_kernels
from sparsemlp.rules import Backward, BlockMasking
from sparsemlp.selection import select_grid
from sparsemlp.train.evaluation import Evaluation, count_correct
from sparsemlp.train.train_state import (
    Program,
    Seed,
    TrainState,
    epoch_order,
    initial_state,
    state_of_seed,
)
from sparsemlp.train.training import many_steps


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("seed", "n_kept", "in_input_gradient", "in_kernel_gradient"),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Differences:
    """What tells the members of a population apart, as data.

    Attributes:
      seed: uint32 `[members]`, or a scalar if all have the same.
      n_kept: for each masked kernel int32 `[members]`, how many of its blocks are kept.
      in_input_gradient: bool `[members]`, whether dX uses the masks; None if all members have the
        same backward mode, which the program then has.
      in_kernel_gradient: the same for dW.
    """

    seed: Any
    n_kept: dict[str, Any]
    in_input_gradient: Any
    in_kernel_gradient: Any

    @property
    def axes(self) -> Any:
        """The axes of the members, in the form of this."""
        return dataclasses.replace(
            jax.tree.map(lambda _: 0, self), seed=0 if self.seed.ndim else None
        )


def state_axes(state: TrainState) -> TrainState:
    """The axes of the members in the state of a population, all of whom are at the same step.

    Args:
      state: the state of a population or of one run, or its shapes.
    """
    return dataclasses.replace(jax.tree.map(lambda _: 0, state), step=None)


def population_of(programs: Sequence[Program]) -> tuple[Program, Differences]:
    """One program for runs that are equal in all but ratios, backward modes and seeds.

    Args:
      programs: those of the runs.

    Returns:
      The program that all members have in common, with the engine `reference`, and what tells
      them apart.
    """
    first = programs[0]
    rules: dict[str, BlockMasking] = {}
    for program in programs:
        rules |= {p: r for p, r in program.model.plan.items() if isinstance(r, BlockMasking)}
    masked = {
        p
        for program in programs
        for p, r in program.model.plan.items()
        if isinstance(r, BlockMasking) and r.ratio
    }
    modes = {mode for program in programs if (mode := _backward(program)) is not None}
    common = {
        # What no member masks stays a pattern, which another one would match beside.
        pattern: dataclasses.replace(
            rule, ratio=0.5 * (pattern in masked), backward=min(modes, default="masked")
        )
        for pattern, rule in rules.items()
    }
    model: Any = first.model
    model = model.clone(plan=common, engine="reference")
    program = dataclasses.replace(first, model=model, seed=0, mesh=None)
    params = jax.eval_shape(lambda: initial_state(program)).params
    n_blocks = block_counts(params, common)
    seeds = np.asarray([program.seed for program in programs], np.uint32)
    n_kept = {
        path: jnp.asarray([_n_kept(program, path, n) for program in programs], jnp.int32)
        for path, n in n_blocks.items()
    }
    in_dx = jnp.asarray([_backward(program) != "dense" for program in programs])
    in_dw = jnp.asarray([_backward(program) in ("masked", None) for program in programs])
    mixed = len(modes) > 1
    return program, Differences(
        jnp.asarray(seeds[0] if len(set(seeds.tolist())) == 1 else seeds),
        n_kept,
        in_dx if mixed else None,
        in_dw if mixed else None,
    )


def _backward(program: Program) -> Backward | None:
    """The backward mode of a run; None if it masks nothing."""
    rules = [rule for rule in program.model.plan.values() if isinstance(rule, BlockMasking)]
    return next((rule.backward for rule in rules if rule.ratio), None)


def _n_kept(program: Program, path: str, n_blocks: int) -> int:
    rule = masking_for(program.model.plan, path)
    return n_blocks if rule is None else n_kept_blocks(n_blocks, rule.ratio)


@functools.partial(jax.jit, static_argnums=0, static_argnames="n_members")
def population_states(program: Program, seed: Array, *, n_members: int) -> TrainState:
    """The states of all members before the first step, stacked but for `step`.

    Args:
      program: the program of the population.
      seed: uint32, as in `Differences`.
      n_members: how many members.
    """

    def of_seed(seed: Seed) -> TrainState:
        return state_of_seed(dataclasses.replace(program, seed=seed))

    in_axes = 0 if seed.ndim else None
    out_axes = state_axes(jax.eval_shape(lambda: state_of_seed(program)))
    return jax.vmap(of_seed, in_axes, out_axes, axis_size=n_members)(seed)


@functools.partial(jax.jit, static_argnames="n_images")
def population_orders(seed: Array, epoch: Int[Array, ""], n_images: int) -> Int[Array, "..."]:
    """The order of the images in an epoch, int32 `[members, n]`; `[n]` if all have one seed."""
    order = functools.partial(epoch_order, epoch=epoch, n_images=n_images)
    return jax.vmap(order)(seed) if seed.ndim else order(seed)


@functools.partial(
    jax.jit, static_argnums=0, static_argnames=("batch_size", "masked"), donate_argnums=1
)
def train_population_steps(
    program: Program,
    state: TrainState,
    differences: Differences,
    images: UInt8[Array, "n height width channels"],
    labels: Int[Array, " n"],
    order: Int[Array, "..."],
    start: Int[Array, ""],
    n_steps: Int[Array, ""],
    *,
    batch_size: int,
    masked: bool,
) -> tuple[TrainState, Bool[Array, " members"]]:
    """Many steps of all members, as `training.many_steps` of each.

    Args:
      program: the program of the population.
      state: the states of all members; donated.
      differences: what tells them apart.
      images: all training images.
      labels: their labels, int32.
      order: as `population_orders` returns it.
      start: index into the order of the first image of the first step, int32.
      n_steps: how many steps, int32.
      batch_size: images in a step.
      masked: whether weights are masked.

    Returns:
      The states after the last step, and for each member whether its loss and parameters are all
      finite.
    """

    def of_member(state: TrainState, own: Differences, order: Array) -> tuple[TrainState, Array]:
        return many_steps(
            dataclasses.replace(program, seed=own.seed),
            state,
            images,
            labels,
            order,
            start,
            n_steps,
            batch_size=batch_size,
            masked=masked,
            masks_of=functools.partial(_masks, program, own),
        )

    axes = state_axes(state)
    in_axes = (axes, differences.axes, 0 if order.ndim == 2 else None)
    return jax.vmap(of_member, in_axes, (axes, 0))(state, differences, order)


@functools.partial(jax.jit, static_argnums=0, static_argnames="masked")
def evaluate_population(
    program: Program,
    state: TrainState,
    differences: Differences,
    images: UInt8[Array, "batches batch height width channels"],
    labels: Int[Array, "batches batch"],
    *,
    masked: bool,
) -> Evaluation:
    """Evaluates all members, as `evaluation.count_correct` of each; everything is stacked."""

    def of_member(params: Any, batch_stats: Any, own: Differences) -> Evaluation:
        masks_of = functools.partial(_masks, program, own)
        arguments = (program, params, batch_stats, {}, images, labels)
        return count_correct(*arguments, masked=masked, masks_of=masks_of)

    n_members = state.totals["loss"].shape[0]
    mapped = jax.vmap(of_member, (0, 0, differences.axes), axis_size=n_members)
    return mapped(*state.evaluated, differences)


def _masks(program: Program, own: Differences, params: Any) -> Masks:
    """The masks of one member."""

    def select(path: str, kernel: Array, rule: BlockMasking) -> GridMask:
        mask = select_grid(kernel, rule.block, own.n_kept[path], rule.score, path)
        if own.in_input_gradient is None:
            return mask
        return dataclasses.replace(
            mask,
            in_input_gradient=own.in_input_gradient,
            in_kernel_gradient=own.in_kernel_gradient,
        )

    kernels = masked_kernels(params, program.model.plan)
    return mask_tree({path: select(path, kernel, rule) for path, kernel, rule in kernels})
