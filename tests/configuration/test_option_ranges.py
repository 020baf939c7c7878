"""Options out of their range are refused in one line; test_settings has those of other modules."""

import dataclasses
import math
import re

import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.option_ranges import check_ranges
from sparsemlp.configuration.settings import resolve
from sparsemlp.errors import InputError
from sparsemlp.options import flag

VALID = resolve(Config(), "cifar10")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"accumulate": 0}, "--accumulate=0 is too small: it must be at least 1"),
        ({"accumulate": -2}, "--accumulate=-2 is too small"),
        ({"ema": 1.0}, "--ema=1.0 is outside [0, 1): it is the share"),
        ({"ema": -0.1}, "--ema=-0.1 is outside [0, 1)"),
        ({"ema": math.nan}, "--ema=nan is outside [0, 1)"),
        ({"precision": "float64"}, "--precision=float64 is unknown"),
        ({"batch_size": 0}, "--batch-size=0 is too small"),
        ({"warmup_epochs": 300}, "--warmup-epochs=300 is longer than --epochs=200"),
    ],
)
def test_a_value_out_of_its_range_is_named_with_the_range(chosen, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        check_ranges(dataclasses.replace(VALID, **chosen))
    assert "\n" not in str(caught.value)


def test_parts_of_a_batch_are_not_for_a_model_with_batch_statistics():
    resolve(Config(model="resnet9", remat=True, ema=0.999), "cifar10")
    with pytest.raises(InputError, match="--accumulate=2: resnet9 normalises by the statistics"):
        resolve(Config(model="resnet9", accumulate=2), "cifar10")


@pytest.mark.parametrize("ema", [0.0, 0.5, 0.9999])
def test_a_decay_below_one_is_taken(ema):
    check_ranges(dataclasses.replace(VALID, ema=ema))


@pytest.mark.parametrize("flags", [{"ema": 1}, {"accumulate": 0}, {"accumulate": 9}])
def test_the_program_ends_with_one_line_and_exit_code_2(flags, tmp_path, capsys):
    data = tiny.write_npz(tmp_path / "tiny.npz")
    assert tiny.start(data, tmp_path / "run", **flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --")
    assert not (tmp_path / "run").exists()


def test_a_flag_is_spelt_as_on_the_command_line():
    assert flag("batch_size") == "--batch-size"
