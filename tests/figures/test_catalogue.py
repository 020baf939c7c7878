"""Every figure is drawn where there is data, and says what is lacking where there is none."""

import pytest
import synthetic_study as synthetic

from sparsemlp.errors import InputError
from sparsemlp.figures.catalogue import FIGURES, draw_figures
from sparsemlp.figures.drawing import Chosen, Drawing
from sparsemlp.figures.writing import render
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_a_whole_sweep_has_every_figure(small):
    drawn: dict[str, Drawing] = {}
    lacking = draw_figures(small, Chosen(), lambda drawing: drawn.update({drawing.name: drawing}))
    assert not lacking
    maps = {f"heat_map_{backward}" for backward in ("masked", "dense", "straight_through")}
    assert set(drawn) == (set(FIGURES) - {"heat_maps"}) | maps
    for drawing in drawn.values():
        assert len(drawing.caption) > 20
    assert render(drawn["backwards"].figure, "svg").count(b"<path") > 20


def test_a_dense_run_has_figures_for_what_there_is_and_a_line_for_the_rest(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=2))
    drawn = []
    lacking = draw_figures(
        read_study(tmp_path), Chosen(), lambda drawing: drawn.append(drawing.name)
    )
    assert drawn == ["accuracy", "loaded_weights", "step_time"]
    assert set(lacking) == set(FIGURES) - set(drawn)
    for reason in lacking.values():
        assert reason
        assert "\n" not in reason


def test_a_run_without_an_epoch_has_no_figure(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(block="2x2", ratio=0.5, epochs=2), 0)

    def refuse(drawing):
        raise AssertionError(drawing.name)

    assert set(draw_figures(read_study(tmp_path), Chosen(), refuse)) == set(FIGURES)


def test_records_of_an_older_version_have_the_figures_of_their_keys(tmp_path):
    run = synthetic.write_run(
        tmp_path / "a", synthetic.settings(block="32x32", ratio=0.8, epochs=2)
    )
    lines = [f'{{"epoch": {epoch}, "test_top1": 0.5}}\n' for epoch in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(lines))
    drawn = []
    lacking = draw_figures(
        read_study(tmp_path), Chosen(), lambda drawing: drawn.append(drawing.name)
    )
    assert "accuracy_at_ratio" in drawn
    assert {"changed_blocks", "masked_elements", "step_time"} <= set(lacking)


def test_an_unknown_figure_is_an_error(small):
    with pytest.raises(InputError, match="--only pie is no figure: choose from accuracy"):
        draw_figures(small, Chosen(), lambda drawing: None, ["pie"])
