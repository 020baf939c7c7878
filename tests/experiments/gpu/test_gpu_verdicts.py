"""Every comparison is made or counts as failed, whatever ends the process that makes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from gpu import verdicts as gpu_verdicts
from gpu.check import at_work_of, comparisons
from gpu.points import Point
from gpu.verdicts import compare_engines, verdict_against

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

    def run_part(script: str, words: list[str], seconds: float, log: Path, **rest: Any) -> str:
        own = ["--engine=it", f"--out={path}", "--share=0", "--shares=1"]
        assert (script, words) == ("gpu.check", own)
        assert 0 < seconds <= 60
        assert "autotune_level=0" in rest["variables"]["XLA_FLAGS"]
        right, at_work, reason = lives.pop(0)
        done = {record["key"] for record in History(path).read()}
        for key in [key for key in KEYS if key not in done][:right]:
            History(path).append({"key": key, **WANTED[key], "wrong": "", "measured": False})
        if at_work is not None:
            at_work_of(path, "it").begin("it", KEYS[at_work])
        return reason

    monkeypatch.setattr(gpu_verdicts, "run_part", run_part)
    return lives


def compared(folder: Path, seconds: float = 60.0) -> dict[int, str]:
    """What is wrong after a call, by the number of the comparison."""
    records = compare_engines(folder, ENGINES, seconds, is_trial=True)
    assert sorted(record["key"] for record in records) == sorted(KEYS)
    return {KEYS.index(record["key"]): record["wrong"] for record in records if record["wrong"]}


def written(folder: Path) -> list[int]:
    return [KEYS.index(each["key"]) for each in History(folder / "correctness.jsonl").read()]


def test_what_aborts_its_process_is_wrong_and_the_rest_is_compared(child, tmp_path, capsys):
    child += [(2, 2, "exit -6"), (99, None, "")]
    assert compared(tmp_path) == {2: "ended the process while it ran: exit -6"}
    assert f"1 of {len(KEYS)} comparisons failed on this device" in capsys.readouterr().out
    assert compared(tmp_path) == {2: "ended the process while it ran: exit -6"}
    assert not child


@pytest.mark.parametrize(
    ("lives", "n_wrong", "reason"),
    [
        ([(0, None, "ImportError: no tyro")], 6, "not compared: ImportError: no tyro"),
        ([(4, 5, "took longer than 60 s")], 2, "not compared: took longer than 60 s"),
        ([(1, 1, "x"), (0, 2, "x"), (0, None, "exit 1")], 3, "not compared: exit 1"),
    ],
)
def test_what_was_not_compared_is_not_trusted_and_compared_by_the_next_call(
    child, tmp_path, lives, n_wrong, reason
):
    child += lives
    found = compared(tmp_path)
    missing = [number for number, each in found.items() if each.startswith("not compared")]
    assert len(missing) == n_wrong
    assert found[5] == reason
    assert not child
    assert not set(missing) & set(written(tmp_path))
    child.append((99, None, ""))
    assert not set(compared(tmp_path)) & set(missing)


def test_a_kernel_after_the_other_may_end_its_process(child, tmp_path):
    child += [(0, number, "exit -6") for number in range(6)]
    assert len(compared(tmp_path)) == 6
    assert written(tmp_path) == list(range(6))


def test_without_time_nothing_is_compared(child, tmp_path):
    assert set(compared(tmp_path, seconds=0.0).values()) == {"not compared: no time was left"}


def test_a_name_that_an_earlier_process_left_is_not_blamed_again(child, tmp_path):
    at_work_of(tmp_path / "correctness.jsonl", "it").begin("other", "of another engine")
    child += [(0, None, "ImportError: no tyro")]
    assert set(compared(tmp_path).values()) == {"not compared: ImportError: no tyro"}


def test_processes_share_the_comparisons_of_engines(tmp_path, monkeypatch):
    engines: dict[str, Any] = {"it": Reference(), "mosaic": Reference()}
    made: list[tuple[str, str, str]] = []

    def run_part(script: str, words: list[str], seconds: float, log: Path, **rest: Any) -> str:
        name, _, share, shares = (word.partition("=")[2] for word in words)
        made.append((name, share, shares))
        known = comparisons(name, engines[name], POINTS)
        for key in gpu_verdicts.share_of(known, int(share), int(shares)):
            with gpu_verdicts.writing(tmp_path / "correctness.jsonl")():
                record = known[key] | {"key": key, "wrong": "", "measured": False}
                History(tmp_path / "correctness.jsonl").append(record)
        return ""

    monkeypatch.setattr(gpu_verdicts, "check_points", lambda _: POINTS)
    monkeypatch.setattr(gpu_verdicts, "run_part", run_part)
    records = compare_engines(tmp_path, engines, 60.0, is_trial=True, n_workers=4)
    assert sorted(made) == [("it", "0", "1"), ("mosaic", "0", "2"), ("mosaic", "1", "2")]
    assert len({record["key"] for record in records}) == len(records) == 2 * len(KEYS)


def test_a_wrong_kernel_stands_for_its_block_and_dtype():
    records = [
        {"key": key, **json.loads(json.dumps(WANTED[key])), "wrong": "off" if i == 0 else ""}
        for i, key in enumerate(KEYS)
    ]
    against = verdict_against(records, "it", (32, 32), "float32")
    assert against == f"wrong on this device: {KEYS[0]}: off"
    assert not verdict_against(records, "it", (32, 32), "float32", ("kernel_gradient",))
    assert not verdict_against(records, "it", (16, 16), "float32")
    records[0]["wrong"] = "not compared: took longer than 40 s"
    against = verdict_against(records, "it", (32, 32), "float32")
    assert against == f"{KEYS[0]}: not compared: took longer than 40 s"
    assert not verdict_against(records, "it", (32, 32), "bfloat16")
    assert not verdict_against(records, "other", (32, 32), "float32")
    assert not verdict_against([*records, records[0] | {"wrong": ""}], "it", (32, 32), "float32")
