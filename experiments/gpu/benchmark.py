"""Everything worth knowing about a GPU in one go, the most telling first, kept as it is found."""

import concurrent.futures
import dataclasses
import functools
import gc
import importlib.util
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import jax
import tyro
from jax.extend.backend import clear_backends
from rich.console import Console
from tuning.ceilings import Ceilings
from tuning.kernel_problems import LAST, gpu_engines
from tuning.watch import ended_by_sigterm
from tuning.workers import cached_in, environment_with, usual_workers

from gpu.budget import Budget
from gpu.part import ending_parts, run_part
from gpu.point_records import measure_points
from gpu.points import N_FIRST, Point, all_points, tiny_points
from gpu.report import write_report
from gpu.results_folder import open_folder
from gpu.step_parts import in_groups, measure_step, step_commands
from gpu.verdicts import compare_engines
from pallas_kernels import Engine
from sparsemlp import InputError
from sparsemlp.files import Record, make_folder

_N_VERY_FIRST = 4
"""Points that come before the first training steps, dense and the first engine's of one model."""
_CHECKS, _VERY_FIRST, _FIRST = 0.4, 0.3, 0.5
"""Share of the time that the checks may take; of what they and what came after leave, that of the
first points."""
_STEPS_UNTIL = 0.8
"""Share of the time after which no training step begins."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Products, selection, training steps and memory on a GPU, and a table of them."""

    out: Path
    """Folder for the results; what it holds of this device, of the same code and versions, is not
    measured again."""
    minutes: float = 8.0
    """When to stop; the same command goes on from there."""
    rounds: int = 5
    """Turns of each contender; the medians are over these."""
    workers: int = 0
    """Processes that compile while one has the device; 0 is half as many as there are cores, at
    most 8; 1 measures one thing after the other."""
    smoke: bool = False
    """Try the whole program without a GPU: tiny shapes, interpreted kernels, no measurement."""


def measure_gpu(options: Annotated[Gpu, tyro.conf.arg(name="")]) -> None:
    """Products, selection, training steps and memory on a GPU, and a table of them."""
    # Training steps run in processes of their own, beside this one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    _check(options)
    budget = Budget(options.minutes)
    folder, engines = options.out, gpu_engines(options.smoke)
    make_folder(folder, f"--out={folder}")
    device = open_folder(folder, is_trial=options.smoke)
    n_workers = options.workers or (1 if options.smoke else usual_workers())
    early = {name: engine for name, engine in engines.items() if name not in LAST}
    with (
        ended_by_sigterm(),
        Console(stderr=True).status("ceilings") as status,
        tempfile.TemporaryDirectory() as scratch,
        # Contenders share what their models have in common, and XLA's choice of products.
        environment_with(cached_in(Path(scratch)) if n_workers > 1 else {}),
    ):
        ceilings = Ceilings(**device["ceilings"])

        def compare(some: Mapping[str, Engine]) -> list[Record]:
            status.update("correctness")
            seconds = min(budget.left, _CHECKS * 60 * options.minutes)
            return compare_engines(
                folder, some, seconds, is_trial=options.smoke, n_workers=n_workers
            )

        def measure(some: Sequence[Point], among: dict[str, Engine], until: float) -> None:
            measure_points(
                folder,
                some,
                among,
                verdicts,
                ceilings,
                budget,
                status,
                rounds=options.rounds,
                is_trial=options.smoke,
                until=until,
                n_workers=n_workers,
            )

        of_words = functools.partial(
            measure_step,
            folder,
            budget=budget,
            rounds=options.rounds,
            is_trial=options.smoke,
            variables={"JAX_COMPILATION_CACHE_DIR": scratch},
        )

        def measure_steps(some: Sequence[list[str]]) -> None:
            if n_workers == 1:
                _free_device_memory()
            for together in in_groups(some) if n_workers > 1 else [[words] for words in some]:
                if budget.share_used > _STEPS_UNTIL or not budget.allows("step"):
                    break
                status.update(" ".join(together[0][:3]))
                with concurrent.futures.ThreadPoolExecutor(len(together)) as pool, ending_parts():
                    list(pool.map(of_words, together))
            write_report(folder)

        def measure_first_steps() -> None:
            measure_steps(in_groups(steps)[0] if steps else [])

        if n_workers > 1:
            _free_device_memory()
        verdicts = compare(early)
        points = tiny_points() if options.smoke else all_points()
        steps = step_commands(list(early), verdicts, is_trial=options.smoke)
        if n_workers > 1:
            # They compile for long, and are timed between the points.
            with concurrent.futures.ThreadPoolExecutor(2) as pool, ending_parts():
                beside = [
                    pool.submit(measure_first_steps),
                    pool.submit(measure_peers, folder, budget, options),
                ]
                measure(points[:N_FIRST], early, until=1.0)
                for each in beside:
                    each.result()
        else:
            measure(points[:_N_VERY_FIRST], early, budget.after(_VERY_FIRST))
            measure_steps(steps[:2])
            measure(points[:N_FIRST], early, budget.after(_FIRST))
            status.update("PyTorch")
            _free_device_memory()
            measure_peers(folder, budget, options)
        measure_steps(steps)
        measure(points, early, until=1.0)
        late = {name: engine for name, engine in engines.items() if name in LAST}
        if late and budget.allows("point"):
            verdicts = [*verdicts, *compare(late)]
            measure(points, engines, until=1.0)
            measure_steps(step_commands(list(engines), verdicts, is_trial=options.smoke))
    text = write_report(folder)
    print(text if len(text) < 20_000 else f"{folder / 'table.md'}: {len(text.splitlines())} lines")
    if budget.left < 0 or not budget.allows("point"):
        print(f"--minutes={options.minutes:g} are over: the same command measures what is missing")


def _free_device_memory() -> None:
    """Other processes need the memory that this one's allocator has gathered."""
    jax.clear_caches()
    clear_backends()
    # The client and its devices refer to each other, and keep the memory until they are found.
    gc.collect()


def measure_peers(folder: Path, budget: Budget, options: Gpu) -> None:
    """Runs PyTorch's part in a process of its own, half of the time that is left at most."""
    if importlib.util.find_spec("torch") is None:
        print("no figures of PyTorch: pip install -e '.[peers]'")
        return
    seconds = max(1.0, 0.5 * budget.left)
    words = [f"--out={folder / 'peers.jsonl'}", f"--first={N_FIRST}", f"--seconds={seconds:g}"]
    log = folder / "logs" / "peers.txt"
    failed = run_part("gpu.peers", words, seconds + 60, log, is_trial=options.smoke)
    if failed:
        print(f"no figures of PyTorch: {failed}")


def _check(options: Gpu) -> None:
    if options.rounds < 1 or options.workers < 0:
        raise InputError("--rounds must be at least 1, --workers at least 0")
    if not 0 < options.minutes < math.inf:
        raise InputError(f"--minutes={options.minutes:g} must be a finite number above 0")
    if not options.smoke and jax.default_backend() != "gpu":
        raise InputError(
            f"there is no GPU, JAX runs on {jax.default_backend()!r}: where there is one, pip "
            "install -e '.[cuda13]' (or cuda12) and run this again; --smoke tries the program "
            "without"
        )
