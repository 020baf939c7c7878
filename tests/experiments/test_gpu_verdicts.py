"""Every comparison is made or counts as failed, whatever ends the process that makes it."""

import json
from typing import Any

import gpu_verdicts
import pytest
from gpu_check import at_work_of, comparisons
from gpu_points import Point
from gpu_verdicts import compare_engines, verdict_against

from pallas_kernels import Reference
from sparsemlp.runs.history import History

POINTS = [Point((64, 64), (side, side), 0.5, 24, "float32") for side in (32, 16)]
ENGINES: dict[str, Any] = {"it": Reference()}
WANTED = comparisons("it", ENGINES["it"], POINTS)
KEYS = list(WANTED)


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Stands for the program that compares: each start does the next of these."""
    path = tmp_path / "correctness.jsonl"
    lives: list[Any] = []
    monkeypatch.setattr(gpu_verdicts, "check_points", lambda _: POINTS)

    def run_part(script: str, words: list[str], seconds: float, *, is_trial: bool) -> str:
        assert (script, words) == ("gpu_check.py", ["--engine=it", f"--out={path}"])
        right, at_work, reason = lives.pop(0)
        done = {record["key"] for record in History(path).read()}
        for key in [key for key in KEYS if key not in done][:right]:
            History(path).append({"key": key, **WANTED[key], "wrong": "", "measured": False})
        if at_work is not None:
            at_work_of(path).begin("it", KEYS[at_work])
        return reason

    monkeypatch.setattr(gpu_verdicts, "run_part", run_part)
    return lives


def wrong(folder) -> dict[int, str]:
    records = History(folder / "correctness.jsonl").read()
    assert sorted(record["key"] for record in records) == sorted(KEYS)
    return {KEYS.index(record["key"]): record["wrong"] for record in records if record["wrong"]}


def test_what_aborts_its_process_is_wrong_and_the_rest_is_compared(child, tmp_path, capsys):
    child += [(2, 2, "exit -6"), (99, None, "")]
    compare_engines(tmp_path, ENGINES, is_trial=True)
    assert wrong(tmp_path) == {2: "ended the process while it ran: exit -6"}
    assert f"1 of {len(KEYS)} comparisons failed on this device" in capsys.readouterr().out
    compare_engines(tmp_path, ENGINES, is_trial=True)
    assert not child


@pytest.mark.parametrize(
    ("lives", "n_wrong", "reason"),
    [
        ([(0, None, "ImportError: no tyro")], 6, "not compared: ImportError: no tyro"),
        ([(4, 5, "took longer than 150 s")], 2, "not compared: took longer than 150 s"),
        ([(1, 1, "x"), (0, 2, "x"), (0, 3, "exit -6")], 5, "not compared: exit -6"),
    ],
)
def test_what_was_not_compared_is_not_trusted(child, tmp_path, lives, n_wrong, reason):
    child += lives
    compare_engines(tmp_path, ENGINES, is_trial=True)
    found = wrong(tmp_path)
    assert len(found) == n_wrong
    assert found[5] == reason
    assert not child


def test_a_name_that_an_earlier_process_left_is_not_blamed_again(child, tmp_path):
    at_work_of(tmp_path / "correctness.jsonl").begin("other", "of another engine")
    child += [(0, None, "ImportError: no tyro")]
    compare_engines(tmp_path, ENGINES, is_trial=True)
    assert set(wrong(tmp_path).values()) == {"not compared: ImportError: no tyro"}


def test_a_wrong_kernel_stands_for_its_block_and_dtype():
    records = [
        {"key": key, **json.loads(json.dumps(WANTED[key])), "wrong": "off" if i == 0 else ""}
        for i, key in enumerate(KEYS)
    ]
    against = verdict_against(records, "it", (32, 32), "float32")
    assert against == f"wrong on this device: {KEYS[0]}: off"
    assert not verdict_against(records, "it", (32, 32), "float32", ("kernel_gradient",))
    assert not verdict_against(records, "it", (16, 16), "float32")
    assert not verdict_against(records, "it", (32, 32), "bfloat16")
    assert not verdict_against(records, "other", (32, 32), "float32")
    assert not verdict_against([*records, records[0] | {"wrong": ""}], "it", (32, 32), "float32")
