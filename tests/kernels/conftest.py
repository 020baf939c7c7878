"""Kernels for a GPU are interpreted where there is none."""

import jax
import pytest

from pallas_kernels import ENGINES, Triton


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines whose kernels JAX interprets, in the place of those that need a GPU."""
    if jax.default_backend() != "gpu":
        monkeypatch.setitem(ENGINES, "triton", Triton(interpret=True))
