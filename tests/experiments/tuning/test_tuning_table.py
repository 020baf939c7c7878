"""A table that grows: what it has, what broke, and what the next program finds of it."""

import json

import pytest
from tuning.table import TuningTable, problem_key

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


@pytest.mark.parametrize(
    "changes", [{"device": "slide rule"}, {"versions": HERE["versions"] | {"jax": "9"}}]
)
def test_a_table_of_something_else_is_refused(tmp_path, changes):
    path = tmp_path / "table.json"
    table(path).add({"problem": FIRST})
    with pytest.raises(InputError, match="remove it to begin anew"):
        table(path, **changes)
    with pytest.raises(InputError, match="was made with measured True"):
        TuningTable(path, HERE, is_measured=False)
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(InputError, match=r"damaged\.json is damaged: remove it"):
        table(tmp_path / "damaged.json")
    assert table(path, versions=HERE["versions"] | {"flax": "9"}).has(FIRST)
