"""What cannot be trained is told before anything is, once, at the line that is to blame."""

from pathlib import Path

import jax
import pytest
import tiny
from tiny_images import write_folder

from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid_check import check_points
from sparsemlp.sweeps.grid_file import parse_grid_file
from sparsemlp.sweeps.marked_yaml import Problems

data = tiny.data

FILE = Path("grid.yaml")


TINY = "  dim: 8\n  depth: 1\n  expansion: 2\n"


def told(
    hp: str, fixed: str, data: Path, *, is_remote: bool = False, model: str = TINY
) -> list[str]:
    """The problems of a tiny model's grid, whose hp begins in line 2."""
    text = f"hp:\n{hp}fixed:\n{fixed}{model}"
    text += f"  batch_size: 8\n  dataset: {data}\n"
    problems = Problems(FILE)
    file = parse_grid_file(FILE, text, problems)
    assert not problems
    check_points(file.points, file.stated, problems, is_remote=is_remote)
    return [f"{problem.line}: {problem.text}" for problem in problems]


def test_a_grid_that_can_be_trained_has_no_problems(data):
    hp = "  block: [2x4, 4x4]\n  ratio: [0.3, 0.5]\n  backward: [masked, dense]\n"
    assert told(hp, "  epochs: 3\n", data) == []


@pytest.mark.parametrize(
    "options",
    [
        "budget: [uniform, erk, global]",
        "dropped_decay: [0, 1.0e-4]",
        "score_decay: [0.9]",
        "hysteresis: [0.1]",
        "freeze_epoch: [2]",
        "moments: [keep, reset]",
        "score: [l1, spectral, gradient]",
        "ratio_schedule: [cubic]\n  ramp_epochs: [1]",
        "ratio_schedule: [adaptive]\n  hold_out: [0.25]",
    ],
)
def test_masks_may_move_in_the_ways_that_a_run_knows(data, options):
    hp = "  block: [2x4]\n  ratio: [0.5]\n  backward: [straight_through]\n"
    assert told(f"{hp}  {options}\n", "  epochs: 3\n  mask_start_epoch: 1\n", data) == []


@pytest.mark.parametrize("more", ["", "  freeze_epoch: [3]\n"], ids=["over", "frozen"])
def test_a_ramp_that_never_reaches_the_ratio_is_no_run_of_that_ratio(data, more):
    hp = "  block: [2x4]\n  ratio: [0.5]\n  ratio_schedule: [cubic]\n  ramp_epochs: [9]\n"
    epochs = 30 if more else 6
    first, *rest = told(hp + more, f"  epochs: {epochs}\n  mask_start_epoch: 1\n", data)
    assert "--ramp-epochs=9 does not reach the ratio" in first
    assert all("does not reach the ratio" in line for line in rest)
    assert told(hp, "  epochs: 11\n  mask_start_epoch: 1\n", data) == []


def test_an_option_is_not_blamed_for_a_longer_one_that_begins_like_it(data):
    """--ratio is a part of --ratio-schedule."""
    hp = "  ratio: [0.8]\n  block: [2x4, 3x3]\n  ratio_schedule: [adaptive]\n  hold_out: [0]\n"
    lines = told(hp, "", data)
    assert not any(line.startswith("2: ratio: ") for line in lines)
    assert any("--ratio-schedule=adaptive follows" in line for line in lines)
    assert any("block 3x3 does not divide" in line for line in lines)


def test_what_is_wrong_in_a_model_string_is_told_beside_what_it_excludes(data):
    hp = '  model_config: ["ResMLP1 @ XPatch = maskd 0.5 (2, 2);"]\n  block: [2x4]\n'
    lines = told(hp, "", data)
    assert any("exclude each other" in line for line in lines)
    assert any("maskd" in line for line in lines)


def test_a_share_that_cannot_be_held_out_is_told_before_a_sweep_begins(data):
    (found,) = told("  hold_out: [0.0001]\n", "", data)
    assert found.startswith("2: hold_out: --hold-out=0.0001: that share of the ")


def test_a_way_to_move_masks_needs_one(data):
    (found,) = told("  budget: [global]\n", "  epochs: 3\n", data)
    assert found.startswith("2: budget: --budget=global needs a mask")


def test_an_impossible_block_is_told_once_however_many_runs_have_it(data):
    hp = "  block:\n  - 2x4\n  - 3x3\n  - 2x32\n  ratio: [0.3, 0.5, 0.7]\n  seed: [0, 1]\n"
    first, second = told(hp, "", data)
    assert first.startswith("4: block: block 3x3 does not divide block_0/")
    assert second.startswith("5: block: block 2x32 does not divide block_0/")


def test_several_wrong_values_of_one_run_are_all_told(data):
    lines = told("  block: [2x]\n  ratio: [1.5]\n", "  lr: -1\n  epochs: 0\n", data)
    assert [line.split(" ")[:2] for line in lines] == [
        ["2:", "block:"],
        ["3:", "ratio:"],
        ["5:", "lr:"],
        ["6:", "epochs:"],
    ]


@pytest.mark.parametrize(
    ("hp", "fixed", "line"),
    [
        ("  model_config: ['ResMLP1 @ XToken = masked 0.5 (2, 2);']\n", "", "2: model_config: "),
        ("  activation: ['8x4:0.5', '3x2:0.5']\n", "", "2: activation: with a batch of "),
        ("  seed: [0]\n", "  warmup_epochs: 9\n  epochs: 3\n", "4: warmup_epochs: "),
        ("  seed: [0]\n", "  num_classes: 7\n", "4: num_classes is 7, but 10 in"),
        ("  seed: [0]\n", "  image_size: 32\n", "4: image_size is 32, but 8 in"),
        ("  seed: [0]\n", "  width: 3\n", "4: width: --width is an option of --model=resnet9"),
        ("  patch_size: [3]\n", "", "2: patch_size: "),
        ("  warmup_epochs: [7]\n", "  epochs: 2\n", "2: warmup_epochs: "),
    ],
)
def test_a_complaint_stands_at_the_option_to_blame(data, hp, fixed, line):
    if "model_config" in hp:
        problems = Problems(FILE)
        file = parse_grid_file(FILE, f"hp:\n{hp}fixed:\n  dataset: {data}\n", problems)
        check_points(file.points, file.stated, problems)
        (found,) = (f"{problem.line}: {problem.text}" for problem in problems)
    else:
        (found,) = told(hp, fixed, data)
    assert found.startswith(line)


def test_a_large_set_is_decoded_to_the_size_that_the_grid_says(tmp_path: Path):
    folder = write_folder(tmp_path / "tiny")
    hp = "  block: [2x4, 4x4]\n  ratio: [0.5]\n"
    assert not told(hp, "  image_size: 8\n  num_classes: 3\n", folder)
    (complaint,) = told(hp, "  image_size: 8\n  num_classes: 10\n", folder)
    assert "num_classes is 10, but 3 in the data set tiny (folder)" in complaint
    # 10 pixels are no whole number of patches of 4.
    assert told(hp, "  image_size: 10\n", folder)


def test_a_data_set_that_is_not_there_is_told_at_its_line():
    problems = Problems(FILE)
    text = "fixed:\n  seed: 1\n  dataset: imagenet\n"
    file = parse_grid_file(FILE, text, problems)
    check_points(file.points, file.stated, problems)
    (problem,) = problems
    assert problem.line == 3
    assert "imagenet is not prepared" in problem.text


@pytest.mark.parametrize(
    "hp",
    [
        "  ratio: [0.5, 0.50]\n  block: [2x4]\n",
        "  ratio: [0, 0.5]\n  block: [2x4, 4x4]\n",
        "  ratio: [0]\n  backward: [masked, dense]\n",
        "  - block: [2x4]\n    ratio: [0.5]\n  - block: [2x4, 4x4]\n    ratio: [0.5]\n",
    ],
    ids=["twice", "dense blocks", "dense backwards", "two grids"],
)
def test_runs_that_are_the_same_training_are_told(data, hp):
    (line,) = told(hp, "", data)
    assert "is the same training as" in line


def test_seeds_and_rates_make_a_training_of_its_own(data):
    assert told("  ratio: [0]\n  seed: [0, 1]\n  lr: [0.1, 0.2]\n", "", data) == []


def test_a_budget_that_cannot_be_shared_out_is_told(data):
    text = "ResMLP1 @ XPatch = masked 0.5 (4, 4); XChannel = masked 0.8 (4, 4);"
    file = f'hp:\n  config: ["{text}"]\n  budget: [erk]\nfixed:\n  dim: 8\n  expansion: 2\n'
    problems = Problems(FILE)
    grid = parse_grid_file(FILE, f"{file}  dataset: {data}\n  batch_size: 8\n", problems)
    check_points(grid.points, grid.stated, problems)
    (found,) = problems
    assert "budget erk shares out one ratio, the plan has 0.5, 0.8" in found.text


def test_masks_that_are_never_reached_are_told(data):
    hp = "  block: [2x4]\n  ratio: [0.5, 0.0]\n"
    (found,) = told(hp, "  epochs: 3\n  mask_start_epoch: 3\n", data)
    assert found.startswith("6: mask_start_epoch: --mask-start-epoch=3 is never reached in 3 ")


def test_masks_that_are_frozen_after_the_end_are_not(data):
    hp = "  block: [2x4]\n  ratio: [0.5]\n  freeze_epoch: [3, 4]\n"
    (found,) = told(hp, "  epochs: 3\n  mask_start_epoch: 0\n", data)
    assert "freeze_epoch=4) is the same training as (" in found


def test_other_machines_need_not_have_the_devices_of_this_one(data, monkeypatch):
    def three(n_devices: int | None, *_: object) -> None:
        if n_devices != 1:
            raise InputError("--batch-size=8 cannot be shared out among 3 devices")

    monkeypatch.setattr("sparsemlp.configuration.program.data_mesh", three)
    hp = "  block: [2x4]\n  ratio: [0.5]\n  activation: [2x2:0.5]\n"
    fixed = "  epochs: 2\n  lr: 0.0123\n"
    assert told(hp, fixed, data, is_remote=True) == []
    assert "3 devices" in told(hp, fixed, data)[0]


def test_no_complaint_hides_another_one(data):
    """Augmentation names its values without dashes; a model string excludes options one by one."""
    wrong = "  ratio: [0.5]\n  label_smoothing: [2]\n  mixup: [-1]\n  min_lr: [1]\n"
    lines = told(f"{wrong}  checkpoint_every: [-5]\n", "  epochs: 3\n", data)
    keys = [line.split(" ")[1] for line in lines]
    assert keys == ["label_smoothing:", "mixup:", "min_lr:", "checkpoint_every:"]
    model = "  model_config: ['ResMLP1 @ XPatch = masked 0.5 (2, 2);']\n"
    lines = told(f"{model}  ratio: [0.5]\n  mask_layers: [XPatch]\n", "", data)
    assert {line.split(" ")[1] for line in lines} == {"depth:", "mask_layers:", "ratio:"}


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="the engine may run there")
def test_an_engine_that_cannot_run_here_is_told_unless_others_train(data):
    hp = "  block: [2x4]\n  ratio: [0.5]\n  engine: [mosaic]\n"
    (line,) = told(hp, "", data)
    assert line.startswith("4: engine: engine 'mosaic' cannot run here")
    assert told(hp, "", data, is_remote=True) == []


def test_a_value_that_repeats_a_training_is_told_in_its_own_line(data):
    (line,) = told("  block: [2x4]\n  ratio: [0.5, 0.50]\n", "", data)
    assert line.startswith("3: ratio: (block=2x4, ratio=0.5) is the same training as (")


def test_a_key_that_changes_nothing_is_told_once(data):
    (line,) = told("  ratio: [0]\n  backward: [masked, dense, straight_through]\n", "", data)
    assert line.startswith("3: backward: ")


@pytest.mark.parametrize("n_devices", [0, 3, 16])
def test_devices_of_another_machine_are_checked_against_the_batch(data, n_devices):
    (line,) = told(f"  devices: [{n_devices}]\n", "", data, is_remote=True)
    told_of = f"8 images of a batch cannot be shared out among {n_devices} "
    assert line.startswith(f"2: devices: {told_of}")
    assert told("  devices: [2]\n", "", data, is_remote=True) == []


def test_a_network_of_one_device_is_not_sent_to_several():
    network = "  model: resnet9\n"
    (line,) = told("  devices: [4]\n", "", Path("cifar10"), is_remote=True, model=network)
    assert line.startswith("2: devices: resnet9 normalises by the statistics")
    assert told("  devices: [1]\n", "", Path("cifar10"), is_remote=True, model=network) == []


def test_what_no_key_mends_is_told_at_the_grid(data, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise InputError("no such machine")

    monkeypatch.setattr("sparsemlp.sweeps.grid_check.rehearse", refuse)
    assert told("  seed: [0]\n", "", data) == ["2: no such machine"]


def test_the_key_is_blamed_that_mends_not_one_that_changes_the_complaint(data, monkeypatch):
    def rehearse(config, **_: object) -> None:
        if config.lr == 0.5:
            raise InputError("it is wrong" if config.seed else "it is another thing")

    monkeypatch.setattr("sparsemlp.sweeps.grid_check.rehearse", rehearse)
    assert told("  seed: [1]\n  lr: [0.5]\n", "", data) == ["3: lr: it is wrong"]
