"""Copies of panels and rings wait until nobody reads what they overwrite."""

import jax
import jax.numpy as jnp
import pytest
from simulated_hopper import simulated
from simulated_memory import SimulationError
from test_hidden_program import CUTS, WHOLE, compute

from pallas_kernels.mosaic.product_copies import Copying

__all__ = ["simulated"]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", [WHOLE, CUTS[2]], ids=str)
def test_a_simulated_hopper_notices_buffers_that_are_filled_too_early(tiles, monkeypatch):
    def not_waiting(self: Copying, step: jax.Array) -> jax.Array:
        return jax.lax.rem(step, jnp.int32(self.tiles.stages))

    monkeypatch.setattr(Copying, "_free_slot", not_waiting)
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        compute(tiles)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("more", [-1, 1])
def test_a_program_of_a_cluster_waits_for_the_others_to_the_end(more, monkeypatch):
    """It ends neither before they are done with its ring nor does it wait for more."""
    wait = Copying.await_end

    def wait_for_others(self: Copying, n_steps: jax.Array) -> None:
        wait(self, n_steps + more)

    monkeypatch.setattr(Copying, "await_end", wait_for_others)
    with jax.disable_jit(), pytest.raises(SimulationError):
        compute(CUTS[2])
