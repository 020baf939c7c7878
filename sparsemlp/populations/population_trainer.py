"""Runs the compiled programs of a population, and says how much memory they need."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sparsemlp.data import ImageDataset
from sparsemlp.planned_kernels import block_counts
from sparsemlp.populations.population_program import (
    evaluate_population,
    population_of,
    population_orders,
    population_states,
    train_population_steps,
)
from sparsemlp.schedule import Phase
from sparsemlp.train.evaluation import Evaluation
from sparsemlp.train.train_state import Program, TrainState, state_of_seed
from sparsemlp.train.trainer import Trainer


class PopulationTrainer(Trainer):
    """A `Trainer` of all members of a population at once.

    Its states are stacked, but for `step`; of loss and parameters it says for each member whether
    they are finite.

    Attributes:
      n_members: how many members.

    Args:
      programs: those of the members, which differ in ratios, backward modes and seeds alone.
      dataset: what to train on.
      batch_size: images in a step.
    """

    def __init__(self, programs: Sequence[Program], dataset: ImageDataset, batch_size: int) -> None:
        self.n_members = len(programs)
        common, self._differences = population_of(programs)
        super().__init__(common, dataset, batch_size)
        self._evaluations: dict[Phase, Any] = {}
        params = jax.eval_shape(lambda: state_of_seed(common)).params
        self._masked = [block_counts(params, program.model.plan) for program in programs]

    def initial(self) -> TrainState:
        """The states before the first step."""
        return population_states(self._program, self._differences.seed, n_members=self.n_members)

    def stack(self, states: Sequence[TrainState]) -> TrainState:
        """The state of the population from those of its members, all at the same step."""
        blocks: dict[str, int] = {}
        for own in self._masked:
            blocks |= own
        unseen = {path: jnp.zeros(n, jnp.int32) for path, n in blocks.items()}
        kept = {path: jnp.ones(n, bool) for path, n in blocks.items()}
        whole = [
            dataclasses.replace(
                state, activity=unseen | state.activity, last_kept=kept | state.last_kept
            )
            for state in states
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *whole)
        return dataclasses.replace(stacked, step=states[0].step)

    def member(self, state: TrainState, index: int) -> TrainState:
        """The state of one member as its own run has it: without kernels that it does not mask."""
        own = _take(dataclasses.replace(state, step=None), index)
        return dataclasses.replace(
            own,
            step=jnp.copy(state.step),
            activity={path: own.activity[path] for path in self._masked[index]},
            last_kept={path: own.last_kept[path] for path in self._masked[index]},
        )

    def evaluation_of(self, found: Evaluation, index: int) -> Evaluation:
        """The evaluation of one member as its own run has it."""
        own = _take(found, index)
        kept = {path: own.kept[path] for path in self._masked[index]}
        return dataclasses.replace(own, kept=kept)

    def next_epoch(self, state: TrainState, found: Evaluation) -> TrainState:
        """The state at the start of an epoch, from its end and evaluation of the one before."""
        totals = jax.tree.map(jnp.zeros_like, state.totals)
        return dataclasses.replace(state, totals=totals, last_kept=found.kept)

    def evaluate(self, state: TrainState, phase: Phase) -> Evaluation:
        """Evaluates the members on the whole test set; everything is stacked."""
        return self._evaluation(state, phase)(state, self._differences, *self._test)

    def step_bytes(self, phase: Phase) -> "StepBytes":
        """The memory of training and evaluation, as XLA plans it; compiles both."""
        state = jax.eval_shape(self.initial)
        order = self._order_of(jnp.int32(0), len(self._labels))
        zero = jnp.int32(0)
        arguments = (state, self._images, self._labels, order, zero, zero)
        training = self._compiled.get((self._batch_size, phase))
        if training is None:
            training = self._lower(arguments, self._batch_size, phase).compile()
            self._compiled[self._batch_size, phase] = training
        evaluation = self._evaluation(state, phase)
        shared = _n_bytes((self._images, self._labels, self._test))
        # A copy of the state is the best epoch, which waits to be saved.
        of_members = 2 * _n_bytes(state) + _n_bytes(order)
        working = max(_working_bytes(training), _working_bytes(evaluation))
        return StepBytes(shared, of_members + working)

    def _evaluation(self, state: Any, phase: Phase) -> Any:
        """The compiled evaluation of states like this one, arrays or shapes."""
        if phase not in self._evaluations:
            lowered = evaluate_population.lower(
                self._program, state, self._differences, *self._test, masked=phase.masked
            )
            self._evaluations[phase] = lowered.compile()
        return self._evaluations[phase]

    def _order_of(self, epoch: jax.Array, n_images: int) -> jax.Array:
        return population_orders(self._differences.seed, epoch, n_images)

    def _lower(self, arguments: tuple, batch_size: int, phase: Phase) -> jax.stages.Lowered:
        state, *rest = arguments
        return train_population_steps.lower(
            self._program,
            state,
            self._differences,
            *rest,
            batch_size=batch_size,
            masked=phase.masked,
        )

    def _call(self, program: Any, arguments: tuple) -> Any:
        state, *rest = arguments
        return program(state, self._differences, *rest)


@dataclasses.dataclass(frozen=True)
class StepBytes:
    """The device memory of a population.

    Attributes:
      shared: bytes of the data set, whatever the number of members.
      of_members: bytes of everything else, about proportional to it.
    """

    shared: int
    of_members: int

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.shared + self.of_members

    def largest(self, n_members: int, limit_bytes: int) -> int:
        """How many members fit into a limit, estimated from so many; at least one."""
        return max(1, (limit_bytes - self.shared) * n_members // max(1, self.of_members))


@jax.jit
def _take(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _n_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _working_bytes(compiled: Any) -> int:
    """What a program needs beside its arguments."""
    plan = compiled.memory_analysis()
    written = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.temp_size_in_bytes + max(0, written)
