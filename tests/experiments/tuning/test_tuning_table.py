"""A table that grows: what it has, what broke, and what the next program finds of it."""

import datetime
import json

import pytest
from tuning.table import TuningTable, held, problem_key

from sparsemlp import InputError

HERE = {"device": "abacus", "versions": {"jax": "1", "jaxlib": "2", "flax": "3"}}
FIRST, SECOND = {"kernel": "product", "n_rows": 8}, {"kernel": "mlp", "n_rows": 8}


def table(path, **changes) -> TuningTable:
    return TuningTable(path, HERE | changes, is_measured=True)


def test_the_next_program_finds_entries_and_what_broke(tmp_path):
    path = tmp_path / "table.json"
    begun = table(path)
    assert not path.exists()
    begun.add({"problem": FIRST, "configuration": {"rows": 64}})
    begun.write_down(problem_key(SECOND), "rows 32", "an illegal address")
    later = table(path)
    assert later.n_entries == 1
    assert later.has(FIRST)
    assert not later.has(SECOND)
    assert later.broken(SECOND) == {"rows 32": "an illegal address"}
    assert later.broken(FIRST) == {}


def test_an_entry_of_other_code_is_replaced(tmp_path):
    path = tmp_path / "table.json"
    for entry in ({"problem": FIRST}, {"problem": SECOND, "code": "old"}):
        table(path).add(entry)
    begun = table(path)
    assert begun.has(FIRST)
    assert begun.has(SECOND, "old")
    assert not any(begun.has(problem, "new") for problem in (FIRST, SECOND))
    begun.add({"problem": FIRST, "code": "new"})
    assert table(path).has(FIRST, "new")
    entries = json.loads(path.read_text())["entries"]
    assert entries == [{"problem": FIRST, "code": "new"}, {"problem": SECOND, "code": "old"}]


def test_a_problem_with_an_entry_is_no_longer_broken(tmp_path):
    begun = table(tmp_path / "table.json")
    begun.write_down(problem_key(FIRST), "", "took longer than 2 s")
    begun.add({"problem": FIRST, "configuration": {}})
    assert json.loads(begun.path.read_text())["broken"] == {}


def test_the_name_of_a_problem_does_not_depend_on_the_order_of_its_parts():
    assert problem_key(FIRST) == problem_key(dict(reversed(FIRST.items())))
    assert problem_key(FIRST) != problem_key(SECOND)


def test_an_entry_of_other_versions_is_kept_until_it_is_measured_again(tmp_path):
    path, newer = tmp_path / "table.json", HERE["versions"] | {"jax": "9"}
    begun = table(path)
    for problem in (FIRST, SECOND):
        begun.add({"problem": problem, "code": "of today"})
    begun.write_down("a problem", "rows 32", "an illegal address")
    later = table(path, versions=newer)
    assert later.n_entries == 2
    assert not later.has(FIRST)
    assert not later.has(FIRST, "of today")
    later.add({"problem": FIRST})
    record = json.loads(path.read_text())
    assert record["versions"] == {"jax": "9", "jaxlib": "2"}
    first, second = record["entries"]
    assert first == {"problem": FIRST}
    assert (second["problem"], second["versions"]) == (SECOND, {"jax": "1", "jaxlib": "2"})
    assert second["date"] == str(datetime.date.today())
    assert not record.get("broken")
    third = table(path, versions=newer)
    assert third.has(FIRST)
    assert not third.has(SECOND)
    back = table(path)
    assert back.has(SECOND)
    assert not back.has(FIRST)


def test_one_program_at_a_time_writes_a_table(tmp_path):
    path = tmp_path / "table.json"
    for _ in range(2):
        with held(path):
            with held(tmp_path / "another.json"):
                pass
            with pytest.raises(InputError, match=r"table\.json is being written by another tune"):
                held(path).__enter__()


def test_a_table_of_something_else_is_refused(tmp_path):
    path = tmp_path / "table.json"
    table(path).add({"problem": FIRST})
    with pytest.raises(InputError, match=r"^the table was made with device .* begin anew"):
        TuningTable(path, HERE | {"device": "x"}, is_measured=True, told="the table")
    with pytest.raises(InputError, match="was made with measured True"):
        TuningTable(path, HERE, is_measured=False)
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(InputError, match=r"damaged\.json is damaged: remove it"):
        table(tmp_path / "damaged.json")
    assert table(path, versions=HERE["versions"] | {"flax": "9"}).has(FIRST)
