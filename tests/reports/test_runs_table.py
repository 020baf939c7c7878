"""CSV and JSON hold the same unrounded numbers, gaps are empty, and infinities have names."""

import csv
import json
import math

import pytest
import synthetic_study as synthetic

from sparsemlp.reports.runs_table import COLUMNS, plain, rows, show, write_csv, write_json
from sparsemlp.studies.study import read_study

small = synthetic.small
BY_KEY = {column.key: column for column in COLUMNS}


def test_csv_and_json_agree_and_are_unrounded(small, tmp_path):
    table = rows(small)
    write_csv(tmp_path / "runs.csv", table)
    write_json(tmp_path / "runs.json", table, {"more": 1})
    with (tmp_path / "runs.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    stored = json.loads((tmp_path / "runs.json").read_text())
    assert stored["more"] == 1
    assert set(stored["columns"]) == set(BY_KEY)
    assert len(read) == len(stored["runs"]) == len(small.runs)
    for line, record, run in zip(read, stored["runs"], small.runs, strict=True):
        for key, value in record.items():
            assert line[key] == ("" if value is None else str(value))
        if run.records:
            assert float(line["test_top1"]) == run.records[-1]["test_top1"]


def test_a_missing_run_has_its_settings_and_theory_and_no_measurement(small):
    row = rows(small)[-1]
    assert (row["status"], row["block"], row["ratio"]) == ("missing", "32x32", 0.8)
    assert row["loaded_elements"] is not None
    assert row["test_top1"] is row["step_ms"] is row["seconds"] is None


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (None, ""), (0.1, "0.1")]
)
def test_cells_of_a_csv_read_back(value, text):
    assert plain(value) == text
    if isinstance(value, float):
        assert float(text) == value or math.isnan(value)


def test_cells_of_a_page_are_short():
    assert show(BY_KEY["test_top1"], 0.75189) == "75.19%"
    assert show(BY_KEY["seconds"], 90.0) == "1.5"
    assert show(BY_KEY["loaded_elements"], 2_880_000_000) == "2.88"
    assert show(BY_KEY["loaded_elements"], 912_345) == "0.000912"
    assert show(BY_KEY["loaded_elements"], 0) == "0.00"
    assert show(BY_KEY["training_flops"], 2.5e13) == "0.025"
    assert show(BY_KEY["loss"], math.inf) == "infinite"
    assert show(BY_KEY["loss"], -math.inf) == "-infinite"
    assert show(BY_KEY["loss"], math.nan) == "NaN"
    assert show(BY_KEY["loss"], None) == ""


def test_every_column_says_what_it_means_and_theory_is_called_so():
    assert len(BY_KEY) == len(COLUMNS)
    for key in ("loaded_elements", "thesis_movement_gb", "thesis_flops", "training_flops"):
        assert BY_KEY[key].meaning.startswith("theoretical")


def test_an_environment_from_elsewhere_is_a_gap(tmp_path):
    folder = synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=1))
    environment = synthetic.ENVIRONMENT | {"versions": ["jax 0.12"]}
    (folder / "environment.json").write_text(json.dumps(environment))
    (row,) = rows(read_study(tmp_path))
    assert row["jax"] is None
    assert row["status"] == "finished"
