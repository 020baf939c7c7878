"""Which engine computes a layer."""

import functools
import logging

import jax

from pallas_kernels import ENGINES, PLANNED_ENGINES, Engine, Phase, SparseLayer
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


def choose_engine(name: str, layer: SparseLayer, phase: Phase, n_rows: int) -> Engine:
    """The engine of that name, or with `auto` the first that can compute this here and pays.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.
      layer: the layer.
      phase: which of its products.
      n_rows: rows of x, or samples times channels along the token axis.

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
            if name != "auto" or engine is candidates[-1] or engine.pays(phase, layer, n_rows):
                return engine
            continue
        reasons.append(f"engine {engine.name!r} cannot run here: {reason}")
        if name == "auto" and platform in engine.platforms:
            _say_once(f"{reasons[-1]}; the next best is used")
    raise InputError("; ".join(reasons))


def choose_fused(name: str, layers: tuple[SparseLayer, SparseLayer], n_rows: int) -> Engine | None:
    """The engine that computes two layers and the GELU between them in one go, if one does.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.
      layers: the two layers.
      n_rows: rows of x.

    Raises:
      InputError: as for `choose_engine`.
    """
    chosen = [choose_engine(name, layer, "mlp", n_rows) for layer in layers]
    return chosen[0] if chosen[0] is chosen[1] and chosen[0].fuses(*layers) else None


@functools.cache
def _say_once(message: str) -> None:
    logging.getLogger("sparsemlp").warning(message)
