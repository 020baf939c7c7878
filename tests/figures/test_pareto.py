"""On the front is what no other run beats in both, and nothing else."""

import itertools
import random

import pytest
import synthetic_study as synthetic

from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.figures.pareto import Point, front, loaded_weights, spread_out, step_time
from sparsemlp.studies.seeds import by_seed, percent
from sparsemlp.studies.study import read_study

small = synthetic.small


def point(cost: float, top1: float) -> Point:
    return Point(cost, top1, 0.0, "", "masked")


def beats(one: Point, other: Point) -> bool:
    """Whether a point is no worse in both and better in one."""
    no_worse = one.cost <= other.cost and one.top1 >= other.top1
    return no_worse and (one.cost, one.top1) != (other.cost, other.top1)


def test_the_front_is_every_point_that_none_beats():
    draw = random.Random(0)
    points = [point(draw.randrange(8), draw.randrange(8) / 8) for _ in range(40)]
    best = front(points)
    assert {(p.cost, p.top1) for p in best} == {
        (p.cost, p.top1) for p in points if not any(beats(other, p) for other in points)
    }


def test_numbered_points_are_apart_and_keep_the_most_accurate():
    points = [point(cost / 10, cost / 10) for cost in range(11)]
    numbered = spread_out(points, 0.3)
    assert numbered[-1] == points[-1]
    for one, other in itertools.pairwise(numbered):
        assert other.cost - one.cost >= 0.3 - 1e-9


def test_points_are_settings_with_their_measured_and_theoretical_costs(small):
    (drawing,) = step_time(small, Chosen())
    assert "measured" in drawing.figure.axes[0].get_title()
    assert synthetic.ENVIRONMENT["processor"] in drawing.caption
    (drawing,) = loaded_weights(small, Chosen())
    assert "theoretical" in drawing.figure.axes[0].get_title()
    listed = drawing.figure.legends[0].get_texts()
    assert any("dense:" in text.get_text() for text in listed)
    assert "Pareto front" in drawing.figure.legends[0].get_title().get_text()


def test_devices_are_not_mixed(tmp_path):
    for name in "ab":
        folder = synthetic.write_run(tmp_path / name, synthetic.settings(epochs=1))
        text = (folder / "environment.json").read_text()
        (folder / "environment.json").write_text(text.replace("a synthetic", name))
    drawings = list(step_time(read_study(tmp_path), Chosen()))
    assert [drawing.name for drawing in drawings] == ["step_time_1", "step_time_2"]


def test_without_a_finished_run_there_is_nothing(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=2), 1)
    for draw in (step_time, loaded_weights):
        with pytest.raises(NothingToDrawError):
            list(draw(read_study(tmp_path), Chosen()))


def test_an_accuracy_is_that_of_all_seeds_and_a_time_that_of_the_device(tmp_path):
    for seed, name in enumerate("aab"):
        folder = synthetic.write_run(tmp_path / str(seed), synthetic.settings(epochs=1, seed=seed))
        text = (folder / "environment.json").read_text()
        (folder / "environment.json").write_text(text.replace("a synthetic", name))
    study = read_study(tmp_path)
    mean = percent(*by_seed(study.finished)[0].top1())
    for drawing in step_time(study, Chosen()):
        (listed,) = drawing.figure.legends[0].get_texts()
        assert mean in " ".join(listed.get_text().split())


def test_layers_with_masks_of_their_own_are_masked(tmp_path):
    text = "ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (1, 1);"
    synthetic.write_run(tmp_path / "a", synthetic.settings(config=text, backward="dense", epochs=1))
    (drawing,) = step_time(read_study(tmp_path), Chosen())
    legend = drawing.figure.axes[0].get_legend()
    assert legend is not None
    assert [label.get_text() for label in legend.get_texts()] == ["dense backward"]
