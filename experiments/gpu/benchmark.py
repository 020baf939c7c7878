"""Everything worth knowing about a GPU in one go, the most telling first, kept as it is found."""

import concurrent.futures
import dataclasses
import gc
import hashlib
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import jax
import tyro
from jax.extend.backend import clear_backends
from rich.console import Console
from tuning.ceilings import Ceilings, measured_ceilings
from tuning.device_lock import device_lock
from tuning.kernel_problems import LAST, gpu_engines
from tuning.watch import ended_by_sigterm
from tuning.workers import cached_in, environment_with, usual_workers

import pallas_kernels
from gpu.budget import Budget
from gpu.part import ending_parts, run_part
from gpu.point_records import measure_points
from gpu.points import N_FIRST, Point, all_points, tiny_points
from gpu.report import write_report
from gpu.step_models import MODELS
from gpu.verdicts import compare_engines, verdict_against
from pallas_kernels import Engine
from sparsemlp import InputError
from sparsemlp.files import Record, make_folder, write_json
from sparsemlp.runs.environment import describe_environment

_N_VERY_FIRST = 4
"""Points that come before the first training steps, dense and the first engine's of one model."""
_CHECKS, _VERY_FIRST, _FIRST = 0.4, 0.3, 0.5
"""Share of the time that the checks may take; of what they and what came after leave, that of the
first points."""
_CODE = ("*.py", "*.h", "tables/*.json")
_STEPS_UNTIL, _LONGEST_STEP = 0.8, 240.0
"""Share of the time after which no training step begins; seconds that one may take."""


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
    device = _open_folder(folder, options)
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
        compiled = {"JAX_COMPILATION_CACHE_DIR": scratch}

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

        def measure_steps(some: Sequence[list[str]]) -> None:
            if n_workers == 1:
                _free_device_memory()
            for together in in_groups(some) if n_workers > 1 else [[words] for words in some]:
                if budget.share_used > _STEPS_UNTIL or not budget.allows("step"):
                    break
                status.update(" ".join(together[0][:3]))
                with concurrent.futures.ThreadPoolExecutor(len(together)) as pool, ending_parts():
                    list(
                        pool.map(
                            lambda words: measure_step(folder, words, budget, options, compiled),
                            together,
                        )
                    )
            write_report(folder)

        def measure_first_steps() -> None:
            measure_steps(in_groups(steps)[0] if steps else [])

        if n_workers > 1:
            _free_device_memory()
        verdicts = compare(early)
        points = tiny_points() if options.smoke else all_points()
        steps = step_commands(list(early), verdicts, options)
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
            measure_steps(step_commands(list(engines), verdicts, options))
    text = write_report(folder)
    print(text if len(text) < 20_000 else f"{folder / 'table.md'}: {len(text.splitlines())} lines")
    if budget.left < 0 or not budget.allows("point"):
        print(f"--minutes={options.minutes:g} are over: the same command measures what is missing")


def in_groups(commands: Sequence[list[str]]) -> list[list[list[str]]]:
    """The commands of training steps of one model and dtype, together."""
    groups: dict[tuple[str, str], list[list[str]]] = {}
    for words in commands:
        groups.setdefault((words[0], words[2]), []).append(words)
    return list(groups.values())


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


def step_commands(engines: list[str], verdicts: Sequence[Record], options: Gpu) -> list[list[str]]:
    """The options of every training step, the ones that tell most first.

    Args:
      engines: their names.
      verdicts: of their comparisons with the reference; who is wrong is left out.
      options: of the benchmark.
    """
    names = ["tiny"] if options.smoke else [name for name in MODELS if name != "tiny"]
    dtypes = ["bfloat16"] if options.smoke else ["bfloat16", "float32"]
    contenders = ["dense", *engines, "reference"]
    return [
        [f"--model={model}", f"--contender={contender}", f"--dtype={dtype}"]
        for dtype in dtypes
        for model in names
        for contender in (contenders[1:2] if options.smoke else contenders)
        if not verdict_against(verdicts, contender, MODELS[model].block, dtype)
    ]


def measure_step(
    folder: Path,
    words: list[str],
    budget: Budget,
    options: Gpu,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Measures a training step in a process of its own, unless its record is there.

    Args:
      folder: where the records are.
      words: options of `gpu.steps`.
      budget: how much time is left; told what this took.
      options: of the benchmark.
      variables: of the environment of that process, beside those of this one.
    """
    name = "_".join(word.partition("=")[2] for word in words)
    path = folder / "steps" / f"{name}.json"
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    words = [*words, f"--rounds={options.rounds}", f"--out={path}"]
    seconds = max(1.0, min(budget.left, _LONGEST_STEP))
    log = folder / "logs" / f"{name}.txt"
    failed = run_part("gpu.steps", words, seconds, log, is_trial=options.smoke, variables=variables)
    budget.note("step", time.monotonic() - began)
    if failed:
        print(f"{name}: {failed}")
        is_final = not failed.startswith("took longer") or seconds == _LONGEST_STEP
        if is_final and not path.exists():
            write_json(path, {"key": name, "measured": not options.smoke, "failed": failed})


def code_digest() -> str:
    """A checksum of the kernels and of what times them: numbers of other code are not mixed.

    Nor are those of other tables, by which kernels are cut.
    """
    digest = hashlib.sha256()
    for folder in (Path(pallas_kernels.__file__).parent, Path(__file__).parents[1]):
        for path in sorted(p for kind in _CODE for p in folder.rglob(kind)):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _open_folder(folder: Path, options: Gpu) -> Record:
    """What the folder says of the device; measured and written if it is new.

    Raises:
      InputError: its results are of another device, of other code or versions, or of a trial.
    """
    path, environment = folder / "device.json", describe_environment()
    own = {
        "measured": not options.smoke,
        "device": environment["device"],
        "versions": environment["versions"],
        "code": code_digest(),
    }
    if path.exists():
        device = json.loads(path.read_text())
        for name, value in own.items():
            if device.get(name) != value:
                raise InputError(
                    f"--out={folder} holds results with {name} {device.get(name)}, this is "
                    f"{value}: choose another folder"
                )
        return device
    with device_lock(is_trial=options.smoke)():
        ceilings = measured_ceilings(is_tiny=options.smoke)
    device = own | {"environment": environment, "ceilings": ceilings._asdict()}
    device["memory"] = jax.devices()[0].memory_stats()
    write_json(path, device)
    return device


def _check(options: Gpu) -> None:
    if options.rounds < 1 or options.minutes <= 0 or options.workers < 0:
        raise InputError("--rounds must be at least 1, --workers at least 0, --minutes above 0")
    if not options.smoke and jax.default_backend() != "gpu":
        raise InputError(
            f"there is no GPU, JAX runs on {jax.default_backend()!r}: where there is one, pip "
            "install -e '.[cuda13]' (or cuda12) and run this again; --smoke tries the program "
            "without"
        )
