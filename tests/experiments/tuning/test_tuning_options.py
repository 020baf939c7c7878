"""What cannot be tuned is refused, and what is named is what an engine can compute."""

import sys

import pytest
import tune
from tuning import tuning_options
from tuning.kernel_problems import LAST, gpu_engines, is_able
from tuning.tuning_options import Options, tasks_of

from pallas_kernels.device_table import TABLES


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no GPU"),
        (["--interpret"], "--out=FILE.json"),
        (["--interpret", f"--out={TABLES / 'cpu.json'}"], "--out=FILE.json"),
        (["--kernel=sum"], "--kernel=sum"),
        (["--shape=8by8"], "--shape '8by8' is not INxOUT"),
        (["--shape=0x64"], "--shape '0x64' is not INxOUT"),
        (["--rounds=0"], "--rounds"),
        (["--minutes=nan"], "--minutes=nan must be a finite number"),
        (["--minutes=-1"], "--minutes=-1 must be a finite number"),
        (["--rows=0"], "--rows=0 is too small"),
        (["--dtype=int8"], "--dtype=int8 is unknown"),
        (["--interpret", "--out=x.json", "--engine=warp"], "--engine=warp"),
        (["--interpret", "--out=x.json", "--block=48x48"], "have to name a layer, and a block"),
        (["--interpret", "--out=x.json", "--shape"], "have to name a layer, and a block"),
        (["--interpret", "--out=x.json", "--block=8x8"], "8x8 for one (sides of blocks have to be"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(tuning_options.jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments])
    assert tune.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_each_task_comes_once_with_the_first_choices_first():
    engines = gpu_engines(interpret=True)
    twice = Options(shape=("128x256", "128x256"), block=("64x64", "8x8"), rows=(64,))
    found = tasks_of(twice, engines)
    assert len(set(found)) == len(found)
    assert all(is_able(engines[task.engine], task.kernel, task.layer) for task in found)
    assert {task.layer.block for task in found} == {(64, 64)}
    assert (found[0].layer.dtype, found[-1].layer.dtype) == ("bfloat16", "float32")
    assert [task.engine in LAST for task in found] == sorted(task.engine in LAST for task in found)


def test_a_named_engine_alone_is_tuned():
    found = tasks_of(Options(engine=("triton",)), gpu_engines(interpret=True))
    assert {task.engine for task in found} == {"triton"}
