"""Comparisons as a reader and as a program see them."""

import json

import synthetic_study as synthetic

from sparsemlp.reports import comparison_table
from sparsemlp.studies.comparison import compare
from sparsemlp.studies.study import read_study


def test_cells_and_records_say_the_same_of_each_comparison(tmp_path):
    for seed in (0, 1):
        own = synthetic.settings(block="32x32", ratio=0.8, seed=seed)
        synthetic.write_run(tmp_path / str(seed), own)
    comparisons = compare(read_study(tmp_path))
    found = {
        (comparison_table.setting(c), c.published.quantity): c
        for c in comparisons
        if c.value is not None
    }
    accuracy = found["32x32 at 0.8, masked backward", "test_top1"]
    cells, record = comparison_table.cells(accuracy), comparison_table.record(accuracy)
    assert accuracy.value is not None
    assert cells["value"].startswith(f"{100 * accuracy.value:.2f}")
    assert accuracy.difference is not None
    assert cells["difference"] == f"{100 * accuracy.difference:+.2f} points"
    assert (record["value"], record["n_runs"]) == (accuracy.value, 2)
    assert (record["block"], record["ratio"], record["backward"]) == ("32x32", 0.8, "masked")
    assert record["spread"] == accuracy.spread > 0

    moved = next(c for (_, quantity), c in found.items() if quantity == "thesis_movement_gb")
    cells, record = comparison_table.cells(moved), comparison_table.record(moved)
    assert cells["quantity"] == "memory movement"
    assert " GB (" in cells["difference"]
    assert record["value"] == moved.value


def test_a_published_number_without_a_run_is_a_record_of_nothing(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=1))
    lacking = [c for c in compare(read_study(tmp_path)) if c.value is None]
    record = comparison_table.record(lacking[0])
    assert (record["value"], record["run"], record["spread"]) == (None, None, None)
    assert json.loads(json.dumps(record)) == record
