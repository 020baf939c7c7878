"""Every option of a run can stand in a grid file, under its own name or the thesis'."""

import dataclasses
from pathlib import Path

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid_keys import STATED, known_keys, option_of, parse_value

OPTIONS = [field for field in dataclasses.fields(Config) if field.name not in STATED]


@pytest.mark.parametrize("name", [field.name for field in OPTIONS])
def test_every_option_is_a_key(name):
    assert option_of(name) == name
    assert option_of(name.replace("_", "-")) == name
    assert name in known_keys()


@pytest.mark.parametrize("field", OPTIONS, ids=lambda field: field.name)
def test_a_default_is_read_back_from_its_text(field):
    text = None if field.default is None else str(field.default)
    assert parse_value(field.name, text) == field.default


@pytest.mark.parametrize(
    ("key", "option", "text", "value"),
    [
        ("model_config", "config", "'ResMLP5 @ '", "ResMLP5 @"),
        ("config", "config", '"ResMLP5"', "ResMLP5"),
        ("opt", "optimizer", "Adam", "adam"),
        ("data_set", "dataset", "CIFAR-10", "cifar10"),
        ("data_set", "dataset", "some.npz", "some.npz"),
        ("embedding_dim", "dim", "64", 64),
        ("mixup_prob", "mix_probability", "1", 1.0),
        ("weight_decay", "weight_decay", "1e-4", 1e-4),
        ("gradient", "gradient", "2:4", "2:4"),
        ("flip_test", "flip_test", "yes", True),
        ("epochs", "epochs", "010", 10),
        ("seed", "seed", "-1", -1),
        ("flip_test", "flip_test", "off", False),
        ("data_dir", "data_dir", "/data", Path("/data")),
        ("data_dir", "data_dir", "data", Path("data").absolute()),
    ],
)
def test_values_have_the_type_of_their_option(key, option, text, value):
    assert option_of(key) == option
    read = parse_value(key, text)
    assert read == value
    assert type(read) is type(value) or isinstance(value, Path)


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("epochs", "many", "epochs is 'many', not an integer"),
        ("epochs", "1.5", "not an integer"),
        ("epochs", "true", "not an integer"),
        ("lr", "fast", "lr is 'fast', not a number"),
        ("tensorboard", "maybe", "not true or false"),
        ("seed", None, "seed has no value"),
        ("data_dir", "~nobody-of-that-name/x", "not a path"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_is_wanted(key, text, told):
    with pytest.raises(InputError, match=told):
        parse_value(key, text)


def test_other_words_are_no_options():
    assert option_of("blok") is None
    assert option_of("num_classes") is None
