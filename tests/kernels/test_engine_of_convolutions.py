"""An engine that says nothing of convolutions computes none."""

import inspect

import pytest

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.engine_of_convolutions import EngineOfConvolutions

LAYER = SparseLayer((8, 8), (4, 4), 1, -1, "float32")


def test_the_reference_convolves_wherever_no_other_does():
    able = [name for name, engine in ENGINES.items() if engine.convolves]
    assert able == ["cpu", "triton", "jax-triton", "reference"]
    assert ENGINES["reference"].pays_convolving("product", LAYER, 512)


def test_blocks_of_several_positions_are_not_for_every_engine():
    layer = SparseLayer((9 * 48, 64), (32, 32), 2, -1, "float32")
    refused = [name for name in ENGINES if ENGINES[name].reason_against_convolving(layer, 48)]
    assert refused == ["triton", "jax-triton"]
    assert "32 columns must divide its 48 input" in str(
        ENGINES["triton"].reason_against_convolving(layer, 48)
    )
    assert ENGINES["triton"].reason_against_convolving(layer, 96) is None


def test_others_do_not():
    assert not EngineOfConvolutions.convolves
    assert not EngineOfConvolutions().pays_convolving("product", LAYER, 512)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method", ["convolution", "convolution_input_gradient", "convolution_gradients"]
)
def test_what_it_does_not_convolve_it_cannot_compute(method):
    function = getattr(EngineOfConvolutions, method)
    with pytest.raises(NotImplementedError):
        function(*[None] * len(inspect.signature(function).parameters))
