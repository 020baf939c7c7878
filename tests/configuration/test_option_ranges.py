"""Options out of their range are refused in one line, by whatever module reads them."""

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
    ],
)
def test_a_value_out_of_its_range_is_named_with_the_range(chosen, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        check_ranges(dataclasses.replace(VALID, **chosen))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"block": "32x"}, "block '32x' is not ROWSxCOLS"),
        ({"block": "0x4"}, "block '0x4' is not ROWSxCOLS"),
        ({"block": "-4x4"}, "block '-4x4' is not ROWSxCOLS"),
        ({"ratio": 1.0}, "ratio 1.0 is outside [0, 1)"),
        ({"ratio": -0.1}, "ratio -0.1 is outside [0, 1)"),
        ({"ratio": math.nan}, "ratio nan is outside [0, 1)"),
        ({"mask_layers": "XPatch,Head"}, "'Head'"),
        ({"mask_layers": ""}, "''"),
        ({"backward": "sparse"}, "backward 'sparse' is unknown: choose one of masked, dense"),
        ({"score": "l3"}, "score 'l3' is unknown: choose one of l2"),
        ({"engine": "cuda"}, "engine 'cuda' is unknown: choose one of auto"),
        ({"precision": "float16"}, "--precision=float16 is unknown: choose one of float32"),
        ({"epochs": 0}, "--epochs=0 is too small"),
        ({"epochs": -3}, "--epochs=-3 is too small"),
        ({"batch_size": 0}, "--batch-size=0 is too small"),
        ({"mask_start_epoch": -1}, "--mask-start-epoch=-1 is too small"),
        ({"warmup_epochs": -1}, "--warmup-epochs=-1 is too small"),
        ({"warmup_epochs": 11, "epochs": 10}, "--warmup-epochs=11 is longer than --epochs=10"),
        ({"patch_size": 0}, "--patch-size=0 is too small"),
        ({"dim": 0}, "--dim=0 is too small"),
        ({"depth": 0}, "--depth=0 is too small"),
        ({"depth": 1001}, "a depth of 1001 is too large"),
        ({"config": "ResMLP300000000"}, "a depth of 300000000 is too large"),
        ({"expansion": 0}, "--expansion=0 is too small"),
        ({"lr": -1.0}, "--lr=-1.0"),
        ({"lr": math.inf}, "--lr=inf"),
        ({"min_lr": math.nan}, "--min-lr=nan"),
        ({"warmup_lr": -0.5}, "--warmup-lr=-0.5"),
        ({"weight_decay": -1e-4}, "--weight-decay=-0.0001"),
        ({"checkpoint_every": -1.0}, "--checkpoint-every=-1.0"),
        ({"seed": -1}, "--seed=-1 is outside"),
        ({"seed": 2**32}, "--seed=4294967296 is outside"),
        ({"drop_path": 1.0}, "--drop-path=1.0 is outside"),
        ({"layer_scale": math.nan}, "--layer-scale=nan must be a finite number"),
        ({"flip": 1.5}, "--flip=1.5 is no probability"),
        ({"crop_padding": -1}, "--crop-padding=-1 is too small"),
        ({"cutout": -1}, "--cutout=-1 is too small"),
        ({"optimizer": "lamb"}, "--optimizer=lamb is unknown: choose one of adam, adamw, sgd"),
        ({"schedule": "step"}, "--schedule=step is unknown: choose one of cosine, triangular"),
        ({"model": "resnet50"}, "--model=resnet50 is unknown: choose one of resmlp, resnet9"),
        ({"width": 64}, "--width is an option of --model=resnet9: leave it out"),
        ({"model": "resnet9", "width": 0}, "--width=0 is too small"),
        ({"model": "resnet9", "dim": 64}, "--dim is an option of --model=resmlp: leave it out"),
        ({"model": "resnet9", "config": "ResMLP5"}, "--config is an option of --model=resmlp"),
        ({"model": "resnet9", "mask_layers": "XPatch"}, "names 'XPatch': choose from Conv, Conv2"),
        ({"mixup": -0.1}, "--mixup=-0.1 must be a finite number, at least 0"),
        ({"cutmix": math.inf}, "--cutmix=inf"),
        ({"mix_probability": 2.0}, "--mix-probability=2.0"),
        ({"label_smoothing": 1.0}, "--label-smoothing=1.0 is outside [0, 1)"),
    ],
)
def test_out_of_range_is_one_line_with_the_value(chosen, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        resolve(Config(**chosen), "cifar10")
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
