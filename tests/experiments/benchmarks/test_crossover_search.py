"""The search finds the smallest ratio at which native code pays."""

from typing import Any

import jax.numpy as jnp
import pytest
from benchmarks import crossover_search
from benchmarks.crossover_phases import Case, Comparison
from benchmarks.crossover_search import ratios_of, smallest_ratio

from pallas_kernels import SparseLayer
from pallas_kernels.cpu.crossover import RATIOS

SMALL = Case((8, 8), -1, 4, 2)


@pytest.mark.parametrize(
    ("block", "ratios"),
    [
        ((1, 1), list(RATIOS)),
        ((4, 4), [0.3, 0.5, 0.8]),
        ((8, 4), [0.5]),
        ((8, 8), []),
        ((3, 3), []),
    ],
)
def test_a_block_has_a_ratio_for_each_number_of_kept_blocks_but_all(
    block: Any, ratios: list[float]
) -> None:
    assert ratios_of(SMALL, block) == ratios


@pytest.mark.parametrize("crossing", [*RATIOS, None])
def test_the_search_finds_where_native_begins_to_pay(
    monkeypatch: pytest.MonkeyPatch, crossing: float | None
) -> None:
    asked: list[SparseLayer] = []

    def native(layer: SparseLayer, kept: Any, x: Any) -> Any:
        asked.append(layer)
        return x[: kept.size // layer.n_kept]

    def seconds() -> float:
        n_kept = asked[-1].n_kept
        pays = crossing is not None and n_kept <= 64 * (1 - crossing) + 1
        return 0.96 if pays else 0.98

    def turns(contenders: Any, rounds: int, steps: Any) -> dict[str, list[float]]:
        native, other = contenders
        contenders[native](2)
        return {native: [seconds()] * rounds, other: [1.0] * rounds}

    monkeypatch.setattr(crossover_search, "take_turns", turns)
    monkeypatch.setattr(crossover_search, "steps_in_a_turn", lambda *_: 1)
    comparison = Comparison((jnp.ones(3),), (native,), (lambda _, kept, x: x[: kept.size],))
    assert smallest_ratio(comparison, SMALL, (1, 1), 1) == crossing
    assert len({layer.n_kept for layer in asked}) <= 5


@pytest.mark.parametrize(
    ("native", "others", "pays"),
    [
        ((2.0, 0.5), (1.0, 3.0), True),
        ((2.0, 0.5), (3.0, 0.5), False),
        ((0.5, 2.0), (0.6, 3.0), True),
        ((1.0, 2.0), (1.01, 3.0), False),
    ],
)
def test_the_fastest_way_counts_with_native_code_and_without(
    monkeypatch: pytest.MonkeyPatch, native: Any, others: Any, pays: bool
) -> None:
    def turns(contenders: Any, rounds: int, steps: Any) -> dict[str, list[float]]:
        return {name: [each] for name, each in zip(contenders, native + others, strict=True)}

    monkeypatch.setattr(crossover_search, "take_turns", turns)
    monkeypatch.setattr(crossover_search, "steps_in_a_turn", lambda *_: 1)
    ways = (lambda _, kept, x: x + kept[0], lambda _, kept, x: x - kept[0])
    comparison = Comparison((jnp.ones(3),), ways, ways)
    found = smallest_ratio(comparison, SMALL, (1, 1), 1)
    assert found == (RATIOS[0] if pays else None)
