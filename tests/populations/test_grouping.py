"""Which runs are trained together."""

import dataclasses
import re
from typing import Any

import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import Settings, resolve
from sparsemlp.errors import InputError
from sparsemlp.populations.grouping import chooses_population, group_runs, reason_against


def test_runs_that_differ_in_ratio_backward_seed_and_auto_or_reference_are_one_group():
    runs = [
        tiny.settings(ratio=0.5),
        tiny.settings(ratio=0.9, backward="dense"),
        tiny.settings(ratio=0.0, seed=3),
        tiny.settings(ratio=0.5, engine="reference", backward="straight_through"),
    ]
    assert group_runs(runs) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    "change",
    [
        {"block": "4x2"},
        {"lr": 0.5},
        {"mask_layers": "XPatch"},
        {"score": "l1"},
        {"depth": 2},
        {"epochs": 7},
        {"mask_start_epoch": 0},
        {"dataset": "digits"},
    ],
    ids=str,
)
def test_runs_that_differ_in_anything_else_are_not(change):
    runs = [tiny.settings(), tiny.settings(**change), tiny.settings(seed=1)]
    assert group_runs(runs) == [[0, 2], [1]]


def model_string(text: str, **changes: Any) -> Settings:
    sides: dict[str, Any] = {"dim": 8, "expansion": 2, "batch_size": tiny.BATCH}
    return resolve(Config(config=text, **sides | changes), "tiny")


def test_model_strings_count_by_their_rules():
    runs = [
        model_string("ResMLP1 @ XPatch = masked 0.5 (2, 4); XChannel = masked 0.5 (2, 2);"),
        model_string("ResMLP1 @ XPatch = masked 0.2 (2, 4); XChannel = masked 0.9 (2, 2);"),
        model_string("ResMLP1 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.5 (2, 2);"),
        model_string("ResMLP2 @ XPatch = masked 0.5 (2, 4); XChannel = masked 0.5 (2, 2);"),
        model_string("ResMLP1 @ XPatch = masked 0.5 (2, 4); XChannel = masked 0.1 (2, 2);", seed=1),
        tiny.settings(),
    ]
    assert group_runs(runs) == [[0, 1, 4], [2], [3], [5]]


REFUSED = [
    ({"engine": "cpu"}, "--engine=cpu cannot train a population: .* choose --engine=reference"),
    ({"activation": "2x2:0.5"}, "the rule BlockMasking . ActivationPruning cannot"),
    ({"ratio": 0.0, "gradient": "2:4"}, "the rule GradientPruning cannot"),
    ({"hysteresis": 0.1}, "--hysteresis=0.1 cannot be trained in a population"),
    ({"budget": "erk"}, "--budget=erk cannot be trained in a population"),
    ({"ratio_schedule": "cubic", "ramp_epochs": 2}, "--ratio-schedule=cubic cannot be trained"),
    ({"freeze_epoch": 12}, "--freeze-epoch=12 cannot be trained"),
    ({"score": "gradient", "backward": "dense"}, "--score=gradient cannot be trained"),
    ({"hold_out": 0.25}, "--hold-out=0.25 cannot be trained"),
    ({"devices": 2}, "--devices=2 cannot train a population"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=str)
def test_what_cannot_be_data_is_a_group_of_one_and_says_why(change, message):
    settings = tiny.settings(**change)
    assert group_runs([settings, dataclasses.replace(settings, seed=1)]) == [[0], [1]]
    reason = reason_against(settings)
    assert reason is not None
    assert re.match(message, reason)


def test_runs_that_read_their_images_from_the_disk_are_groups_of_one(tmp_path):
    settings = resolve(Config(dataset=str(tmp_path), **tiny.MODEL), str(tmp_path))
    assert group_runs([settings, settings]) == [[0], [1]]
    assert "its batches are read from the disk" in str(reason_against(settings))


def test_a_convolutional_network_is_a_group_of_one():
    settings = resolve(Config(model="resnet9"), "cifar10")
    assert group_runs([settings, settings]) == [[0], [1]]
    assert "--model=resnet9 cannot" in str(reason_against(settings))


@pytest.mark.parametrize(
    ("choice", "platform", "expected"),
    [
        ("auto", "gpu", True),
        ("auto", "cpu", False),
        ("auto", "tpu", False),
        ("on", "cpu", True),
        ("off", "gpu", False),
    ],
)
def test_a_population_is_chosen_by_itself_on_a_gpu_alone(choice, platform, expected):
    assert chooses_population(choice, platform) is expected


def test_an_unknown_choice_is_an_error():
    with pytest.raises(InputError, match=r"--population=yes is unknown: .* auto, on, off"):
        chooses_population("yes")
