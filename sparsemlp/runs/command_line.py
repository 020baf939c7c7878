"""The command line of a training program."""

import contextlib
import dataclasses
import datetime
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from sparsemlp.configuration.config import CHANGEABLE, Config, is_file, located, with_data
from sparsemlp.configuration.config_file import from_json, read_config, to_json
from sparsemlp.configuration.descriptions import describe_masking, describe_run
from sparsemlp.configuration.settings import (
    Settings,
    check_said_in_vain,
    resolve,
)
from sparsemlp.data import LabelledImages, load_images
from sparsemlp.device import answering_device
from sparsemlp.distributed import processes
from sparsemlp.distributed.place import place_of
from sparsemlp.errors import InputError, NotFiniteError
from sparsemlp.exit_codes import exit_code
from sparsemlp.options import cli, flag, open_default
from sparsemlp.runs.announcement import announce
from sparsemlp.runs.interruption import deferred_signals
from sparsemlp.runs.progress import Reporter, TalkativeConsole
from sparsemlp.runs.run import Run
from sparsemlp.runs.run_folder import RunFolder

_LONGEST_JOIN = 86_400.0


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Everything on the command line."""

    run: Annotated[Config, tyro.conf.arg(name="")]
    """What to train."""
    out: Annotated[Path | None, open_default("FOLDER", "runs/TIME-DATASET-MODEL-MASKING-seedN")] = (
        None
    )
    """Folder of the run, made with its parents."""
    resume: Annotated[Path | None, open_default("FOLDER", "none, start a new run")] = None
    """Folder of an interrupted run to continue, with the options it was started with."""
    coordinator: Annotated[str | None, open_default("HOST:PORT", "none, one process")] = None
    """Machine of process 0 and a free port there, to train in several processes."""
    processes: Annotated[int | None, open_default("INT", "1; in a SLURM step its tasks")] = None
    """How many processes train together, on all of their devices."""
    process: Annotated[int | None, open_default("INT", "in a SLURM step its number")] = None
    """Which of them this is, from 0; 0 alone writes the folder."""
    join_timeout: float = 120.0
    """Seconds to wait for the other processes at the start."""


def main(
    description: str | None,
    arguments: Sequence[str] | None = None,
    *,
    defaults: Config | None = None,
) -> int:
    """Runs a training program.

    Args:
      description: head of the help text.
      arguments: the command line without the program's name; that of the process by default.
      defaults: what a run is without options; those of `Config` by default.

    Returns:
      The exit code.
    """

    def program() -> int:
        return _run(_parse(description, arguments, defaults or Config()))

    code = exit_code(
        lambda: processes.guarded(program, together=(NotFiniteError,)),
        stopped="a run that had begun goes on from its last checkpoint with --resume",
    )
    return processes.leave(code)


def _parse(description: str | None, arguments: Sequence[str] | None, defaults: Config) -> Arguments:
    """Reads the command line; with --resume, on top of what the run was started with."""
    arguments = sys.argv[1:] if arguments is None else arguments
    usual = Arguments(run=defaults)
    parsed = cli(Arguments, args=arguments, description=description, default=usual)
    if not 0 < parsed.join_timeout < _LONGEST_JOIN:
        raise InputError(
            f"--join-timeout={parsed.join_timeout:g} is outside (0, {_LONGEST_JOIN:g}): seconds "
            "to wait for the other processes"
        )
    place = place_of(parsed.coordinator, parsed.processes, parsed.process, os.environ)
    if parsed.resume is not None and parsed.out is not None:
        raise InputError("--resume and --out exclude each other: a resumed run keeps its folder")
    if parsed.resume is None:
        _resolve_early(parsed.run)
        check_said_in_vain(parsed.run)
    processes.join(place, parsed.join_timeout)
    processes.require_alike({"whether to --resume": parsed.resume is not None})
    if parsed.resume is None:
        return parsed
    folder = RunFolder(parsed.resume)
    stored = from_json(processes.shared(lambda: _stored_config(folder)), folder.config)
    started = Arguments(run=stored, resume=parsed.resume)
    parsed = cli(Arguments, args=arguments, default=started)
    name = stored.dataset if parsed.run.dataset == defaults.dataset else parsed.run.dataset
    run = dataclasses.replace(parsed.run, dataset=located(name))
    for field in dataclasses.fields(Config):
        before, now = getattr(stored, field.name), getattr(run, field.name)
        moved = field.name == "dataset" and is_file(before) and is_file(now)
        if before != now and not moved and field.name not in CHANGEABLE:
            raise InputError(
                f"{flag(field.name)}={now} differs from the {before} that "
                f"{folder.path} was started with: a resumed run keeps its options; leave it out, "
                "or start a new run with --out"
            )
    return dataclasses.replace(parsed, run=run)


def _resolve_early(config: Config) -> Settings:
    """The settings before the data are known: `auto` may come to mean either of two sets.

    Raises:
      InputError: the options fit no set that the name may stand for.
    """
    try:
        return resolve(config, config.dataset)
    except InputError:
        if config.dataset != "auto":
            raise
        with contextlib.suppress(InputError):
            return resolve(config, "digits")
        raise


def _stored_config(folder: RunFolder) -> str:
    """The configuration that a run was started with, as JSON."""
    folder.check_resumable()
    return to_json(read_config(folder.config))


def _run(arguments: Arguments) -> int:
    config, resumed = arguments.run, arguments.resume
    image_size = _resolve_early(config).image_size
    console = TalkativeConsole(quiet=not processes.is_first())
    with console.status("loading data") if console.is_terminal else contextlib.nullcontext():
        dataset = processes.in_turn(
            lambda: load_images(config.dataset, config.data_dir, image_size=image_size)
        )
    name = dataset.name if config.dataset == "auto" else config.dataset
    settings = resolve(with_data(config, dataset.name), name)
    processes.require_alike(_common(settings))
    folder = RunFolder(resumed or arguments.out or _default_folder(settings, dataset))
    if resumed is not None and dataset.notice is None:
        dataset = dataclasses.replace(dataset, notice=folder.read_environment().get("notice"))
    run = Run(settings, dataset, folder, describe_run(settings, dataset.source))
    if resumed is None:
        processes.shared(folder.create)
    with (
        folder.locked() if processes.is_first() else contextlib.nullcontext(),
        answering_device("the run goes on from its last checkpoint with --resume"),
        Reporter(settings.epochs, console) as reporter,
        deferred_signals() as interruption,
    ):
        announce(reporter, run)
        summary = run.train(reporter, interruption, resume=resumed is not None)
        if summary is None:
            reporter.say(f"interrupted by {interruption.name}; all is saved, go on with:")
            reporter.say("  " + shlex.join(["python", sys.argv[0], "--resume", str(folder.path)]))
            return 128 + (interruption.signal or 0)
        reporter.say(
            f"done    test top-1 {summary['test_top1']:.2%} (best "
            f"{summary['best_test_top1']:.2%}), top-5 {summary['test_top5']:.2%} on "
            f"{dataset.source}; pictures and numbers in {folder.path}"
        )
    return 0


def _common(settings: Settings) -> dict[str, Any]:
    """What has to be the same on all processes; where the data lie may differ."""
    values = {
        flag(field.name): getattr(settings, field.name)
        for field in dataclasses.fields(Settings)
        if field.name not in ("data_dir", "dataset", "checkpoint_every", "tensorboard", "workers")
    }
    return values | {"--dataset": Path(settings.dataset).name}


def _default_folder(settings: Settings, dataset: LabelledImages) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    model = "" if settings.model == "resmlp" else settings.model
    words = re.findall(r"[\w.]+", f"{dataset.name} {model} {describe_masking(settings)}"[:80])
    return Path("runs") / "-".join([now, *words, f"seed{settings.seed}"])
