"""A covering set: few combinations in which every two choices still meet."""

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

Pair = tuple[tuple[int, Hashable], tuple[int, Hashable]]


def covering_set(*factors: Sequence[Hashable]) -> list[tuple]:
    """Rows of the product of all factors that hold every pair of values of any two factors.

    Greedy, and the same in every run: the row with the most pairs that no earlier row has, the
    first of the product among equals.
    """
    pairs_of = {row: pairs(row) for row in itertools.product(*factors)}
    missing = set[Pair]().union(*pairs_of.values())
    chosen: list[tuple] = []
    while missing:
        best = max(pairs_of, key=lambda row: len(pairs_of[row] & missing))
        missing -= pairs_of[best]
        chosen.append(best)
    return chosen


def every_pair(**factors: Sequence[Hashable]) -> pytest.MarkDecorator:
    """Parametrises by all combinations; those beyond a covering set run with `-m slow`."""
    chosen = set(covering_set(*factors.values()))
    return pytest.mark.parametrize(
        tuple(factors),
        [
            pytest.param(*row, marks=() if row in chosen else pytest.mark.slow)
            for row in itertools.product(*factors.values())
        ],
        ids=_name,
    )


def _name(value: Any) -> str:
    return getattr(value, "__name__", str(value))


def pairs(row: tuple[Hashable, ...]) -> frozenset[Pair]:
    """Every two values of a row, each with its position."""
    return frozenset(itertools.combinations(enumerate(row), 2))
