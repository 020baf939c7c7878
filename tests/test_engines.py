"""Which engine computes a layer, and what one that cannot says."""

from typing import Any

import pytest

from pallas_kernels import ENGINES, PLANNED_ENGINES, Reference, SparseLayer
from sparsemlp import engines
from sparsemlp.engines import check_engine, choose_engine
from sparsemlp.errors import InputError

LAYER = SparseLayer((4, 6), (2, 2), 3, -1, "float32")


class Unable(Reference):
    name = "unable"

    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        return f"blocks of {layer.block} on {platform} need an abacus: install abacus"


class Able(Reference):
    name = "able"


@pytest.fixture
def with_unable(monkeypatch) -> None:
    """An engine that cannot run stands first in the order of preference."""
    monkeypatch.setattr(engines, "ENGINES", {"unable": Unable(), **ENGINES})


def test_auto_gives_the_reference():
    assert choose_engine("auto", LAYER).name == "reference"


def test_the_reference_is_found_by_its_name():
    assert choose_engine("reference", LAYER) is ENGINES["reference"]


def test_an_engine_that_cannot_run_is_refused_by_name_with_its_own_reason(with_unable):
    with pytest.raises(InputError) as caught:
        choose_engine("unable", LAYER)
    message = str(caught.value)
    assert "engine 'unable' cannot run here" in message
    assert "blocks of (2, 2) on " in message
    assert "need an abacus: install abacus" in message


def test_auto_skips_an_engine_that_cannot_run(with_unable):
    assert choose_engine("auto", LAYER).name == "reference"


def test_auto_takes_the_first_engine_that_can_run(monkeypatch):
    order: dict[str, Any] = {"unable": Unable(), "able": Able(), **ENGINES}
    monkeypatch.setattr(engines, "ENGINES", order)
    assert choose_engine("auto", LAYER).name == "able"


def test_auto_gives_every_reason_where_nothing_can_run(monkeypatch):
    class Worse(Unable):
        name = "worse"

        def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
            return "it never does"

    monkeypatch.setattr(engines, "ENGINES", {"unable": Unable(), "worse": Worse()})
    with pytest.raises(InputError) as caught:
        choose_engine("auto", LAYER)
    assert "'unable'" in str(caught.value)
    assert "install abacus" in str(caught.value)
    assert "'worse' cannot run here: it never does" in str(caught.value)


def test_the_platform_and_the_layer_are_what_the_engine_is_asked_about(monkeypatch):
    asked = []

    class Curious(Able):
        def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
            asked.append((layer, platform))
            return None

    monkeypatch.setattr(engines, "ENGINES", {"able": Curious()})
    choose_engine("able", LAYER)
    assert len(asked) == 1
    layer, platform = asked[0]
    assert layer == LAYER
    assert platform in ("cpu", "gpu", "tpu")


@pytest.mark.parametrize("name", PLANNED_ENGINES)
def test_a_planned_engine_is_not_called_unknown(name):
    with pytest.raises(InputError) as caught:
        check_engine(name)
    assert repr(name) in str(caught.value)
    assert "planned" in str(caught.value)
    assert "choose one of auto, reference" in str(caught.value)


@pytest.mark.parametrize("name", ["cuda", "", "Reference"])
def test_an_unknown_engine_is_named_with_the_known_ones(name):
    with pytest.raises(InputError) as caught:
        choose_engine(name, LAYER)
    assert f"engine {name!r} is unknown" in str(caught.value)
    assert "choose one of auto, reference" in str(caught.value)
