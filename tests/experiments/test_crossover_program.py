"""The search for crossovers finds them, and writes a table that the library reads."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import crossover
import jax
import jax.numpy as jnp
import pytest
from benchmarks.crossover_phases import PAIRS, Case, Comparison

from pallas_kernels import Cpu, SparseLayer
from pallas_kernels.cpu.crossover import PHASES, load_table
from sparsemlp import InputError

TINY = (
    *("--kernel", "8x16", "tokens:8x8", "--block", "1x1", "4x4", "16x8"),
    *("--rows", "8", "--channels", "2"),
)
SMALL = Case((8, 8), -1, 4, 2)


@pytest.fixture
def native() -> None:
    """Skips where there is no native library."""
    layer = SparseLayer((8, 8), (1, 1), 1, -1, "float32")
    if reason := Cpu().reason_against(layer, jax.default_backend()):
        pytest.skip(reason)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program with this command line, in this process, whose memory it leaves as it is."""
    monkeypatch.setattr(crossover, "_keep_freed_memory", lambda: None)

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["crossover.py", *map(str, words)])
        return crossover.main()

    return run


def script_turns(
    monkeypatch: pytest.MonkeyPatch, native_seconds: Any, stepwise_seconds: float = 1.0
) -> None:
    """Dense takes a second, and the others as many as said; nothing is timed."""

    def turns(contenders: Any, rounds: int, steps: Any) -> dict[str, list[float]]:
        assert {"dense", "native"} <= set(contenders) == set(steps)
        for contend in contenders.values():
            contend(2)
        seconds = {"dense": 1.0, "native": native_seconds(), "stepwise": stepwise_seconds}
        return {name: [seconds[name]] * rounds for name in contenders}

    monkeypatch.setattr(crossover, "take_turns", turns)
    monkeypatch.setattr(crossover, "steps_in_a_turn", lambda *_: 1)


@pytest.mark.usefixtures("native")
def test_a_tiny_run_writes_a_table_that_loads(tmp_path: Path, run: Any) -> None:
    out = tmp_path / "table.json"
    assert run(*TINY, "--rounds", 1, "--out", out) == 0
    entries = load_table(out)
    assert [(e.kernel, e.axis, e.rows) for e in entries] == [((8, 16), -1, 8), ((8, 8), -2, 8)]
    assert [set(e.blocks) for e in entries] == [{(1, 1), (4, 4)}] * 2
    assert all(tuple(ratios) == PHASES for e in entries for ratios in e.blocks.values())
    table = json.loads(out.read_text())
    features, tokens = (entry["measured"] for entry in table["entries"])
    assert [phase for phase, text in tokens.items() if not text] == list(PAIRS)
    for text in filter(None, [*features.values(), *tokens.values()]):
        assert all(word in text for word in ("cores", "jax ", "jaxlib "))
    assert sum('"4x4"' in line for line in out.read_text().splitlines()) == 2


@pytest.mark.thorough
@pytest.mark.usefixtures("native")
def test_the_rest_of_a_table_stays_as_it_was(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "table.json"
    script_turns(monkeypatch, lambda: 0.5)
    assert run(*TINY, "--out", out) == 0
    script_turns(monkeypatch, lambda: 0.99)
    assert run("--kernel", "8x16", "--block", "4x4", "--rows", 8, "--out", out) == 0
    features, tokens = load_table(out)
    assert dict(features.blocks[1, 1]) == dict.fromkeys(PHASES, 0.1)
    # Of 8 blocks and of 4, the smallest ratios that drop one are 0.2 and 0.3.
    assert dict(features.blocks[4, 4]) == dict.fromkeys(PHASES)
    assert dict(tokens.blocks[4, 4]) == {**dict.fromkeys(PHASES, 0.3), **dict.fromkeys(PAIRS)}


@pytest.mark.usefixtures("native")
def test_a_fused_pair_is_to_beat_its_products_one_after_another(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "table.json"
    script_turns(monkeypatch, lambda: 0.5, stepwise_seconds=0.5)
    assert run("--kernel", "8x16", "--block", "4x4", "--rows", 8, "--out", out) == 0
    assert dict(load_table(out)[0].blocks[4, 4]) == {
        **dict.fromkeys(PHASES, 0.2),
        "straight_through_mlp": None,
    }


@pytest.mark.usefixtures("native")
def test_a_table_says_of_each_entry_where_it_was_measured(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "table.json"
    script_turns(monkeypatch, lambda: 0.5)
    options = ("--kernel", "8x16", "--block", "4x4", "--rows", 8, "--out", out)
    assert run(*options, "--phase", "product") == 0
    before = json.loads(out.read_text())["entries"][0]["measured"]
    assert [phase for phase, text in before.items() if text] == ["product"]
    monkeypatch.setattr(crossover, "describe_machine", lambda *_: "another")
    assert run(*options, "--phase", "mlp") == 0
    after = json.loads(out.read_text())["entries"][0]["measured"]
    assert after["product"] == before["product"]
    assert after["mlp"].endswith("another")
    assert after["straight_through_mlp"] is None


@pytest.mark.usefixtures("native")
def test_a_table_says_where_all_of_its_blocks_were_measured(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "table.json"
    script_turns(monkeypatch, lambda: 0.5)

    def machines(where: str, *words: object) -> str:
        monkeypatch.setattr(crossover, "describe_machine", lambda *_: where)
        assert run("--kernel", "8x16", "--rows", 8, "--out", out, *words) == 0
        return json.loads(out.read_text())["entries"][0]["measured"]["product"]

    first = machines("here", "--block", "4x4", "1x1")
    assert first.endswith(": here")
    then = machines("there", "--block", "4x4")
    assert then.startswith(f"{first} / ")
    assert then.endswith(": there")
    assert machines("there", "--block", "1x1") == then
    assert machines("there", "--block", "1x1", "4x4") == then.removeprefix(f"{first} / ")


@pytest.mark.parametrize("crossing", [*crossover.RATIOS, None])
def test_the_search_finds_where_native_begins_to_pay(
    monkeypatch: pytest.MonkeyPatch, crossing: float | None
) -> None:
    asked: list[SparseLayer] = []

    def native(layer: SparseLayer) -> Any:
        asked.append(layer)
        return lambda kept, x: x[: kept.size // layer.n_kept]

    def seconds() -> float:
        n_kept = asked[-1].n_kept
        pays = crossing is not None and n_kept <= 64 * (1 - crossing) + 1
        return 0.96 if pays else 0.98

    script_turns(monkeypatch, seconds)
    comparison = Comparison((jnp.ones(3),), lambda x: x, native)
    assert crossover.smallest_ratio(comparison, SMALL, (1, 1), 1) == crossing
    assert len(asked) <= 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kernel", "64"), "--kernel=64 is neither INxOUT nor tokens:INxOUT"),
        (("--kernel", "tokens:8x8", "--rows", 100), "--channels=64 does not divide --rows=100"),
        (("--rounds", 0), "must be at least 1"),
        (("--rows", 0), "must be at least 1"),
        (("--block", "4"), "block '4' is not ROWSxCOLS"),
        (("--out", "/no/such/table.json"), "must be in a folder that exists"),
        (("--kernel", "--out", "table.json"), "--kernel must name at least one"),
        (("--kernel", "8x8", "--block", "3x3", "16x16"), "no --block of 3x3, 16x16 divides a"),
    ],
)
def test_a_wrong_option_is_named(
    run: Any, capsys: pytest.CaptureFixture[str], words: tuple[object, ...], message: str
) -> None:
    assert run(*words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("text", ['{"entries": [', "[]", "{}"], ids=repr)
def test_what_is_no_table_is_not_written_over(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    assert run(*TINY, "--out", path) == 2
    assert "is no table of this program: remove it, or name another" in capsys.readouterr().err
    assert path.read_text() == text


@pytest.mark.usefixtures("native")
def test_a_folder_is_no_table(run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(*TINY, "--out", tmp_path) == 2
    assert "is a folder: name a file" in capsys.readouterr().err


def test_without_native_kernels_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Cpu, "reason_against", lambda *_: "install g++")
    options = dataclasses.replace(crossover.Options(), out=tmp_path / "table.json")
    with pytest.raises(InputError, match=r"no native kernels to measure: install g\+\+"):
        crossover.measure(options)
    assert not options.out.exists()
