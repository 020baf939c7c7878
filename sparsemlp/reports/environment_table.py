"""On what the runs of a study were made: a row for each different environment."""

from sparsemlp.files import Record
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun


def environments(study: Study) -> list[Record]:
    """Device, versions, commit, data and platform, each with the number of its runs.

    Runs that were never started have none.
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
    versions = environment.get("versions")
    listed = versions.items() if isinstance(versions, dict) else ()
    notice = environment.get("notice")
    data = f"{run.dataset}: {notice}" if notice else run.dataset
    earlier = environment.get("earlier")
    commits = [environment, *(earlier if isinstance(earlier, list) else [])]
    made_at = dict.fromkeys(
        str(e["commit"]) for e in commits if isinstance(e, dict) and e.get("commit")
    )
    return (
        run.device or "not recorded",
        ", ".join(f"{name} {version}" for name, version in listed if version),
        ", ".join(made_at) or "not recorded",
        data,
        str(environment.get("platform") or ""),
    )
