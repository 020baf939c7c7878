"""The search for crossovers finds them, and writes a table that the library reads."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import crossover
import jax
import pytest
from benchmarks.crossover_phases import PAIRS, Case
from benchmarks.crossover_search import ratios_of

from pallas_kernels import Cpu, SparseLayer
from pallas_kernels.cpu.crossover import PHASES, load_table
from sparsemlp import InputError

TINY = (
    *("--kernel", "8x16", "tokens:8x8", "--block", "1x1", "4x4", "16x8"),
    *("--rows", "8", "--channels", "2"),
)


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


def script(monkeypatch: pytest.MonkeyPatch, *, pays: bool = True) -> None:
    """Native code pays at every ratio, or never; nothing is timed."""

    def smallest_ratio(comparison: Any, case: Case, block: Any, rounds: int) -> float | None:
        return ratios_of(case, block)[0] if pays else None

    monkeypatch.setattr(crossover, "smallest_ratio", smallest_ratio)


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
    script(monkeypatch)
    assert run(*TINY, "--out", out) == 0
    script(monkeypatch, pays=False)
    assert run("--kernel", "8x16", "--block", "4x4", "--rows", 8, "--out", out) == 0
    features, tokens = load_table(out)
    assert dict(features.blocks[1, 1]) == dict.fromkeys(PHASES, 0.1)
    # Of 8 blocks and of 4, the smallest ratios that drop one are 0.2 and 0.3.
    assert dict(features.blocks[4, 4]) == dict.fromkeys(PHASES)
    assert dict(tokens.blocks[4, 4]) == {**dict.fromkeys(PHASES, 0.3), **dict.fromkeys(PAIRS)}


@pytest.mark.usefixtures("native")
def test_a_pair_is_measured_once_for_both_of_its_layers(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, measured = tmp_path / "table.json", []

    def ratio(comparison: Any, case: Case, *_: Any) -> float:
        measured.append(case.kernel_shape)
        return len(measured) / 10

    monkeypatch.setattr(crossover, "smallest_ratio", ratio)
    assert run("--kernel", "8x16", "16x8", "--block", "4x4", "--rows", 8, "--out", out) == 0
    first, second = (entry.blocks[4, 4] for entry in load_table(out))
    assert measured.count((8, 16)) == len(PHASES)
    assert measured.count((16, 8)) == len(PHASES) - len(PAIRS)
    assert all((first[phase] == second[phase]) == (phase in PAIRS) for phase in PHASES)


@pytest.mark.usefixtures("native")
def test_a_table_says_of_each_entry_where_it_was_measured(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "table.json"
    script(monkeypatch)
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
    script(monkeypatch)

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
