"""Measured counterparts of the cost tables: traffic, cache hits and energy of a training run.

One step of every cell is measured, forward, backward and optimizer, and multiplied by the steps of
the run. That takes long for many cells: each is written down as soon as it is measured.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cost_tables.counters import (
    count_traffic,
    measure_energy,
    this_python,
    why_no_energy,
    why_no_traffic,
)
from cost_tables.model_shapes import masked_kinds
from cost_tables.one_step import OneStep, steps
from pallas_kernels import SparseLayer
from sparsemlp import InputError
from sparsemlp.blocks import Block, format_block
from sparsemlp.configuration.config import Config
from sparsemlp.cost_models.costs import Run, Shapes
from sparsemlp.engines import choose_engine
from sparsemlp.options import flag
from sparsemlp.runs.environment import describe_environment
from sparsemlp.runs.history import History

Rows = list[list[float]]
TRAFFIC, ENERGY = "traffic and cache hits", "energy"


def measured_tables(
    shapes: Shapes,
    run: Run,
    blocks: Sequence[Block],
    ratios: Sequence[float],
    mask_layers: str,
    say: Callable[[str], None],
    history: History,
    code: str,
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
      history: what was measured of a cell before, on this device and of the same code, is read
        here and not measured again.
      code: a checksum of kernels and models.
      engine: who computes the masked layers.

    Yields:
      `measured_traffic` (GB of 2^30 bytes of the run), `measured_cache_hits` (share of the
      requests to the second-level cache), `measured_energy` (joules of the run).

    Raises:
      InputError: a counter that had worked failed, or the engine cannot compute a block.
    """
    # What is counted runs in a process of its own, beside this one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    reasons = {TRAFFIC: why_no_traffic(), ENERGY: why_no_energy()}
    at_hand = [what for what, reason in reasons.items() if reason is None]
    for what in set(reasons) - set(at_hand):
        say(f"no measured {what}: {reasons[what]}")
    if at_hand:
        _check_engine(engine, blocks, masked_kinds(mask_layers), shapes, run.batch_size)
    cells = _Cells(history, code)
    tables: dict[str, Rows] = {}
    for block in blocks:
        found: dict[str, list[float]] = {}
        for ratio in ratios:
            options = _options(shapes, run, block, ratio, mask_layers, engine)
            for what in list(at_hand):
                try:
                    step = cells.measured(what, options, say)
                except InputError as error:
                    if cells.has_any(what):
                        raise
                    at_hand.remove(what)
                    say(f"no measured {what}: {error}")
                    continue
                for name, value in step.items():
                    per_run = value if name == "measured_cache_hits" else value * run.steps
                    found.setdefault(name, []).append(per_run)
        for name, row in found.items():
            tables.setdefault(name, []).append(row)
            yield name, tables[name]


def _check_engine(
    engine: str, blocks: Sequence[Block], kinds: Sequence[str], shapes: Shapes, n_rows: int
) -> None:
    """Raises InputError that lists every block that the engine cannot compute here, and why."""
    refused: dict[str, str] = {}
    for block in blocks:
        for kind in kinds:
            axis = -2 if kind == "XPatch" else -1
            layer = SparseLayer(shapes.kernel(kind), block, 1, axis, "float32")
            try:
                choose_engine(engine, layer, "product", n_rows)
            except InputError as error:
                refused.setdefault(format_block(block), str(error))
    if refused:
        listed = "\n  ".join(f"{block}: {reason}" for block, reason in refused.items())
        raise InputError(f"choose other --blocks or another --engine to measure:\n  {listed}")


class _Cells:
    """What is known of each cell.

    Args:
      history: the records of all cells that were measured.
      code: a checksum of what is measured.
    """

    def __init__(self, history: History, code: str) -> None:
        self._history = history
        self._known = {(r["cell"], r["counter"]): r["step"] for r in history.read()}
        environment = describe_environment()
        version = environment["versions"]["jax"]
        self._here = f"{environment['device']}, jax {version}, code {code}"

    def has_any(self, what: str) -> bool:
        """Whether a counter has ever counted anything here."""
        return any(cell.endswith(self._here) for cell, counter in self._known if counter == what)

    def measured(
        self, what: str, options: OneStep, say: Callable[[str], None]
    ) -> Mapping[str, float]:
        """What a counter finds of one step, by the names of the tables."""
        key = f"{' '.join(_flags(options))} on {self._here}", what
        if key not in self._known:
            say(f"measuring {what} of {options.run.block} at {options.run.ratio:g}")
            step = _traffic(options) if what == TRAFFIC else _energy(options)
            self._history.append({"cell": key[0], "counter": what, "step": step})
            self._known[key] = step
        return self._known[key]


def _traffic(options: OneStep) -> dict[str, float]:
    traffic = count_traffic(_command(options))
    return {
        "measured_traffic": traffic.bytes / 2**30,
        "measured_cache_hits": traffic.hit_share,
    }


def _energy(options: OneStep) -> dict[str, float]:
    make = steps(options)
    make(2)
    return {"measured_energy": measure_energy(make)}


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
    return this_python(str(Path(__file__).parent / "one_step.py"), *_flags(options))


def _flags(options: OneStep) -> list[str]:
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
    return [*flags, f"--n-classes={options.n_classes}"]
