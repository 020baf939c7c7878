"""A cell has the mean accuracy of its runs and the GB that the thesis' model gives them."""

import itertools

import pytest
import synthetic_study as synthetic

from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.figures.heat_maps import heat_maps
from sparsemlp.figures.style import look
from sparsemlp.studies.run_costs import run_costs
from sparsemlp.studies.seeds import by_seed
from sparsemlp.studies.study import read_study

small = synthetic.small


def cells(drawing) -> list[str]:
    return [text.get_text() for text in drawing.figure.axes[0].texts]


def test_a_map_per_backward_pass_with_accuracy_spread_and_gb(small):
    maps = {drawing.name: drawing for drawing in heat_maps(small, Chosen())}
    assert set(maps) == {"heat_map_masked", "heat_map_dense", "heat_map_straight_through"}
    groups = [g for g in by_seed(small.finished) if g.first.masking]
    for name, drawing in maps.items():
        found = cells(drawing)
        assert len(found) == 6
        for group in groups:
            masking = group.first.masking
            if (
                masking is not None
                and name.endswith(f"map_{masking.backward}")
                and len(group.runs) == 2
            ):
                mean, spread = group.top1()
                costs = run_costs(group.first)
                assert costs is not None
                words = f"{100 * mean:.1f}±{100 * spread:.1f}\n{costs.thesis_movement_gb:.3g} GB"
                assert words in found


def test_a_cell_without_a_finished_run_says_why(tmp_path):
    planned = synthetic.grid(("2x2", "4x4"), (0.5, 0.8), ("masked",), epochs=2)
    synthetic.write_study(tmp_path, planned)
    (drawing,) = heat_maps(read_study(tmp_path), Chosen())
    assert {"unfinished", "failed", "missing"} < set(cells(drawing))
    assert "dense model 81.00%" in drawing.figure.get_suptitle()


def test_other_options_have_maps_of_their_own(tmp_path):
    for index, run in enumerate(
        synthetic.settings(block=block, ratio=0.5, score=score, epochs=1)
        for block in ("2x2", "4x4")
        for score in ("l2", "spectral")
    ):
        synthetic.write_run(tmp_path / str(index), run)
    names = [drawing.name for drawing in heat_maps(read_study(tmp_path), Chosen())]
    assert names == ["heat_map_masked", "heat_map_masked_2"]


def test_one_cell_is_no_map(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(block="2x2", ratio=0.5, epochs=1))
    with pytest.raises(NothingToDrawError, match="several blocks or ratios"):
        list(heat_maps(read_study(tmp_path), Chosen()))


def test_model_strings_of_other_layers_have_maps_of_their_own(tmp_path):
    texts = (
        "XChannel = masked {} (8, 8);",
        "XPatch = masked {0} (8, 8); XChannel = masked {0} (8, 8);",
    )
    for number, text in enumerate(texts):
        for ratio in (0.5, 0.8):
            run = synthetic.settings(config=f"ResMLP5 @ {text.format(ratio)}", epochs=1)
            synthetic.write_run(tmp_path / f"{number}-{ratio}", run)
    titles = [d.figure.get_suptitle() for d in heat_maps(read_study(tmp_path), Chosen())]
    assert len(titles) == 2
    assert "XChannel masked" in titles[0]
    assert "XPatch" in titles[1]


def test_a_seed_that_was_run_twice_is_no_spread(tmp_path):
    for name, ratio in (("a", 0.5), ("again", 0.5), ("b", 0.8)):
        run = synthetic.settings(block="2x2", ratio=ratio, epochs=1)
        synthetic.write_run(tmp_path / name, run)
    (drawing,) = heat_maps(read_study(tmp_path), Chosen())
    assert len(cells(drawing)) == 2
    assert not any("±" in text for text in cells(drawing))


def test_the_gb_of_a_cell_are_the_mean_over_its_seeds(tmp_path, monkeypatch):
    for seed, ratio in itertools.product((0, 1), (0.5, 0.8)):
        run = synthetic.settings(block="2x2", ratio=ratio, epochs=1, seed=seed)
        synthetic.write_run(tmp_path / f"{seed}{ratio}", run)
    of_seed = "sparsemlp.figures.heat_maps._movement_gb"
    monkeypatch.setattr(of_seed, lambda run: 10.0 * (1 + run.settings.seed))
    (drawing,) = heat_maps(read_study(tmp_path), Chosen())
    assert all("15 GB" in text for text in cells(drawing))


def test_other_images_of_the_same_name_have_a_map_of_their_own(tmp_path):
    for name, ratio in itertools.product(("a", "b"), (0.5, 0.8)):
        run = synthetic.settings(block="2x2", ratio=ratio, epochs=1)
        folder = synthetic.write_run(tmp_path / f"{name}{ratio}", run)
        if name == "b":
            synthetic.retrain_on("cifar10 (JPEG)", folder)
    first, second = heat_maps(read_study(tmp_path), Chosen())
    titles = [drawing.figure.get_suptitle() for drawing in (first, second)]
    assert sum("on cifar10 (JPEG)" in title for title in titles) == 1


def test_a_long_title_takes_its_room_beside_the_map(tmp_path):
    more = {"score": "spectral", "hysteresis": 0.1, "dropped_decay": 2e-4, "lr": 0.02}
    for index, block in enumerate(("2x2", "4x4")):
        for name, own in (("plain", {}), ("long", more)):
            run = synthetic.settings(
                block=block, ratio=0.5, backward="straight_through", epochs=1, **own
            )
            synthetic.write_run(tmp_path / f"{name}{index}", run)
    with look():
        drawn = [drawing.figure for drawing in heat_maps(read_study(tmp_path), Chosen())]
        for figure in drawn:
            figure.canvas.draw()
    lines = [figure.get_suptitle().count("\n") for figure in drawn]
    heights = [figure.axes[0].get_window_extent().height for figure in drawn]
    assert max(lines) > min(lines) + 1
    assert min(heights) > 0.8 * max(heights)
