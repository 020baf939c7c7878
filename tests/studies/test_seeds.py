"""Runs that differ in their seed alone are one result with a spread."""

import math

import pytest
import synthetic_study as synthetic

from sparsemlp.studies.seeds import by_seed, percent, statistics
from sparsemlp.studies.study_run import StudyRun

small = synthetic.small


def run(top1: float = 0.5, **changes) -> StudyRun:
    records = ({"epoch": 1, "test_top1": top1, "dataset": changes.pop("source", "data")},)
    return StudyRun("a", "finished", settings=synthetic.settings(**changes), records=records)


def test_seeds_are_grouped_and_settings_are_not(small):
    groups = by_seed(small.finished)
    assert len(groups) == 18
    assert all(len({run.label for run in group.runs}) == 1 for group in groups)
    assert sorted(len(group.runs) for group in groups) == [1] + 17 * [2]


def test_what_a_dense_run_does_not_use_does_not_part_it():
    same = [run(seed=0), run(seed=1, backward="dense", block="4x4", mask_start_epoch=3)]
    assert len(by_seed(same)) == 1
    assert len(by_seed([run(), run(lr=0.02)])) == 2
    assert len(by_seed([run(), run(source="other data")])) == 2


def test_masks_that_never_begin_are_no_masks():
    never = run(block="8x8", ratio=0.5, epochs=4, mask_start_epoch=4, moments="reset")
    assert len(by_seed([run(epochs=4), never])) == 1


def test_it_is_not_the_spelling_of_the_masks_that_parts_runs():
    text = "ResMLP5 @ XPatch = masked 0.8 (32, 32); XChannel = masked 0.8 (32, 32);"
    alike = [run(config=text), run(config=text.replace(" ", "")), run(block="32x32", ratio=0.8)]
    assert len(by_seed(alike)) == 1
    others = [run(config=text.replace("0.8", "0.5")), run(config=text.replace("P5", "P4"))]
    others += [run(config=text, backward="dense"), run(config=text, score="l1")]
    # A layer without a mask, although that of both channel linears would match it.
    others += [run(config=f"{text} XChannel1 = masked 0 (32, 32);")]
    assert len(by_seed([*alike, *others])) == 6


def test_mean_and_sample_deviation():
    (group,) = by_seed([run(0.5, seed=0), run(0.7, seed=1)])
    mean, spread = group.top1()
    assert mean == pytest.approx(0.6)
    assert spread == pytest.approx(math.sqrt(0.02))
    assert math.isnan(statistics([0.5])[1])
    assert all(math.isnan(value) for value in statistics([]))


def with_epochs(n_epochs: int, top1: float, **changes) -> StudyRun:
    records = tuple({"epoch": e + 1, "test_top1": top1, "dataset": "data"} for e in range(n_epochs))
    return StudyRun("a", "unfinished", settings=synthetic.settings(**changes), records=records)


def test_seeds_that_are_behind_are_counted_and_not_averaged():
    (group,) = by_seed(
        [with_epochs(1, 0.1, seed=2), with_epochs(3, 0.6, seed=0), with_epochs(3, 0.8, seed=1)]
    )
    assert group.top1()[0] == pytest.approx(0.7)
    assert [run.settings.seed for run in group.runs if run.settings] == [0, 1]
    assert (group.n_behind, group.count) == (1, "2 of 3 seeds")


def test_a_seed_that_was_run_twice_counts_once_as_far_as_it_came():
    repeated = [with_epochs(n_epochs, top1) for n_epochs, top1 in ((2, 0.1), (3, 0.6), (3, 0.7))]
    runs = [*repeated, with_epochs(3, 0.8, seed=1)]
    (group,) = by_seed(runs)
    assert group.runs == (runs[1], runs[3])
    assert group.count == "2 seeds"
    (alone,) = by_seed(runs[:3])
    assert (alone.runs, alone.count) == ((runs[1],), "")


def test_a_spread_is_shown_where_there_is_one():
    assert percent(0.7519, math.nan) == "75.19%"
    assert percent(0.75, 0.003) == "75.00 ± 0.30%"
    assert percent(math.nan, math.nan) == "unknown"


def test_where_a_run_was_trained_does_not_part_it():
    (group,) = by_seed([run(seed=0), run(seed=1, devices=1)])
    assert len(group.runs) == 2
    assert len(by_seed([run(seed=0), run(seed=1, remat=True)])) == 2
