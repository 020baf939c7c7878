"""On what the runs of a study were made: a row for each different environment."""

from collections.abc import Callable

from sparsemlp.files import Record
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun, describe_device


def environments(study: Study) -> list[Record]:
    """Device, versions, commit, data and platform, each with the number of its runs.

    Runs that were never started have none. Of a resumed run all but the data are those of all its
    starts, the last one first.
    """
    counts: dict[tuple[str, ...], int] = {}
    for run in study.runs:
        if run.folder is not None:
            key = _describe(run)
            counts[key] = counts.get(key, 0) + 1
    names = ("device", "versions", "commit", "dataset", "platform")
    return [dict(zip(names, key, strict=True)) | {"n_runs": n} for key, n in counts.items()]


def _describe(run: StudyRun) -> tuple[str, ...]:
    environment = run.environment
    notice = environment.get("notice")
    data = f"{run.dataset}: {notice}" if notice else run.dataset
    earlier = environment.get("earlier")
    starts = [environment, *(earlier if isinstance(earlier, list) else [])]
    starts = [start for start in starts if isinstance(start, dict)]

    def of_starts(told: Callable[[Record], str], between: str = ", ") -> str:
        return between.join(filter(None, dict.fromkeys(map(told, starts))))

    return (
        of_starts(describe_device, "; before: ") or "not recorded",
        of_starts(_versions, "; before: "),
        of_starts(lambda start: str(start.get("commit") or "")) or "not recorded",
        data,
        of_starts(lambda start: str(start.get("platform") or "")),
    )


def _versions(environment: Record) -> str:
    versions = environment.get("versions")
    listed = versions.items() if isinstance(versions, dict) else ()
    return ", ".join(f"{name} {version}" for name, version in listed if version)
