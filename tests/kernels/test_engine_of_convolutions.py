"""An engine that says nothing of convolutions computes none."""

import inspect

import pytest

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.engine_of_convolutions import EngineOfConvolutions

LAYER = SparseLayer((8, 8), (4, 4), 1, -1, "float32")


def test_engines_of_processors_convolve_and_the_reference_wherever_no_other_does():
    assert [name for name, engine in ENGINES.items() if engine.convolves] == ["cpu", "reference"]
    assert ENGINES["reference"].pays_convolving("product", LAYER)


def test_others_do_not():
    assert not EngineOfConvolutions.convolves
    assert not EngineOfConvolutions().pays_convolving("product", LAYER)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method", ["convolution", "convolution_input_gradient", "convolution_gradients"]
)
def test_what_it_does_not_convolve_it_cannot_compute(method):
    function = getattr(EngineOfConvolutions, method)
    with pytest.raises(NotImplementedError):
        function(*[None] * len(inspect.signature(function).parameters))
