"""Sums of a product on Hopper wait for what they read, and for their own end."""

from typing import Any

import pytest
from simulated_hopper import simulated
from simulated_memory import SimulationError
from test_product_copies import CUTS, multiply

from pallas_kernels.mosaic import warpgroup

__all__ = ["simulated"]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("more", [1, 2])
def test_a_simulated_hopper_notices_products_that_are_not_waited_for(more, monkeypatch):
    """A product more on its way than `finish_products` allows reads what is filled anew."""
    finish = warpgroup.finish_products
    monkeypatch.setattr(warpgroup, "finish_products", lambda n_left: finish(n_left + more))
    with pytest.raises(SimulationError):
        multiply(CUTS[3], transposed=False)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", [CUTS[0], CUTS[4]], ids=str)
def test_a_simulated_hopper_notices_operands_that_are_not_waited_for(tiles, monkeypatch):
    wait = warpgroup.wait

    def careless(barrier: Any) -> None:
        if not barrier.name.endswith("_full"):
            wait(barrier)

    monkeypatch.setattr(warpgroup, "wait", careless)
    with pytest.raises(SimulationError):
        multiply(tiles, transposed=True)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_buffers_that_are_never_given_back(monkeypatch):
    arrive = warpgroup.arrive

    def forgetful(barrier: Any) -> None:
        if barrier.name != "ring_free":
            arrive(barrier)

    monkeypatch.setattr(warpgroup, "arrive", forgetful)
    with pytest.raises(SimulationError, match="never opens"):
        multiply(CUTS[2], transposed=False)
