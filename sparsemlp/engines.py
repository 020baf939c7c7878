"""Which engine computes a layer."""

import jax

from pallas_kernels import ENGINES, PLANNED_ENGINES, Engine, SparseLayer
from sparsemlp.errors import InputError


def check_engine(name: str) -> None:
    """Raises InputError unless `name` is `auto` or an engine of this version."""
    if name == "auto" or name in ENGINES:
        return
    known = ", ".join(("auto", *ENGINES))
    if name in PLANNED_ENGINES:
        raise InputError(
            f"engine {name!r} is planned, but not part of this version: choose one of {known}"
        )
    raise InputError(f"engine {name!r} is unknown: choose one of {known}")


def choose_engine(name: str, layer: SparseLayer) -> Engine:
    """The engine of that name, or with `auto` the first that can compute the layer here.

    Raises:
      InputError: the engine does not exist, or cannot compute this layer on this platform; the
        message says what to install or change.
    """
    check_engine(name)
    platform = jax.default_backend()
    candidates = list(ENGINES.values()) if name == "auto" else [ENGINES[name]]
    reasons: list[str] = []
    for engine in candidates:
        reason = engine.reason_against(layer, platform)
        if reason is None:
            return engine
        reasons.append(f"engine {engine.name!r} cannot run here: {reason}")
    raise InputError("; ".join(reasons))
