"""What a user chose survives a file, and a file that holds something else is refused."""

import dataclasses
import json
from pathlib import Path

import pytest

from sparsemlp.configuration.config import CHANGEABLE, Config
from sparsemlp.configuration.config_file import from_json, lasting_options, to_json
from sparsemlp.errors import InputError

HERE = Path("runs/x/config.json")
CHOSEN = Config(
    block="4x1",
    ratio=0.1 + 0.2,
    backward="straight_through",
    epochs=7,
    lr=1e-30,
    seed=2**32 - 1,
    allow_nan=True,
    drop_path=0.1,
    dataset="my data.npz",
    data_dir=Path("/some where/é"),
    tensorboard=True,
)


def test_options_that_last_are_all_but_those_of_machine_and_data():
    found = lasting_options(CHOSEN)
    assert found["seed"] == CHOSEN.seed
    assert found["ratio"] == CHOSEN.ratio
    assert json.loads(json.dumps(found)) == found
    left_out = {field.name for field in dataclasses.fields(Config)} - set(found)
    assert left_out == {*CHANGEABLE, "dataset", "data_dir"}


@pytest.mark.parametrize("config", [Config(), CHOSEN])
def test_a_configuration_survives_its_file_exactly(config):
    again = from_json(to_json(config), HERE)
    assert again == config
    assert type(again.data_dir) is type(config.data_dir)


def test_the_file_names_every_option():
    assert set(json.loads(to_json(CHOSEN))) == {field.name for field in dataclasses.fields(Config)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"data_dir"',
        "{}",
        to_json(CHOSEN)[:-20],
        json.dumps(json.loads(to_json(CHOSEN)) | {"sparsity": 0.5}),
        json.dumps(json.loads(to_json(CHOSEN)) | {"data_dir": 3}),
    ],
)
def test_anything_else_is_refused_in_one_line_that_names_the_file(text):
    with pytest.raises(InputError, match=str(HERE)) as caught:
        from_json(text, HERE)
    assert "\n" not in str(caught.value)
