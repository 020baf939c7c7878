"""The program writes page, tables and figures, and refuses what it cannot do in one line."""

import json

import pytest
import report as program
import synthetic_study as synthetic

from sparsemlp import InputError


def test_a_page_with_its_figures_and_tables_is_written(tmp_path, capsys):
    for backward in ("masked", "dense"):
        run = synthetic.settings(block="2x2", ratio=0.5, backward=backward, epochs=2)
        synthetic.write_run(tmp_path / "runs" / backward, run)
    out = tmp_path / "a" / "page.html"
    program.report(tmp_path / "runs", out, tmp_path / "figures", block="2x2", ratio=0.5)
    text = out.read_text()
    assert text.count("<figure") == text.count("data:image/svg+xml;base64,")
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"backwards", "curves", "kept_blocks"} <= names
    assert text.count("<figure") == len(names)
    assert len(json.loads((out.parent / "page_runs.json").read_text())["runs"]) == 2
    assert (out.parent / "page_runs.csv").read_text().count("\n") == 3
    assert "page.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"out": "a.txt"}, "a.txt is no page: end it in .html"),
        ({"ratio": 1.0}, "ratio 1.0 is outside"),
        ({"block": "2"}, "is not ROWSxCOLS"),
        ({"out": "file/a.html"}, "is no folder to write to"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, changes, words):
    synthetic.write_run(tmp_path / "run", synthetic.settings(epochs=1))
    (tmp_path / "file").write_text("")
    if "out" in changes:
        changes["out"] = tmp_path / changes["out"]
    with pytest.raises(InputError) as error:
        program.report(tmp_path / "run", **changes)
    assert words in str(error.value)
