"""Which cases of the tests run: those that are thorough, and every Nth."""

import collections

import pytest

APART = ("gpu", "slow", "exhaustive", "aot", "slurm", "browser")
"""Markers of tests that run when they are asked for, thorough or not."""


def settle_thorough(items: list[pytest.Item]) -> None:
    """Takes the marker `thorough(after=N)` off the first N cases of a test.

    And off those with a marker of `APART`: they do not count, and `-m thorough` does not run them.
    """
    seen = collections.Counter[str]()
    for item in items:
        marker = item.get_closest_marker("thorough")
        if marker is None:
            continue
        name, is_apart = _test(item), any(map(item.get_closest_marker, APART))
        if is_apart or seen[name] < marker.kwargs.get("after", 0):
            item.own_markers.remove(marker)
        seen[name] += not is_apart


def leave_out(items: list[pytest.Item], every: int) -> list[pytest.Item]:
    """Keeps the first case of each test and every Nth after it; returns those that it takes out."""
    seen = collections.Counter[str]()
    kept, left_out = [], []
    for item in items:
        (left_out if seen[_test(item)] % every else kept).append(item)
        seen[_test(item)] += 1
    items[:] = kept
    return left_out


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
