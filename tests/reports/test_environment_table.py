"""Environments are listed once each, with the number of their runs."""

import json

import synthetic_study as synthetic

from sparsemlp.reports.environment_table import environments
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_one_environment_is_one_row_of_all_started_runs(small):
    (row,) = environments(small)
    assert row["n_runs"] == len(small.runs) - 1
    assert "jax 0.12.0.1" in row["versions"]
    assert row["commit"] == "0" * 40


def test_commits_of_a_resumed_run_are_all_named(tmp_path):
    for name, change in (("a", {}), ("b", {"commit": "new", "earlier": [{"commit": "old"}]})):
        folder = synthetic.write_run(tmp_path / name, synthetic.settings(epochs=1))
        described = synthetic.ENVIRONMENT | change
        (folder / "environment.json").write_text(json.dumps(described))
    found = {row["commit"]: row["n_runs"] for row in environments(read_study(tmp_path))}
    assert found == {"0" * 40: 1, "new, old": 1}


def test_all_that_a_resumed_run_was_made_on_is_named_the_last_first(tmp_path):
    folder = synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=1))
    first, second = (
        synthetic.ENVIRONMENT | {"versions": {"jax": "0.11.1"}, "platform": platform}
        for platform in ("Linux 5", "Linux 6")
    )
    of_gpu = {"backend": "gpu", "device": "NVIDIA Dream", "earlier": [first, second]}
    now = second | of_gpu | {"versions": {"jax": "0.12.0"}}
    (folder / "environment.json").write_text(json.dumps(now))
    (row,) = environments(read_study(tmp_path))
    assert row["versions"] == "jax 0.12.0; before: jax 0.11.1"
    assert row["platform"] == "Linux 6, Linux 5"
    assert row["device"] == "NVIDIA Dream; before: 2 cores of a synthetic processor"


def test_a_lost_environment_says_so(tmp_path):
    folder = synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=1))
    (folder / "environment.json").unlink()
    (row,) = environments(read_study(tmp_path))
    assert (row["device"], row["commit"]) == ("not recorded", "not recorded")
