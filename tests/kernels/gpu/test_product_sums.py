"""Sums of panels wait for what they read, and for their own end."""

from typing import Any

import jax
import pytest
from simulated_hopper import simulated
from simulated_memory import SimulationError
from test_hidden_program import CUTS, compute

from pallas_kernels.mosaic import warpgroup

__all__ = ["simulated"]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("more", [1, 2])
def test_a_simulated_hopper_notices_products_that_are_not_waited_for(more, monkeypatch):
    """A product more on its way than `finish_products` allows reads what is filled anew."""
    finish = warpgroup.finish_products
    monkeypatch.setattr(warpgroup, "finish_products", lambda n_left: finish(n_left + more))
    with jax.disable_jit(), pytest.raises(SimulationError):
        compute(CUTS[2])


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("ring", ["ring1_free", "ring2_free"])
def test_a_simulated_hopper_notices_buffers_that_are_never_given_back(ring, monkeypatch):
    arrive = warpgroup.arrive

    def forgetful(barrier: Any) -> None:
        if barrier.name != ring:
            arrive(barrier)

    monkeypatch.setattr(warpgroup, "arrive", forgetful)
    with jax.disable_jit(), pytest.raises(SimulationError, match="never opens"):
        compute(CUTS[0])
