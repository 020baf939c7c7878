"""A run as a study has it, read from its folder.

Every file is read once. What an older version did not write is a gap, not an error: an option that
is younger has its default, a record without a key has NaN.
"""

from pathlib import Path

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import from_json
from sparsemlp.configuration.settings import Settings, resolve
from sparsemlp.errors import InputError
from sparsemlp.files import Record
from sparsemlp.runs.history import History
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.studies.study_run import Status, StudyRun, read_object


def read_run(path: Path, name: str, planned: Settings | None = None) -> StudyRun:
    """Reads the folder of a run; what cannot be read is a status with a reason, never an error.

    Args:
      path: the folder.
      name: what to call the run.
      planned: its settings by the grid, for a run that left none of its own.
    """
    folder = RunFolder(path)
    environment = folder.read_environment()
    settings, records = planned, ()
    try:
        failure, summary = read_object(folder.failure), folder.read_summary()
        if summary is None and folder.summary.is_file():
            summary = {}
        if folder.config.is_file():
            config = from_json(folder.config.read_text(), Path(folder.config.name))
            settings = resolve_for(config, str(environment.get("dataset", "")))
        elif failure is None:
            raise InputError(f"it has no {folder.config.name}")
        records = _read_records(folder.metrics)
        if summary and not records:
            raise InputError(f"it has {folder.summary.name}, but no epoch in {folder.metrics.name}")
        if summary and summary.get("epochs", len(records)) != len(records):
            raise InputError(
                f"{folder.summary.name} is of {summary['epochs']} epochs, "
                f"{folder.metrics.name} of {len(records)}"
            )
    except (InputError, OSError, UnicodeDecodeError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        return StudyRun(name, "unreadable", reason, planned, environment=environment, folder=folder)
    status, reason = _status(summary, failure, records, settings)
    return StudyRun(name, status, reason, settings, records, summary or {}, environment, folder)


def resolve_for(config: Config, dataset: str) -> Settings:
    """Settings of a stored configuration, its data set named by the run if not by itself."""
    named = config.dataset if config.dataset != "auto" else (dataset.split() or ["cifar10"])[0]
    return resolve(config, named)


def _status(
    summary: Record | None,
    failure: Record | None,
    records: tuple[Record, ...],
    settings: Settings | None,
) -> tuple[Status, str]:
    if summary:
        return "finished", ""
    if failure is not None:
        told = failure.get("error") or failure.get("kind") or "failure.json names no error"
        return "failed", " ".join(str(told).split())
    planned = f" of {settings.epochs}" if settings is not None else ""
    done = records[-1]["epoch"] if records else 0
    why = "there is no summary" if summary is None else "summary.json is damaged"
    return "unfinished", f"{done}{planned} epochs are recorded, {why}"


def _read_records(path: Path) -> tuple[Record, ...]:
    records = tuple(History(path).read())
    for number, record in enumerate(records, start=1):
        kinds = {"epoch": int, "test_top1": int | float, "step": int | None}
        for key, kind in kinds.items():
            if not isinstance(record.get(key), kind):
                raise InputError(f"{path.name}, line {number}: {key} is {record.get(key)!r}")
        if record["epoch"] != number:
            raise InputError(
                f"{path.name}, line {number}: it is of epoch {record['epoch']}, another is missing "
                "or there twice"
            )
    return records
