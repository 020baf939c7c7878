"""What the masks of a step cost: which parts are measured, and what cannot be."""

import dataclasses
import json

import jax
import pytest
from benchmarks import selection as benchmark_selection
from benchmarks.selection import Selection, block_lists, build_model, measure_selection

from pallas_kernels.lists import list_columns, list_rows
from sparsemlp import BlockMask, InputError, ResMLP, select_blocks
from sparsemlp.presets import resmlp_cifar10

TINY = {"image_size": 8, "patch_size": 2, "dim": 16, "depth": 1, "n_classes": 3}


def tiny(**changes):
    return ResMLP(**{**TINY, **changes})


def test_parts_and_their_shares_are_printed_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_selection.presets, "resmlp_cifar10", tiny)
    options = Selection("resmlp_cifar10", "4x4", 0.5, engine="reference", batch_size=2, rounds=1)
    out = tmp_path / "selection.json"
    measure_selection(dataclasses.replace(options, out=out))
    assert "of a step" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert set(record["median_ms"]) == {"scores", "masks", "lists", "step"}
    assert record["share_of_step"]["step"] == 1
    assert all(milliseconds > 0 for milliseconds in record["median_ms"].values())


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_selection, "selection_costs", lambda _: pytest.fail("measured"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is no folder"):
        measure_selection(Selection(out=tmp_path / "file" / "numbers.json"))


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_scores_that_are_wrong_are_not_timed(monkeypatch, factor):
    right = benchmark_selection.block_scores

    def scores(kernel, block, score, path, engine):
        found = right(kernel, block, score, path, "reference")
        return found if engine == "reference" else found.at[0, 0].multiply(factor)

    monkeypatch.setattr(benchmark_selection, "block_scores", scores)
    monkeypatch.setattr(benchmark_selection.presets, "resmlp_cifar10", tiny)
    options = Selection("resmlp_cifar10", "16x16", 0.5, batch_size=2, rounds=1)
    words = r"--engine=auto is wrong on this device .* scores of block_0/XChannel1/kernel are off"
    with pytest.raises(InputError, match=words):
        benchmark_selection.selection_costs(options)


def test_every_layer_is_masked_where_the_block_divides_the_tokens():
    assert build_model(Selection("resmlp_cifar10")).plan.keys() == {
        "*/XChannel?/kernel",
        "*/XPatch/kernel",
    }
    assert build_model(Selection("resmlp_s12")).plan.keys() == {"*/XChannel?/kernel"}
    assert build_model(Selection("resmlp_cifar10")).dim == resmlp_cifar10().dim


def test_the_lists_are_those_of_every_mask():
    kernel = jax.random.normal(jax.random.key(0), (64, 96))
    mask = select_blocks(kernel, (32, 16), 0.5)
    (with_lists,) = block_lists({"a": {"kernel": mask}})
    assert isinstance(with_lists, BlockMask)
    assert with_lists.lists is not None
    rows, columns = (make(with_lists.lists, (4, 3)) for make in (list_rows, list_columns))
    assert rows.start.shape == (5,)
    assert columns.start.shape == (4,)
    assert rows.across.size == columns.across.size == mask.n_kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "vgg"}, "--model=vgg is unknown"),
        ({"ratio": 0.0}, "selects nothing"),
        ({"rounds": 0}, "at least 1"),
        ({"engine": "cuda"}, "engine 'cuda' is unknown"),
    ],
)
def test_what_cannot_be_measured_is_said(change, words):
    with pytest.raises(InputError, match=words):
        build_model(dataclasses.replace(Selection(), **change))
