"""Figures of one setting show what is asked for, or what the runs have."""

import pytest
import synthetic_study as synthetic

from sparsemlp import InputError
from sparsemlp.figures.choice import choose
from sparsemlp.figures.drawing import Chosen
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_the_default_is_taken_where_a_run_has_it(small):
    assert choose(small) == Chosen("32x32", 0.8)


def test_what_is_left_open_is_what_most_runs_have(tmp_path):
    assert choose(read_study_of(tmp_path / "none")) == Chosen()
    pairs = [("8x8", 0.5), ("4x4", 0.7), ("4x4", 0.7), ("4x4", 0.9)]
    study = read_study_of(tmp_path / "some", *pairs)
    assert choose(study) == Chosen("4x4", 0.7)
    assert choose(study, block="8x8") == Chosen("8x8", 0.5)
    assert choose(study, ratio=0.9) == Chosen("4x4", 0.9)
    # What is asked for is not there: the figures say so.
    assert choose(study, block="2x2") == Chosen("2x2", 0.8)
    assert choose(study, block="8x8", ratio=0.9) == Chosen("8x8", 0.9)


def test_the_default_ratio_goes_before_the_default_block(tmp_path):
    pairs = [("2x2", 0.8), ("8x8", 0.8), ("16x16", 0.5), ("16x16", 0.5), ("32x32", 0.5)]
    study = read_study_of(tmp_path, *pairs)
    assert choose(study) == Chosen("2x2", 0.8)
    assert choose(study, ratio=0.5) == Chosen("32x32", 0.5)


def test_finished_runs_go_before_one_under_way(tmp_path):
    for name, block in (("done", "4x4"), ("usual", "32x32")):
        run = synthetic.settings(block=block, ratio=0.8, epochs=2)
        synthetic.write_run(tmp_path / name, run, 2 if name == "done" else 1)
    study = read_study(tmp_path)
    assert [run.name for run in study.finished] == ["done"]
    assert choose(study) == Chosen("4x4", 0.8)
    assert choose(study, block="32x32") == Chosen("32x32", 0.8)
    assert choose(study, block="32x32", ratio=0.5) == Chosen("32x32", 0.5)


def test_what_is_no_block_or_no_ratio_is_refused(small):
    with pytest.raises(InputError, match="32"):
        choose(small, block="32")
    with pytest.raises(InputError, match=r"1\.5"):
        choose(small, ratio=1.5)


def read_study_of(path, *pairs):
    synthetic.write_run(path / "dense", synthetic.settings(epochs=1))
    for number, (block, ratio) in enumerate(pairs):
        run = synthetic.settings(block=block, ratio=ratio, epochs=1)
        synthetic.write_run(path / str(number), run)
    return read_study(path)
