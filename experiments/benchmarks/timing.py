"""How the benchmarks measure: turns, what the machine can do at most, and tables.

A number of a benchmark is a median over turns that the contenders take one after the other, so that
a busy machine slows all of them alike; the ratios mean something, the milliseconds belong to the
moment.
"""

import contextlib
import dataclasses
import importlib.metadata
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from pallas_kernels.cpu import library
from pallas_kernels.cpu.build import BuildError
from sparsemlp.files import Record
from sparsemlp.runs.environment import describe_environment

Contender = Callable[[int], object]
"""Does so many steps and waits for the result."""


@dataclasses.dataclass(frozen=True)
class Peak:
    """The most arithmetic that was seen on this machine.

    Attributes:
      gflops: billions of float32 operations a second; a fused multiply-add is two.
      source: what reached it.
    """

    gflops: float
    source: str


def take_turns(
    contenders: Mapping[str, Contender], rounds: int, steps: int | Mapping[str, int]
) -> dict[str, list[float]]:
    """Times contenders in turns, after one turn that does not count.

    Args:
      contenders: functions that do so many steps and wait for the result.
      rounds: turns of each.
      steps: steps in a turn, for all of them or for each.

    Returns:
      For each contender the seconds of a step, a number a turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for counts in [False] + [True] * rounds:
        for name, run in contenders.items():
            n_steps = steps if isinstance(steps, int) else steps[name]
            elapsed = _time(run, n_steps)
            if counts:
                seconds[name].append(elapsed / n_steps)
    return seconds


def repeated[T](phase: Callable[[T], Any], tensors: T, reuse: bool = True) -> Contender:
    """Runs a phase so many times; on a CPU each waits for the last, lest two run at once.

    Args:
      phase: what is run.
      tensors: what it is given.
      reuse: whether results are written over those of the step before.
    """
    donated = 0 if reuse else None
    compiled = jax.jit(lambda last, t: phase(t), donate_argnums=donated, keep_unused=True)
    last = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(phase, tensors))
    wait = jax.default_backend() == "cpu"

    def run(n_steps: int) -> None:
        nonlocal last
        for step in range(n_steps):
            last = compiled(last, tensors)
            if wait or step == n_steps - 1:
                jax.block_until_ready(last)

    return run


def steps_in_a_turn(contender: Contender, seconds: float = 0.02) -> int:
    """How many steps make a turn of at least so many seconds, found by doing them.

    The first step, which compiles, does not count.
    """
    contender(1)
    n_steps = 1
    while (elapsed := _time(contender, n_steps)) < seconds:
        n_steps = min(math.ceil(1.2 * n_steps * seconds / elapsed), 10 * n_steps)
    return n_steps


def measured_peak(size: int = 2048) -> Peak:
    """What the machine can do at most: a native loop of multiply-adds, or a product by XLA.

    Args:
      size: rows and columns of the square float32 matrices, where there is no native loop.
    """
    if jax.default_backend() == "cpu":
        with contextlib.suppress(BuildError):
            return Peak(library.peak_flops() / 1e9, "a native loop of multiply-adds")
    matrix = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)

    def run(n_steps: int) -> None:
        for _ in range(n_steps):
            jax.block_until_ready(multiply(matrix, matrix))

    best = min(take_turns({"product": run}, 10, 1)["product"])
    return Peak(2 * size**3 / best / 1e9, f"the best dense {size}^3 float32 product by XLA")


def quartiles(values: list[float]) -> tuple[float, float]:
    """The first and the third quartile; of one or two values the smallest and the largest."""
    if len(values) < 3:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def describe_machine(environment: Record, *packages: str) -> str:
    """Processor, cores, device and versions in a line, to be read beside every number.

    Args:
      environment: what `describe_environment` found.
      packages: packages to state beside JAX.
    """
    versions = {"jax": environment["versions"]["jax"]}
    versions |= {name: importlib.metadata.version(name) for name in packages}
    return (
        f"{environment['processor']}, {environment['cores']} cores, {environment['device']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )


def print_table(
    title: str, seconds: dict[str, list[float]], baseline: str, packages: tuple[str, ...] = ()
) -> None:
    """Prints medians, quartiles and the ratio of medians to the baseline, with the machine.

    Args:
      title: what a step is.
      seconds: for each contender the seconds of a step, a number a turn.
      baseline: the contender that the others are compared with.
      packages: packages whose versions matter beside JAX.
    """
    table = Table(title=title, caption=describe_machine(describe_environment(), *packages))
    table.add_column("contender")
    table.add_column("median ms", justify="right")
    table.add_column("quartiles", justify="right")
    table.add_column(f"{baseline} / this", justify="right")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        low, high = quartiles(times)
        table.add_row(
            name,
            f"{medians[name] * 1e3:.1f}",
            f"{low * 1e3:.1f} - {high * 1e3:.1f}",
            f"{medians[baseline] / medians[name]:.2f}x",
        )
    Console(width=100).print(table)


def _time(run: Contender, n_steps: int) -> float:
    began = time.perf_counter()
    run(n_steps)
    return time.perf_counter() - began
