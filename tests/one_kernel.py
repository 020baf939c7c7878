"""The parameters of one masked kernel of 8 blocks."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from sparsemlp.plan import Plan
from sparsemlp.rules import BlockMasking

PATH = "layer/kernel"
PLAN: Plan = {"*/kernel": BlockMasking((2, 4), 0.5)}


def parameters(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kernel, bias = rng.normal(size=(8, 8)), rng.normal(size=8)
    return {"layer": {"kernel": jnp.float32(kernel), "bias": jnp.float32(bias)}}


def with_norms(norms: list[float]) -> dict[str, Any]:
    """Parameters whose 8 blocks of `(2, 4)` have these Frobenius norms, by flat id."""
    tiles = np.array(norms).reshape(2, 4)[:, None, :, None] / np.sqrt(8)
    kernel = np.broadcast_to(tiles, (2, 4, 4, 2)).reshape(8, 8)
    return {"layer": {"kernel": jnp.float32(kernel), "bias": jnp.zeros(8)}}
