"""What a training program says before it trains."""

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.runs import announcement


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "density 0.250 from epoch 4"),
        (
            {"ratio_schedule": "cubic", "ramp_epochs": 7},
            "density falling from epoch 4 on, to 0.250 in epoch 9",
        ),
        (
            {"ratio_schedule": "cubic", "ramp_epochs": 7, "freeze_epoch": 5},
            "density falling from epoch 4 on, but frozen or over before 0.250",
        ),
        ({"ratio_schedule": "adaptive"}, "density at least 0.250 from epoch 4"),
    ],
)
def test_the_density_is_told_as_it_will_be(options, words):
    settings = resolve(Config(ratio=0.8, **options), "digits")
    assert announcement._density_in_words(settings, 0.25) == words
