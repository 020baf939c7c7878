"""Population mode: runs that differ in ratio, backward mode or seed, trained in one program.

Each member leaves in its own folder what a single run (`sparsemlp.runs.run.Run`) leaves, so that a
folder says no more of the population than its environment and its times do.
"""

import contextlib
import math
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from sparsemlp.configuration.settings import Settings
from sparsemlp.data import ImageDataset
from sparsemlp.device import training_memory
from sparsemlp.errors import InputError
from sparsemlp.populations.grouping import group_runs, reason_against
from sparsemlp.populations.host_memory import host_memory_bytes
from sparsemlp.populations.population_run import MemberError, Outcome, PopulationRun
from sparsemlp.populations.population_trainer import PopulationTrainer
from sparsemlp.runs.interruption import Interruption
from sparsemlp.runs.progress import Reporter
from sparsemlp.runs.recorder import Recorder
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.runs.run_setup import set_up
from sparsemlp.schedule import DENSE, MASKED

_SHARE_OF_DEVICE, _SHARE_OF_HOST = 0.9, 0.5
"""What a population may take of a device's memory, and of the computer's where it has none."""


class Member(NamedTuple):
    """A run of a population: its settings, its folder and its title, as for a `Run`."""

    settings: Settings
    folder: RunFolder
    title: str


def train_population(
    members: Sequence[Member],
    dataset: ImageDataset,
    reporter: Reporter,
    interruption: Interruption,
    *,
    resume: bool,
    limit_bytes: int | None = None,
) -> list[Outcome]:
    """Trains runs together to their last epoch, or until a signal asks to stop.

    A member whose loss or parameters are NaN or infinite is given up, unless its settings allow it,
    and the others go on. The engine `auto` is `reference` here. The members are trained in several
    populations, one after another, if XLA's plan for the compiled programs does not fit into
    memory, or if on resumption they have no checkpoint in common.

    Args:
      members: the runs, of one group of `group_runs`; their folders are made, and locked by the
        caller.
      dataset: what to train on.
      reporter: who hears of the progress: means over the members, and who failed.
      interruption: whether to stop.
      resume: whether to continue from the newest step that all members of a population have saved.
        A member that has saved nothing begins anew; one that cannot go on from where the others do,
        as its checkpoint of then is damaged, is trained by itself.
      limit_bytes: device memory to fit into; `memory_limit_bytes()` by default.

    Returns:
      For each member how it ended. What ends one population fails its members alone: nothing to
      resume, runs on other data, no memory, a disk that is full.

    Raises:
      InputError: the runs cannot be trained together, or their settings do not fit the data set.
    """
    _check(members)
    limit = memory_limit_bytes() if limit_bytes is None else limit_bytes
    outcomes = [Outcome()] * len(members)
    with contextlib.ExitStack() as stack:
        recorders = [
            stack.enter_context(
                Recorder(
                    set_up(member.settings, dataset),
                    member.folder,
                    member.title,
                    save_every=math.inf,
                )
            )
            for member in members
        ]
        waiting = _by_step(recorders) if resume else [list(range(len(members)))]
        while waiting and interruption.signal is None:
            indices = waiting.pop(0)
            own = [recorders[index] for index in indices]
            try:
                with training_memory():
                    trainer, n_fitting = _fitted(own, dataset, limit, reporter)
                if n_fitting < len(indices):
                    parts = np.array_split(indices, math.ceil(len(indices) / n_fitting))
                    reporter.say(
                        f"{len(indices)} runs do not fit into {limit / 2**30:.2f} GiB together: "
                        f"trained as {len(parts)} populations"
                    )
                    waiting = [part.tolist() for part in parts] + waiting
                    continue
                with training_memory():
                    ended = PopulationRun(own, trainer).train(reporter, interruption, resume=resume)
            except MemberError as error:
                if len(indices) > 1:
                    alone = indices.pop(error.index)
                    reporter.say(
                        f"{recorders[alone].title}: {error}; it is left to itself, and the others "
                        "go on together"
                    )
                    waiting = [indices, [alone], *waiting]
                    continue
                ended = [Outcome(failure=error.reason)]
            except Exception as error:
                # What its frames hold of the device's memory the next population needs.
                traceback.clear_frames(error.__traceback__)
                ended = [Outcome(failure=error)] * len(indices)
            for index, outcome in zip(indices, ended, strict=True):
                outcomes[index] = outcome
    return outcomes


def memory_limit_bytes() -> int:
    """The memory that a population may take: 0.9 of the device's, or half of the computer's."""
    statistics_of_device = jax.devices()[0].memory_stats() or {}
    if limit := statistics_of_device.get("bytes_limit"):
        return int(_SHARE_OF_DEVICE * limit)
    return int(_SHARE_OF_HOST * host_memory_bytes())


def _check(members: Sequence[Member]) -> None:
    for member in members:
        reason = reason_against(member.settings)
        if reason is not None:
            raise InputError(reason)
    if len(group_runs([member.settings for member in members])) != 1:
        raise InputError(
            f"the {len(members)} runs differ in more than ratio, backward mode and seed: train "
            "each group of group_runs on its own"
        )


def _by_step(recorders: Sequence[Recorder]) -> list[list[int]]:
    """Groups members, the most advanced first, so that each group has saved a step in common.

    Best epochs do not count: one may lie far behind what a member has done. Who has saved nothing
    draws nobody back to the start.
    """
    groups: list[tuple[list[int], set[int]]] = []
    saved = [set(recorder.checkpoints.recent()) for recorder in recorders]
    for index in sorted(range(len(saved)), key=lambda i: -max(saved[i], default=0)):
        own = saved[index] or {0}
        for group, common in groups:
            if (both := common & own) and (saved[index] or common == {0}):
                group.append(index)
                common &= both
                break
        else:
            groups.append(([index], own))
    return [sorted(group) for group, _ in groups]


def _fitted(
    recorders: Sequence[Recorder], dataset: ImageDataset, limit: int, reporter: Reporter
) -> tuple[PopulationTrainer, int]:
    """A trainer of these members, and how many of them fit into the memory."""
    settings = recorders[0].setup.settings
    programs = [recorder.setup.program for recorder in recorders]
    trainer = PopulationTrainer(programs, dataset, settings.batch_size)
    reporter.waiting("compiling")
    needed = trainer.step_bytes(MASKED if settings.mask_start_epoch < settings.epochs else DENSE)
    n_members = len(recorders)
    return trainer, n_members if needed.total <= limit else needed.largest(n_members, limit)
