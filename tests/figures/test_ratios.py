"""Steps and plateaus are those of whole blocks; runs lie on the computed line."""

import json

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.figures.ratios import flops, masked_elements
from sparsemlp.studies.run_costs import run_costs
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_runs_lie_on_the_computed_steps(small):
    (drawing,) = masked_elements(small, Chosen())
    _, *lines = drawing.figure.axes[0].lines
    assert [str(line.get_label()) for line in lines[1::2]] == ["2x2", "32x32"]
    for computed, runs in zip(lines[::2], lines[1::2], strict=True):
        ratios, shares = (np.asarray(data) for data in computed.get_data())
        for ratio, share in zip(*map(np.asarray, runs.get_data()), strict=True):
            assert share == pytest.approx(shares[np.argmin(abs(ratios - ratio))])
        assert (np.diff(shares) >= 0).all()
        assert (shares <= ratios + 1e-9).all()


def test_large_blocks_have_plateaus(tmp_path):
    for ratio in (0.8, 0.9):
        run = synthetic.settings(block="64x64", ratio=ratio, epochs=1, mask_start_epoch=0)
        synthetic.write_run(tmp_path / str(ratio), run)
    (drawing,) = masked_elements(read_study(tmp_path), Chosen())
    shares = drawing.figure.axes[0].lines[-1].get_ydata()
    assert shares == pytest.approx([2 / 3, 2 / 3])


def test_the_thesis_flops_fall_linearly_and_are_theoretical(small):
    (drawing,) = flops(small, Chosen())
    line = np.asarray(drawing.figure.axes[0].lines[0].get_ydata())
    assert np.allclose(np.diff(line), line[1] - line[0])
    assert line[0] / line[160] == pytest.approx(4.7, abs=0.05)
    assert "theoretical" in drawing.figure.get_suptitle()
    assert "Theoretical" in drawing.caption


def test_only_other_blocks_than_the_thesis_are_drawn_too(tmp_path):
    for block in ("1x2", "4x4", "16x16", "8x8"):
        run = synthetic.settings(block=block, ratio=0.5, epochs=1, mask_start_epoch=0)
        synthetic.write_run(tmp_path / block, run)
    (drawing,) = masked_elements(read_study(tmp_path), Chosen())
    labels = [str(line.get_label()) for line in drawing.figure.axes[0].lines]
    assert [label for label in labels if "x" in label] == ["1x2", "8x8", "16x16"]


def test_schedules_are_not_on_the_line_and_not_drawn(tmp_path):
    run = synthetic.settings(block="2x2", ratio=0.5, epochs=2, ratio_schedule="cubic")
    synthetic.write_run(tmp_path / "a", run)
    for draw in (masked_elements, flops):
        with pytest.raises(NothingToDrawError):
            list(draw(read_study(tmp_path), Chosen()))


def test_runs_that_do_not_mask_yet_drop_nothing_and_are_not_drawn(tmp_path):
    run = synthetic.settings(block="32x32", ratio=0.8, epochs=4, mask_start_epoch=2)
    synthetic.write_run(tmp_path / "a", run, 2)
    with pytest.raises(NothingToDrawError, match="no ResMLP run with the same mask"):
        list(masked_elements(read_study(tmp_path), Chosen()))
    synthetic.write_run(tmp_path / "b", run, 3)
    (drawing,) = masked_elements(read_study(tmp_path), Chosen())
    assert drawing.figure.axes[0].lines[-1].get_ydata() == pytest.approx([0.75])


def test_runs_of_other_sizes_are_left_out_of_flops_and_have_a_line_of_their_own(tmp_path):
    shared = {"ratio": 0.5, "epochs": 1, "mask_start_epoch": 0}
    runs = [{"block": "4x4"}, {"block": "8x8"}, {"block": "4x4", "depth": 2, "dim": 32}]
    for number, own in enumerate(runs):
        synthetic.write_run(tmp_path / str(number), synthetic.settings(**shared | own))
    study = read_study(tmp_path)
    (drawing,) = flops(study, Chosen())
    assert "; 1 of other sizes, layers or lengths left out" in drawing.figure.get_suptitle()
    (small,) = (run for run in study.trained if run.settings and run.settings.dim == 32)
    costs = run_costs(small)
    assert costs is not None
    markers = drawing.figure.axes[1].lines[1::2]
    assert len(markers) == 2
    for line in markers:
        assert np.min(np.asarray(line.get_ydata())) * 1e15 > costs.training_flops
    (drawing,) = masked_elements(study, Chosen())
    assert len(drawing.figure.axes[0].lines) == 1 + 3 + 2


def test_a_run_whose_blocks_do_not_divide_its_model_is_left_out(tmp_path):
    """Training refuses it, but a folder may be from elsewhere."""
    run = synthetic.settings(block="8x8", ratio=0.5, epochs=2, mask_start_epoch=0)
    synthetic.write_run(tmp_path / "good", run)
    folder = synthetic.write_run(tmp_path / "odd", run)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"patch_size": 5}))
    for draw in (masked_elements, flops):
        assert len(list(draw(read_study(tmp_path), Chosen()))) == 1
