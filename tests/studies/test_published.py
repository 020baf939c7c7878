"""The published numbers are consistent with each other and with the cost models."""

import pytest

from sparsemlp.blocks import parse_block
from sparsemlp.cost_models.costs import KINDS, Run, Shapes, loaded_elements
from sparsemlp.studies.published import LOADED_WEIGHTS, PUBLISHED


def test_every_number_names_one_run():
    keys = [(p.model, p.quantity, p.block, p.ratio, p.backward) for p in PUBLISHED]
    assert len(keys) == len(set(keys))
    for published in PUBLISHED:
        assert (published.block is None) == (published.ratio == 0)


@pytest.mark.parametrize("published", LOADED_WEIGHTS, ids=lambda p: f"{p.block} {p.ratio}")
def test_loaded_weights_are_those_of_the_model_to_the_printed_digits(published):
    masking = dict.fromkeys(KINDS, (parse_block(published.block), published.ratio))
    found = loaded_elements(Shapes(), masking, Run())
    assert f"{found / 1e9:.2f} billion" == published.text
