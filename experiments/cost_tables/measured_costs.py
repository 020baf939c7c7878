"""Measured counterparts of the cost tables: traffic, cache hits and energy of a training run.

One step of every cell is measured, forward, backward and optimizer, and multiplied by the steps of
the run.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cost_tables.counters import (
    count_traffic,
    measure_energy,
    this_python,
    why_no_energy,
    why_no_traffic,
)
from cost_tables.one_step import OneStep, steps
from sparsemlp.blocks import Block, format_block
from sparsemlp.configuration.config import Config
from sparsemlp.cost_models.costs import Run, Shapes
from sparsemlp.options import flag

Rows = list[list[float]]


def measured_tables(
    shapes: Shapes,
    run: Run,
    blocks: Sequence[Block],
    ratios: Sequence[float],
    mask_layers: str,
    say: Callable[[str], None],
    engine: str = "auto",
) -> Iterator[tuple[str, Rows]]:
    """A table for each counter that is at hand, a row a block and a column a ratio.

    Each comes again with every row that it grows by, so that nothing measured is lost.

    Args:
      shapes: the sizes of the model.
      run: batch size and steps.
      blocks: blocks of the grid.
      ratios: ratios of the grid.
      mask_layers: layer kinds to mask, as in cifar10.py.
      say: told why a counter is not at hand, and what is being measured.
      engine: who computes the masked layers.

    Yields:
      `measured_traffic` (GB of 2^30 bytes of the run), `measured_cache_hits` (share of the
      requests to the second-level cache), `measured_energy` (joules of the run).

    Raises:
      InputError: a counter failed, or a block does not fit.
    """
    # What is counted runs in a process of its own, beside this one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    reasons = {"traffic and cache hits": why_no_traffic(), "energy": why_no_energy()}
    for what, reason in reasons.items():
        if reason is not None:
            say(f"no measured {what}: {reason}")
    tables: dict[str, Rows] = {}
    for block in blocks:
        found: dict[str, list[float]] = {}
        for ratio in ratios:
            options = _options(shapes, run, block, ratio, mask_layers, engine)
            if reasons["traffic and cache hits"] is None:
                say(f"counting traffic of {format_block(block)} at {ratio:g}")
                traffic = count_traffic(_command(options))
                moved = traffic.bytes * run.steps / 2**30
                found.setdefault("measured_traffic", []).append(moved)
                found.setdefault("measured_cache_hits", []).append(traffic.hit_share)
            if reasons["energy"] is None:
                say(f"measuring energy of {format_block(block)} at {ratio:g}")
                make = steps(options)
                make(2)
                found.setdefault("measured_energy", []).append(measure_energy(make) * run.steps)
        for name, row in found.items():
            tables.setdefault(name, []).append(row)
            yield name, tables[name]


def _options(
    shapes: Shapes, run: Run, block: Block, ratio: float, mask_layers: str, engine: str
) -> OneStep:
    config = Config(
        block=format_block(block),
        ratio=ratio,
        mask_layers=mask_layers,
        batch_size=run.batch_size,
        devices=1,
        patch_size=shapes.patch_size,
        dim=shapes.dim,
        depth=shapes.depth,
        expansion=shapes.expansion,
        engine=engine,
    )
    return OneStep(config, shapes.image_size, shapes.n_classes)


def _command(options: OneStep) -> list[str]:
    """The command line of `one_step.py` with these options."""
    config = options.run
    names = (
        "block",
        "ratio",
        "mask_layers",
        "batch_size",
        "patch_size",
        "dim",
        "depth",
        "devices",
        "engine",
    )
    flags = [f"{flag(name)}={getattr(config, name)}" for name in names]
    flags += [f"--expansion={config.expansion}", f"--size={options.size}"]
    program = Path(__file__).parent / "one_step.py"
    return this_python(str(program), *flags, f"--n-classes={options.n_classes}")
