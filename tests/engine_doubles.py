"""Engines that stand in for others, and a layer to ask them about."""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import ENGINES, Phase, Reference, SparseLayer
from sparsemlp import engines
from sparsemlp.engines import choose_engine

LAYER = SparseLayer((64, 64), (32, 32), 3, -1, "float32")

choose = functools.partial(choose_engine, phase="product", n_rows=8)


class Unable(Reference):
    name = "unable"

    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        return f"blocks of {layer.block} on {platform} need an abacus: install abacus"


class MeantForHere(Unable):
    """Cannot run where it is meant to."""

    platforms = ("cpu", "gpu", "tpu")


class MeantForElsewhere(Unable):
    platforms = ("abacus",)


class Able(Reference):
    name = "able"


class Noting(Reference):
    """Notes what is asked of it for the other rules; the block (1, 1) scores highest."""

    name = "noting"
    measured = False
    scores = ("l2",)

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in ("largest_blocks", "compact_gradient", "pruned_input_gradient"):
            self.asked.add(name)
        return super().__getattribute__(name)

    def block_scores(self, kernel: Array, block: tuple[int, int], score: str) -> Array:
        grid = (kernel.shape[0] // block[1], kernel.shape[1] // block[0])
        return jnp.zeros(grid).at[1, 1].set(1.0)


class Choosy(Able):
    """Pays for one phase alone, from a number of rows on."""

    def __init__(self, phase: Phase, least_rows: int = 0) -> None:
        self.phase, self.least_rows = phase, least_rows

    def pays(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
        return phase == self.phase and n_rows >= self.least_rows


def put_first(monkeypatch, *found: Reference) -> None:
    """Puts engines before those of this version in the order of preference."""
    order: dict[str, Any] = {engine.name: engine for engine in found}
    monkeypatch.setattr(engines, "ENGINES", order | ENGINES)
