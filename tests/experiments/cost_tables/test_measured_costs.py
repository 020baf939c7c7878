"""Measured tables have the shape of the others; the counters are stand-ins."""

import csv

import costs as program
import pytest
from cost_tables import measured_costs
from cost_tables.counters import Traffic

from sparsemlp import InputError
from sparsemlp.cost_models.costs import Run, Shapes
from sparsemlp.runs.history import History

TINY = Shapes(image_size=8, patch_size=4, dim=8, depth=1, expansion=2)
CODE = "of these kernels"


@pytest.fixture
def counted(monkeypatch) -> list[list[str]]:
    """Traffic of 2^20 bytes a step and half of it hits; no energy."""
    commands: list[list[str]] = []

    def count(command: list[str]) -> Traffic:
        commands.append(command)
        return Traffic(2.0**20, 0.5)

    monkeypatch.setattr(measured_costs, "why_no_traffic", lambda: None)
    monkeypatch.setattr(measured_costs, "why_no_energy", lambda: "no meter")
    monkeypatch.setattr(measured_costs, "count_traffic", count)
    return commands


def test_a_cell_is_a_step_times_the_steps_of_the_run(counted, tmp_path):
    said: list[str] = []
    run = Run(batch_size=4, steps_per_epoch=512, epochs=2)
    history = History(tmp_path / "measured.jsonl")
    given = TINY, run, [(2, 2), (4, 1)], (0.5, 0.75, 0.9), "XChannel", said.append, history
    tables = measured_costs.measured_tables(*given, CODE, "reference")
    assert next(tables) == ("measured_traffic", [[1.0] * 3])
    assert dict(tables) == {
        "measured_traffic": [[1.0] * 3] * 2,
        "measured_cache_hits": [[0.5] * 3] * 2,
    }
    assert "no measured energy: no meter" in said
    assert len(counted) == 6
    assert {"--block=4x1", "--ratio=0.9", "--mask-layers=XChannel"} <= set(counted[-1])
    assert {"--batch-size=4", "--size=8", "--dim=8", "--n-classes=10"} <= set(counted[-1])
    assert {"--devices=1", "--engine=reference"} <= set(counted[-1])


def test_a_cell_that_was_measured_is_not_measured_again(counted, tmp_path):
    run = Run(batch_size=4, steps_per_epoch=512, epochs=2)

    def table(*ratios: float, engine: str = "reference", code: str = CODE) -> object:
        history = History(tmp_path / "measured.jsonl")
        given = TINY, run, [(2, 2)], ratios, "XChannel", lambda _: None, history
        return dict(measured_costs.measured_tables(*given, code, engine))

    first = table(0.5)
    assert table(0.5) == first
    assert len(counted) == 1
    assert table(0.5, 0.75) == {"measured_traffic": [[1.0] * 2], "measured_cache_hits": [[0.5] * 2]}
    assert len(counted) == 2
    table(0.5, engine="auto")
    assert len(counted) == 3
    assert table(0.5, code="of a mended kernel") == first
    assert len(counted) == 4


def test_a_counter_of_other_code_does_not_stand_for_this_one(counted, monkeypatch, tmp_path):
    def refused(_: list[str]) -> Traffic:
        raise InputError("ncu ended with 1: ERR_NVGPUCTRPERM")

    history, said = History(tmp_path / "measured.jsonl"), []
    given = TINY, Run(batch_size=4), [(2, 2)], (0.5,), "XChannel", said.append, history
    assert dict(measured_costs.measured_tables(*given, CODE, "reference"))
    monkeypatch.setattr(measured_costs, "count_traffic", refused)
    assert not dict(measured_costs.measured_tables(*given, "of a mended kernel", "reference"))
    assert any("ERR_NVGPUCTRPERM" in line for line in said)


@pytest.mark.thorough
def test_a_counter_that_is_refused_is_left_out_and_the_other_counts(counted, monkeypatch, tmp_path):
    def refused(_: list[str]) -> Traffic:
        raise InputError("ncu ended with 1: ERR_NVGPUCTRPERM")

    monkeypatch.setattr(measured_costs, "count_traffic", refused)
    monkeypatch.setattr(measured_costs, "why_no_energy", lambda: None)
    monkeypatch.setattr(measured_costs, "measure_energy", lambda _: 0.25)
    said: list[str] = []
    run, history = Run(batch_size=4, steps_per_epoch=10, epochs=1), History(tmp_path / "m.jsonl")
    given = TINY, run, [(2, 2)], (0.5, 0.75), "XChannel", said.append, history
    assert dict(measured_costs.measured_tables(*given, CODE)) == {"measured_energy": [[2.5] * 2]}
    why = "no measured traffic and cache hits: ncu ended with 1: ERR_NVGPUCTRPERM"
    assert said.count(why) == 1


def test_blocks_that_the_engine_refuses_are_told_before_anything_is_measured(
    counted, interpreted, tmp_path
):
    history = History(tmp_path / "measured.jsonl")
    shapes = Shapes(image_size=32, patch_size=4, dim=64, depth=1, expansion=4)
    run, blocks = Run(batch_size=4), [(1, 1), (32, 32), (64, 1)]
    given = shapes, run, blocks, (0.5,), "XPatch,XChannel", lambda _: None, history
    with pytest.raises(InputError, match="another --engine") as caught:
        next(measured_costs.measured_tables(*given, CODE, "triton"))
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == ["1x1", "64x1"]
    assert all("sides of blocks have to be of 16" in line for line in lines)
    assert not counted
    tables = measured_costs.measured_tables(shapes, run, [(32, 32)], *given[3:], CODE, "triton")
    assert "measured_traffic" in dict(tables)


def test_energy_is_that_of_real_steps(monkeypatch, tmp_path):
    made: list[int] = []

    def measure(make) -> float:
        make(1)
        made.append(1)
        return 0.25

    monkeypatch.setattr(measured_costs, "why_no_traffic", lambda: "no ncu")
    monkeypatch.setattr(measured_costs, "why_no_energy", lambda: None)
    monkeypatch.setattr(measured_costs, "measure_energy", measure)
    run = Run(batch_size=4, steps_per_epoch=10, epochs=1)
    tables = measured_costs.measured_tables(
        TINY,
        run,
        [(2, 4)],
        (0.5,),
        "XPatch,XChannel",
        lambda _: None,
        History(tmp_path / "m"),
        CODE,
    )
    assert dict(tables) == {"measured_energy": [[2.5]]}
    assert made == [1]


def test_the_program_writes_them_beside_the_others(counted, tmp_path):
    options = program.Costs(out=tmp_path, blocks=("32x32",), ratios=(0.5, 0.8), measured=True)
    program.count_costs(options)
    rows = list(csv.reader((tmp_path / "measured_traffic.csv").read_text().splitlines()))
    assert rows[0] == ["Block_Size", "0.5", "0.8"]
    assert rows[1][0] == "32x32"
    assert [float(cell) for cell in rows[1][1:]] == [2.0**20 * 391 * 200 / 2**30] * 2
    assert not (tmp_path / "measured_energy.csv").exists()
    with pytest.raises(InputError, match="--measured measures the grid: leave out --config"):
        program.count_costs(program.Costs(out=tmp_path, config="ResMLP5", measured=True))


def test_what_was_measured_is_kept_if_a_later_row_fails(counted, monkeypatch, tmp_path):
    def count(command: list[str]) -> Traffic:
        if "--block=64x64" in command:
            raise InputError("ncu ended with 9")
        return Traffic(2.0**20, 0.5)

    monkeypatch.setattr(measured_costs, "count_traffic", count)
    options = program.Costs(tmp_path, blocks=("32x32", "64x64"), ratios=(0.5,), measured=True)
    with pytest.raises(InputError, match="ncu ended with 9"):
        program.count_costs(options)
    rows = list(csv.reader((tmp_path / "measured_cache_hits.csv").read_text().splitlines()))
    assert rows == [["Block_Size", "0.5"], ["32x32", "0.5"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "triton"}, "--engine=triton computes what --measured measures"),
        ({"engine": "abacus", "measured": True}, "engine 'abacus' is unknown"),
    ],
)
def test_an_engine_is_for_what_is_measured(tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        program.count_costs(program.Costs(out=tmp_path, **options))
