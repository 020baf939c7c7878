"""The time of a training step of a whole population, against its runs one after another."""

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import jax
import jax.numpy as jnp
import tyro
from cost_tables.one_step import random_images

from benchmarks.step import jax_steps
from benchmarks.timing import Contender, print_table, take_turns
from sparsemlp import InputError
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import resolve
from sparsemlp.data import ImageDataset
from sparsemlp.populations.population_program import (
    population_of,
    population_orders,
    population_states,
    train_population_steps,
)


@dataclasses.dataclass(frozen=True)
class Population:
    """The median time of a step of runs trained together, and of the same runs one by one."""

    ratio: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """Fractions of blocks to drop, one run for each, backward mode and seed."""
    backward: tuple[str, ...] = ("masked",)
    """Backward modes: masked, dense, straight_through."""
    seed: tuple[int, ...] = (0,)
    """Seeds. Runs of one seed share the augmentation of their images."""
    block: str = "32x32"
    """Block of the mask, ROWSxCOLS: rows over outputs, columns over inputs."""
    batch_size: int = 128
    """Images in a step."""
    dim: int = 64
    """Features of a token."""
    depth: int = 5
    """Blocks of the model."""
    engine: tuple[str, ...] = ("reference", "auto")
    """Engines of the runs one by one; the first is what the others are compared with."""
    rounds: int = 9
    """How often each contender takes its turn; the median is over these."""
    steps: int = 20
    """Steps of each run in a turn."""


def measure_population(options: Annotated[Population, tyro.conf.arg(name="")]) -> None:
    """The median time of a step of runs trained together, and of the same runs one by one."""
    if options.rounds < 1 or options.steps < 1:
        raise InputError("--rounds and --steps must be at least 1")
    if not options.engine:
        raise InputError("--engine needs at least one engine to compare with, such as reference")
    dataset = random_images(max(2048, options.batch_size), 32, 10)
    configs = _configs(options)
    population = _together(dataset, configs)
    singles = {
        f"one by one, {engine}": [
            jax_steps(dataset, dataclasses.replace(own, engine=engine)) for own in configs
        ]
        for engine in options.engine
    }
    _compile([population, *(run for runs in singles.values() for run in runs)])
    contenders = {"population": population}
    contenders |= {name: _one_by_one(runs) for name, runs in singles.items()}
    seconds = take_turns(contenders, options.rounds, options.steps)
    title = (
        f"{len(configs)} runs, a training step of all, batch {options.batch_size}, float32, "
        f"{options.block}"
    )
    print_table(title, seconds, next(iter(singles)))


def _configs(options: Population) -> list[Config]:
    configs = [
        Config(
            block=options.block,
            ratio=ratio,
            backward=backward,
            seed=seed,
            batch_size=options.batch_size,
            dim=options.dim,
            depth=options.depth,
            engine="reference",
        )
        for backward in options.backward
        for seed in options.seed
        for ratio in options.ratio
    ]
    if not configs:
        raise InputError("a population has at least one run: give --ratio, --backward and --seed")
    return configs


def _together(dataset: ImageDataset, configs: list[Config]) -> Contender:
    runs = [resolve(config, dataset.name) for config in configs]
    program, differences = population_of([build_program(run, dataset) for run in runs])
    images, labels = jnp.asarray(dataset.train_images), jnp.asarray(dataset.train_labels)
    order = population_orders(differences.seed, jnp.int32(0), len(labels))
    state = population_states(program, differences.seed, n_members=len(runs))
    run = functools.partial(
        train_population_steps, program, batch_size=runs[0].batch_size, masked=True
    )

    def train(n_steps: int) -> None:
        nonlocal state
        place = jnp.int32(0), jnp.int32(n_steps)
        state, _ = run(state, differences, images, labels, order, *place)
        jax.block_until_ready(state)

    return train


def _compile(contenders: Sequence[Contender]) -> None:
    """Lets each do a step, several at once: most of the time of a first step is compilation."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda run: run(1), contenders))


def _one_by_one(singles: Sequence[Contender]) -> Contender:
    def train(n_steps: int) -> None:
        for single in singles:
            single(n_steps)

    return train
