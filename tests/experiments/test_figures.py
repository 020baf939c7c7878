"""The program writes figures of run folders and says in a line what it has no data for."""

import figures
import pytest
import synthetic_study as synthetic
from PIL import Image

from sparsemlp import InputError
from sparsemlp.figures import FIGURES


def test_chosen_figures_are_written_as_vector_and_png(tmp_path, capsys):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=2))
    figures.write_figures(tmp_path, only=("accuracy", "curves"), vector="pdf")
    out = tmp_path / "figures"
    assert sorted(path.name for path in out.iterdir()) == ["accuracy.pdf", "accuracy.png"]
    with Image.open(out / "accuracy.png") as picture:
        assert picture.width > 1000
    text = capsys.readouterr().out
    assert "accuracy.png" in text
    assert "no curves: no run of 32x32 at 0.8 has an epoch" in text


def test_block_and_ratio_choose_what_is_drawn(tmp_path, capsys):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=2))
    figures.write_figures(tmp_path, only=("curves",), block="8x8", ratio=0.5)
    assert "no curves: no run of 8x8 at 0.5 has an epoch" in capsys.readouterr().out


def test_runs_that_cannot_be_read_are_named(tmp_path, capsys):
    synthetic.write_run(tmp_path / "good", synthetic.settings(epochs=1))
    for name in ("old", "older"):
        synthetic.write_run(tmp_path / name, synthetic.settings(epochs=1))
        (tmp_path / name / "config.json").write_text('{"dataset": "cifar10", "gone": 1}')
    figures.write_figures(tmp_path, tmp_path / "out", only=("accuracy",))
    assert "left out 2 (old, older): config.json is no configuration" in capsys.readouterr().out


def test_no_runs_and_no_such_figure_are_errors(tmp_path):
    with pytest.raises(InputError, match="no run lies below"):
        figures.write_figures(tmp_path)
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=1))
    with pytest.raises(InputError, match="is no figure"):
        figures.write_figures(tmp_path, only=("pie",))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="no folder to write to"):
        figures.write_figures(tmp_path, tmp_path / "file")


def test_the_help_names_every_figure():
    documented = str(figures.write_figures.__doc__)
    assert all(name in documented for name in FIGURES)
