"""Which engine computes two layers in one, if any does."""

import pytest
from engine_doubles import Able, Unable, put_first

from pallas_kernels import Phase, SparseLayer
from sparsemlp.engines import choose_fused
from sparsemlp.errors import InputError


class Fuses(Able):
    """Fuses layers of one block that expand and contract."""

    name = "fuses"

    def fuses(self, first: SparseLayer, second: SparseLayer) -> bool:
        expands = first.kernel_shape[0] < second.kernel_shape[0]
        return first.block == second.block and expands


def pair(
    first: tuple[int, int] = (32, 32), second: tuple[int, int] = (32, 32)
) -> tuple[SparseLayer, SparseLayer]:
    """Two layers, one after the other, of these blocks."""
    return (
        SparseLayer((64, 256), first, 3, -1, "float32"),
        SparseLayer((256, 64), second, 3, -1, "float32"),
    )


def test_two_layers_are_fused_by_an_engine_that_says_it_can(monkeypatch):
    put_first(monkeypatch, Fuses())
    fused = choose_fused("auto", pair(), 8)
    assert fused is not None
    assert fused.name == "fuses"
    assert choose_fused("fuses", pair(), 8) is fused


@pytest.mark.parametrize("name", ["auto", "fuses"])
def test_two_layers_that_an_engine_does_not_fuse_are_not_fused(monkeypatch, name):
    put_first(monkeypatch, Fuses())
    assert choose_fused(name, pair((32, 32), (16, 16)), 8) is None
    expanding, contracting = pair()
    assert choose_fused(name, (contracting, expanding), 8) is None


def test_the_reference_fuses_nothing():
    assert choose_fused("reference", pair(), 8) is None


def test_two_layers_are_fused_only_if_that_pays_for_both(monkeypatch):
    class PaysForSmallBlocks(Fuses):
        def pays(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
            return phase == "mlp" and layer.block == (16, 16)

        def fuses(self, first: SparseLayer, second: SparseLayer) -> bool:
            return True

    put_first(monkeypatch, PaysForSmallBlocks())
    assert choose_fused("auto", pair((16, 16), (16, 16)), 8) is not None
    for blocks in (((16, 16), (32, 32)), ((32, 32), (16, 16)), ((32, 32), (32, 32))):
        chosen = choose_fused("auto", pair(*blocks), 8)
        assert chosen is None or chosen.name != "fuses"


def test_an_engine_that_cannot_run_is_refused_for_two_layers_too(monkeypatch):
    put_first(monkeypatch, Unable())
    with pytest.raises(InputError, match="install abacus"):
        choose_fused("unable", pair(), 8)
