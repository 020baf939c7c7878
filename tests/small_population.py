"""Three runs of a few steps that are trained together, and what they leave.

A module that looks at them takes `together = small_population.together`.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import Settings
from sparsemlp.populations.population import Member, Outcome, train_population
from sparsemlp.runs.interruption import Interruption
from sparsemlp.runs.progress import Reporter, TalkativeConsole
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.train.train_state import initial_state

DATA = tiny.dataset(n_train=16)
STEPS = 6
COMMON: dict[str, Any] = {
    "epochs": 3,
    "mask_start_epoch": 1,
    "seed": 1,
    "optimizer": "sgd",
    "lr": 0.05,
    "mixup": 0.0,
    "cutmix": 0.0,
}
MEMBERS: list[dict[str, Any]] = [
    {"ratio": 0.7, "backward": "masked", "engine": "auto"},
    {"ratio": 0.4, "backward": "straight_through", "engine": "reference"},
    {"ratio": 0.0, "engine": "reference"},
]


class Quiet(Reporter):
    """Says nothing and remembers it; acts after a step."""

    def __init__(self, step: int | None = None, act: Any = None) -> None:
        super().__init__(COMMON["epochs"], TalkativeConsole(quiet=True))
        self.said: list[str] = []
        self._at, self._act = step, act

    def say(self, line: str, style: str | None = None) -> None:
        self.said.append(line)

    def steps(self, *, done: int, **_: Any) -> None:
        if done == self._at:
            self._act()


def member(folder: Path, **changes: Any) -> Member:
    folder.mkdir(parents=True, exist_ok=True)
    return Member(tiny.settings(**COMMON | changes), RunFolder(folder), folder.name)


def population(folder: Path) -> list[Member]:
    return [member(folder / str(i), **changes) for i, changes in enumerate(MEMBERS)]


def train(members: list[Member], reporter: Reporter | None = None, **options: Any) -> list[Outcome]:
    return train_population(
        members,
        DATA,
        reporter or Quiet(),
        options.pop("interruption", Interruption()),
        **{"resume": False} | options,
    )


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome]]:
    """The folder of the population, and how its members ended."""
    folder = tmp_path_factory.mktemp("together")
    return folder, train(population(folder))


def state_of(folder: Path, settings: Settings, step: int) -> Any:
    program = build_program(settings, DATA)
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return checkpoints.restore(jax.eval_shape(lambda: initial_state(program)), {step}).state


def assert_same_as(folder: Path, expected: Path) -> None:
    """To the bit, except for times."""
    for index, changes in enumerate(MEMBERS):
        one, other = folder / str(index), expected / str(index)
        assert tiny.records(one) == tiny.records(other)
        settings = tiny.settings(**COMMON | changes)
        tiny.assert_same_bits(state_of(one, settings, STEPS), state_of(other, settings, STEPS))
        with np.load(one / "mask_activity.npz") as a, np.load(other / "mask_activity.npz") as b:
            assert {n: a[n].tolist() for n in a} == {n: b[n].tolist() for n in b}
        assert (one / "summary.json").exists()
