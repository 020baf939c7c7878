"""An engine that says nothing of pairs of layers computes none."""

import inspect

import pytest

from pallas_kernels import Reference, SparseLayer
from pallas_kernels.engine_of_pairs import EngineOfPairs
from pallas_kernels.pruning import Pruning

LAYER = SparseLayer((8, 8), (4, 4), 1, -1, "float32")


def test_the_reference_fuses_nothing():
    engine, pair, pruning = Reference(), (LAYER, LAYER), (Pruning(), Pruning((2, 2)))
    assert not engine.fuses(*pair)
    assert not engine.fuses_straight_through(*pair)
    assert not engine.fuses_pruned(pair, pruning)
    assert not engine.pays_pruned(pair, pruning, straight_through=False, n_rows=1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method",
    ["mlp", "mlp_gradients", "straight_through_gradients", "pruned_mlp", "pruned_mlp_gradients"],
)
def test_what_it_does_not_fuse_it_cannot_compute(method):
    function = getattr(EngineOfPairs, method)
    with pytest.raises(NotImplementedError):
        function(*[None] * len(inspect.signature(function).parameters))
