"""Means and bands over the seeds of a setting, and which runs are lines."""

import numpy as np
import synthetic_study as synthetic
from matplotlib.figure import Figure

from sparsemlp.figures.seed_lines import (
    MOST_LINES,
    backward_of,
    draw_seeds,
    looks,
    masked_at,
    over_seeds,
)
from sparsemlp.figures.style import BACKWARDS, DENSE_MODEL
from sparsemlp.runs.history import History
from sparsemlp.studies.seeds import by_seed
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_a_line_is_the_mean_and_the_band_spans_the_seeds(small):
    (group,) = by_seed(r for r in small.trained if r.label == "1x8 at 0.8, masked backward")
    columns = np.array([run.column("test_top1") for run in group.runs])
    axes = Figure().subplots()
    draw_seeds(axes, group, "test_top1", DENSE_MODEL, "some name")
    (line,), (band,) = axes.lines, axes.collections
    np.testing.assert_allclose(np.asarray(line.get_ydata()), columns.mean(axis=0))
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (columns.min(), columns.max())
    assert backward_of(group) == "masked"


def test_a_line_ends_with_the_seeds_that_came_furthest_and_gaps_stay_gaps(tmp_path):
    for seed, n_epochs in ((0, 3), (1, 2)):
        own = synthetic.settings(block="4x4", ratio=0.5, epochs=3, seed=seed)
        synthetic.write_run(tmp_path / str(seed), own, n_epochs)
    (group,) = by_seed(read_study(tmp_path).trained)
    epochs, mean, low, high = over_seeds(group, lambda run: run.column("loss"))
    assert epochs.tolist() == [1, 2, 3]
    assert np.all((low <= mean) & (mean <= high))
    assert group.count == "1 of 2 seeds"
    History(tmp_path / "1" / "metrics.jsonl").append(
        {"epoch": 3, "test_top1": 0.1, "loss": float("inf")}
    )
    (group,) = by_seed(read_study(tmp_path).trained)
    assert group.count == "2 seeds"
    assert np.isnan(over_seeds(group, lambda run: run.column("loss"))[1][2])


def test_runs_are_chosen_by_ratio_and_block(small):
    assert {run.block for run in masked_at(small, 0.8)} == {"2x2", "1x8", "32x32"}
    assert {run.block for run in masked_at(small, 0.8, "2x2")} == {"2x2"}
    assert masked_at(small, 0.3) == []


def test_backward_passes_alone_have_their_own_look(small):
    groups = by_seed(r for r in small.trained if r.is_dense or (r.block, r.ratio) == ("2x2", 0.5))
    kinds = ["dense" if g.first.is_dense else backward_of(g) for g in groups]
    assert looks(groups) == [
        DENSE_MODEL if group.first.is_dense else BACKWARDS[kind]
        for group, kind in zip(groups, kinds, strict=True)
    ]


def test_many_settings_have_one_look_each_and_the_dense_model_keeps_its_own(small):
    groups = by_seed(small.trained)
    found = looks(groups)
    assert len({(look.color, look.dash) for look in found}) == len(groups) <= MOST_LINES
    met = set()
    for group, look in zip(groups, found, strict=True):
        assert (look == DENSE_MODEL) == group.first.is_dense
        kind = "" if group.first.is_dense else backward_of(group)
        assert not kind or look.marker == BACKWARDS[kind].marker
        if kind and kind not in met:
            assert look == BACKWARDS[kind], "the first of a kind looks as in all figures"
        met.add(kind)
    assert met == {"", *BACKWARDS}
    assert len(looks(groups * 4)) == 4 * len(groups)
