"""Measures speed, each contender against a named baseline in the same run.

    python experiments/benchmark.py step

prints the median time of a CIFAR-10 training step (batch 128, augmentation and optimizer
included): dense, masked with each engine that runs here, and, if PyTorch is installed, the
thesis' way in PyTorch. About a minute on 2 cores. Contenders take turns, so that a busy machine
slows all of them alike; the ratios mean something, the milliseconds belong to the moment.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from pallas_kernels import ENGINES
from sparsemlp import InputError, parse_block
from sparsemlp.config import Config
from sparsemlp.data import ImageDataset
from sparsemlp.environment import describe_environment
from sparsemlp.program import build_program
from sparsemlp.settings import resolve
from sparsemlp.train_state import initial_state
from sparsemlp.training import train_steps


@dataclasses.dataclass(frozen=True)
class Step:
    """The median time of a whole training step of the CIFAR-10 model."""

    block: str = "32x32"
    """Block of the mask, ROWSxCOLS: rows over outputs, columns over inputs."""
    ratio: float = 0.8
    """Fraction of blocks to drop, in (0, 1)."""
    backward: str = "masked"
    """Backward pass: masked, dense, straight_through."""
    batch_size: int = 128
    """Images in a step."""
    rounds: int = 15
    """How often each contender takes its turn; the median is over these."""
    steps: int = 5
    """Steps in a turn."""


def main() -> int:
    """Runs the benchmark that the command line names."""
    try:
        tyro.extras.subcommand_cli_from_dict({"step": measure_step}, description=__doc__)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def measure_step(options: Annotated[Step, tyro.conf.arg(name="")]) -> None:
    """The median time of a whole training step of the CIFAR-10 model."""
    if options.rounds < 1 or options.steps < 1:
        raise InputError("--rounds and --steps must be at least 1")
    if options.ratio == 0:
        raise InputError("--ratio=0 is the dense baseline itself: choose a ratio in (0, 1)")
    dataset = random_images(max(2048, options.batch_size))
    masked = f"{options.block} at {options.ratio:g}, {options.backward}"
    contenders = {"dense": _jax_steps(dataset, options, 0.0, "auto")}
    for engine in ENGINES:
        contenders[f"{engine}: {masked}"] = _jax_steps(dataset, options, options.ratio, engine)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed (extra `peers`): its rows are left out", file=sys.stderr)
    else:
        from torch_resmlp import training_steps

        peers = {"dense": 0.0}
        if options.backward == "masked":
            peers[f"mask, {masked}"] = options.ratio
        for name, ratio in peers.items():
            contenders[f"PyTorch {name}"] = training_steps(
                dataset.train_images,
                dataset.train_labels,
                options.batch_size,
                parse_block(options.block),
                ratio,
            )
    seconds = take_turns(contenders, options.rounds, options.steps)
    print_table(f"training step, batch {options.batch_size}, float32", seconds, "dense")


def take_turns(
    contenders: dict[str, Callable[[int], None]], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Times contenders in turns, after one turn that does not count.

    Args:
      contenders: functions that do so many steps and wait for the result.
      rounds: turns of each.
      steps: steps in a turn.

    Returns:
      For each contender the seconds of a step, a number a turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for counts in [False] + [True] * rounds:
        for name, run in contenders.items():
            began = time.perf_counter()
            run(steps)
            if counts:
                seconds[name].append((time.perf_counter() - began) / steps)
    return seconds


def print_table(title: str, seconds: dict[str, list[float]], baseline: str) -> None:
    """Prints medians, quartiles and the ratio to the baseline, with machine and versions."""
    environment = describe_environment()
    versions = {"jax": environment["versions"]["jax"]}
    if any(name.startswith("PyTorch") for name in seconds):
        versions["torch"] = importlib.metadata.version("torch")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    table = Table(
        title=title,
        caption=f"{environment['processor']}, {environment['cores']} cores, "
        f"{environment['device']}; " + ", ".join(f"{k} {v}" for k, v in versions.items()),
    )
    table.add_column("contender")
    table.add_column("median ms", justify="right")
    table.add_column("quartiles", justify="right")
    table.add_column(f"{baseline} / this", justify="right")
    for name, times in seconds.items():
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
        table.add_row(
            name,
            f"{medians[name] * 1e3:.1f}",
            f"{low * 1e3:.1f} - {high * 1e3:.1f}",
            f"{medians[baseline] / medians[name]:.2f}x",
        )
    Console(width=100).print(table)


def random_images(n_images: int) -> ImageDataset:
    """Noise in the shape of CIFAR-10: speed does not depend on what is on an image."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n_images, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, n_images).astype(np.int32)
    return ImageDataset(
        name="noise",
        source="noise",
        train_images=images,
        train_labels=labels,
        test_images=images[:1],
        test_labels=labels[:1],
        n_classes=10,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )


def _jax_steps(
    dataset: ImageDataset, options: Step, ratio: float, engine: str
) -> Callable[[int], None]:
    config = Config(
        block=options.block,
        ratio=ratio,
        backward=options.backward,
        batch_size=options.batch_size,
        engine=engine,
    )
    program = build_program(resolve(config, dataset.name), dataset)
    images, labels = jnp.asarray(dataset.train_images), jnp.asarray(dataset.train_labels)
    order = jnp.arange(len(labels), dtype=jnp.int32)
    state = initial_state(program)
    run = functools.partial(train_steps, program, batch_size=options.batch_size, masked=ratio > 0)

    def train(n_steps: int) -> None:
        nonlocal state
        state, _ = run(state, images, labels, order, jnp.int32(0), jnp.int32(n_steps))
        jax.block_until_ready(state)

    return train


if __name__ == "__main__":
    sys.exit(main())
