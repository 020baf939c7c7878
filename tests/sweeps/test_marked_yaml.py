"""YAML is read with its lines, nothing in it is executed, and problems are told in order."""

from pathlib import Path

import pytest
import yaml

from sparsemlp.errors import InputError
from sparsemlp.sweeps.marked_yaml import (
    Problems,
    Scalar,
    compose,
    entries,
    line_of,
    scalar,
    scalars,
)

FILE = Path("grid.yaml")


def node(text: str) -> yaml.Node:
    made = compose(FILE, text)
    assert made is not None
    return made


def test_keys_and_values_know_their_lines():
    problems = Problems(FILE)
    first, second = entries(node("a: 1\nb:\n  - x\n"), "file", problems)
    assert (first.key, first.line, line_of(first.node)) == ("a", 1, 1)
    assert (second.key, second.line, line_of(second.node)) == ("b", 2, 3)
    assert not problems


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2:4", "2:4"),
        ("1e-4", "1e-4"),
        ("on", "on"),
        ("0.80", "0.80"),
        ("2026-01-31", "2026-01-31"),
        ("'1'", "1"),
        ("~", None),
    ],
)
def test_a_value_is_what_was_written_and_not_what_yaml_makes_of_it(text, read):
    problems = Problems(FILE)
    assert scalar(node(text), "x", problems) == Scalar(1, read)
    assert not problems


def test_a_single_value_is_a_list_of_one():
    problems = Problems(FILE)
    assert scalars(node("32x32"), "x", problems) == [Scalar(1, "32x32")]
    assert [s.line for s in scalars(node("- a\n\n- b"), "x", problems)] == [1, 3]
    assert not problems


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\na: 2", "'a' stands here and in line 1"),
        ("- 1", "must be a mapping"),
        ("[1, 2]: 3", "a key must be a word"),
    ],
)
def test_what_is_no_plain_mapping_is_a_problem(text, told):
    problems = Problems(FILE)
    entries(node(text), "file", problems)
    assert [told in problem.text for problem in problems] == [True]


def test_tags_that_would_construct_something_are_refused(tmp_path):
    problems = Problems(FILE)
    evil = f"!!python/object/apply:os.system ['touch {tmp_path}/pwned']"
    assert scalar(node(evil), "x", problems) is None
    assert scalar(node("!!python/name:os.system x"), "x", problems) is None
    assert len(problems) == 2
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1, 2\nb: 3", "grid.yaml:2: this is no YAML"),
        ("a: 1\n--- \nb: 2", "grid.yaml:2: this is no YAML: expected a single document"),
        ("a: \x00", "grid.yaml is no YAML"),
        ("[" * 5000, "grid.yaml"),
    ],
    ids=["bracket", "documents", "nul", "deep"],
)
def test_what_is_no_yaml_is_told_with_its_line(text, told):
    with pytest.raises(InputError) as caught:
        compose(FILE, text)
    assert str(caught.value).startswith(told)


def test_problems_are_told_together_in_the_order_of_the_file_each_once():
    problems = Problems(FILE)
    problems.require_none()
    problems.add(7, "late")
    with pytest.raises(InputError, match=r"^grid.yaml:7: late \(nothing was started\)$"):
        problems.require_none()
    for _ in range(2):
        problems.add(3, "early")
    with pytest.raises(InputError) as caught:
        problems.require_none()
    heading, *lines = str(caught.value).splitlines()
    assert "2 problems" in heading
    assert [line.strip() for line in lines] == ["grid.yaml:3: early", "grid.yaml:7: late"]
