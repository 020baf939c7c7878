"""Nothing begins that is not expected to end in time."""

import pytest
from gpu import budget as gpu_budget
from gpu.budget import Budget


def test_a_piece_begins_only_if_the_longest_of_its_kind_would_fit(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(gpu_budget.time, "monotonic", lambda: now)
    budget = Budget(1.0)
    assert budget.left == 60
    assert budget.allows("point")
    budget.note("point", 20.0)
    budget.note("point", 5.0)
    now = 135.0
    assert budget.left == 25
    assert budget.share_used == pytest.approx(35 / 60)
    assert budget.allows("point")
    now = 145.0
    assert not budget.allows("point")
    assert budget.allows("step")
    now = 161.0
    assert not budget.allows("step")


def test_a_part_of_the_time_is_a_share_of_what_is_left(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(gpu_budget.time, "monotonic", lambda: now)
    budget = Budget(1.0)
    now = 30.0
    until = budget.after(0.4)
    assert until == pytest.approx(0.7)  # of 60 s: 30 and 0.4 * 30
    budget.note("point", 5.0)
    now = 36.0
    assert budget.allows("point", until)
    now = 38.0
    assert not budget.allows("point", until)
    assert budget.allows("point")
