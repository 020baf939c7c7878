"""Tables come back from their files as they were."""

import csv

import pytest
from cost_tables.csv_tables import write_csv

from sparsemlp.errors import SaveError


def test_numbers_are_unrounded_and_commas_quoted(tmp_path):
    write_csv(tmp_path / "a.csv", ["name", "number"], [["one, two", 0.1 + 0.2], ["b", 10**20]])
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["name", "number"], ["one, two", repr(0.1 + 0.2)], ["b", str(10**20)]]


def test_a_folder_in_the_place_of_the_table_is_named(tmp_path):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(SaveError):
        write_csv(tmp_path / "a.csv", ["name"], [])
