"""The table of crossovers is consistent, and a layer takes the entry that is meant for it."""

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import Cpu, Reference, SparseLayer
from pallas_kernels.cpu import calls, crossover
from pallas_kernels.cpu.crossover import PHASES, RATIOS, Entry, hands_over, load_table, pays
from sparsemlp.blocks import n_kept_blocks
from sparsemlp.engines import choose_engine, choose_fused

PRODUCTS = PHASES[:3]
KERNELS: tuple[tuple[tuple[int, int], Any], ...] = (
    ((64, 64), -2),
    ((64, 256), -1),
    ((256, 64), -1),
    ((384, 1536), -1),
    ((96, 192), -1),
)
"""Layers of the models, and one that was not measured."""


def layer(
    block: tuple[int, int], ratio: float, kernel: tuple[int, int] = (64, 256), axis: Any = -1
) -> SparseLayer:
    n_blocks = math.prod(kernel) // math.prod(block)
    return SparseLayer(kernel, block, n_kept_blocks(n_blocks, ratio), axis, "float32")


def of(ratio: float | None, phase: str = "product") -> dict[Any, float | None]:
    """What a table says of a block: this ratio for one phase, never for the others."""
    return {name: ratio if name == phase else None for name in PHASES}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table instead of the measured one."""
    table = (
        Entry((8, 8), -1, 100, {(1, 1): of(None), (1, 2): of(0.9), (4, 2): of(0.5)}),
        Entry((8, 8), -1, 10_000, {(1, 1): of(None), (1, 2): of(0.8), (4, 2): of(0.2)}),
        Entry((80, 80), -1, 1000, {(1, 1): of(0.5)}),
        Entry((2, 32), -1, 1000, {(2, 2): of(0.1, "mlp")}),
    )
    monkeypatch.setattr(crossover, "load_table", lambda: table)


def first_that_pays(n_rows: int = 10_000, **choices: Any) -> float | None:
    return next(
        (r for r in RATIOS if pays("product", layer(ratio=r, **choices), n_rows)),
        None,
    )


@pytest.mark.parametrize(("kernel", "axis"), KERNELS)
@pytest.mark.parametrize("block", [(1, 1), (4, 4), (1, 16), (16, 1), (8, 16), (32, 32)])
def test_a_ratio_above_one_that_pays_pays_too(kernel, axis, block):
    layers = [layer(block, ratio, kernel, axis) for ratio in (0.0, *RATIOS, 0.99)]
    for phase, n_rows in itertools.product(PHASES, (1, 64, 1000, 8192, 10**6)):
        verdicts = [pays(phase, each, n_rows) for each in layers]
        assert verdicts == sorted(verdicts)


@pytest.mark.parametrize("entry", load_table(), ids=lambda e: f"{e.kernel}, {e.axis}, {e.rows}")
def test_each_entry_of_the_table_is_a_ratio_a_phase_and_1x1_is_there(entry):
    assert (1, 1) in entry.blocks
    for block, ratios in entry.blocks.items():
        assert entry.kernel[0] % block[1] == entry.kernel[1] % block[0] == 0
        assert tuple(ratios) == PHASES
        assert all(ratio is None or 0 < ratio < 1 for ratio in ratios.values())
        assert entry.axis == -1 or ratios["mlp"] is ratios["straight_through_mlp"] is None


def test_the_table_states_machine_versions_and_date():
    text = crossover.TABLE_FILE.read_text()
    assert all(word in text for word in ("cores", "jax ", "jaxlib ", "measured", "script"))
    assert (Path(__file__).parents[2] / "experiments" / "crossover.py").exists()


@pytest.mark.parametrize(("kernel", "axis"), KERNELS[:3])
@pytest.mark.parametrize(("block", "ratio"), [((1, 1), 0.1), ((1, 1), 0.9), ((32, 32), 0.8)])
def test_auto_takes_a_layer_to_the_native_kernels_where_they_pay(kernel, axis, block, ratio):
    one = layer(block, ratio, kernel, axis)
    if reason := Cpu().reason_against(one, jax.default_backend()):
        pytest.skip(reason)
    for phase in PRODUCTS:
        chosen = choose_engine("auto", one, phase, 8192).name
        assert chosen == ("cpu" if pays(phase, one, 8192) else "reference")
        if ratio >= 0.8:
            assert chosen == "cpu"
        elif axis == -1:
            assert chosen == "reference"


def test_auto_fuses_large_blocks_and_not_small_ones():
    if reason := Cpu().reason_against(layer((1, 1), 0.1), jax.default_backend()):
        pytest.skip(reason)
    for block, ratio, name in (((32, 32), 0.8, "cpu"), ((1, 1), 0.1, None)):
        pair = (layer(block, ratio), layer(block, ratio, (256, 64)))
        chosen = choose_fused("auto", pair, 8192)
        assert (None if chosen is None else chosen.name) == name


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("n_rows", "ratio"),
    [(0, 0.5), (100, 0.5), (200, 0.5), (1000, 0.4), (10_000, 0.2), (10**6, 0.2)],
)
def test_a_measured_block_takes_its_own_ratio_between_the_measured_numbers_of_rows(n_rows, ratio):
    assert first_that_pays(block=(4, 2), kernel=(16, 8), n_rows=n_rows) == ratio


@pytest.mark.parametrize(("n_rows", "ratio"), [(100, None), (150, None), (1000, 0.8), (10**4, 0.5)])
def test_what_pays_nowhere_at_some_rows_moves_the_ratio_at_others_up(monkeypatch, n_rows, ratio):
    table = tuple(Entry((8, 8), -1, r, {(1, 1): of(at)}) for r, at in ((10_000, 0.5), (100, None)))
    monkeypatch.setattr(crossover, "load_table", lambda: table)
    assert first_that_pays(block=(1, 1), kernel=(8, 8), n_rows=n_rows) == ratio


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_kernels_that_are_as_near_the_less_favourable_one_is_believed(monkeypatch, order):
    table = tuple(Entry(k, -1, 64, {(1, 1): of(r)}) for k, r in (((8, 32), 0.2), ((32, 8), 0.6)))
    monkeypatch.setattr(crossover, "load_table", lambda: table[::order])
    assert first_that_pays(block=(1, 1), kernel=(16, 16)) == 0.6


@pytest.mark.usefixtures("written")
def test_another_block_takes_the_ratio_of_the_largest_that_fits_inside():
    assert first_that_pays(block=(4, 4), kernel=(16, 8)) == 0.2
    assert first_that_pays(block=(2, 4), kernel=(16, 8)) == 0.8
    assert first_that_pays(block=(4, 1), kernel=(8, 8)) is None


@pytest.mark.usefixtures("written")
def test_another_kernel_takes_the_nearest_number_of_weights_then_the_nearest_shape():
    assert first_that_pays(block=(1, 1), kernel=(40, 100)) == 0.5
    assert first_that_pays(block=(4, 2), kernel=(16, 8)) == 0.2
    assert not pays("mlp", layer((2, 2), 0.9, (8, 8)), 1000)
    assert pays("mlp", layer((2, 2), 0.9, (2, 32)), 1000)


@pytest.mark.usefixtures("written")
def test_nothing_pays_where_nothing_was_measured():
    assert first_that_pays(block=(4, 2), kernel=(8, 8), axis=-2) is None
    assert first_that_pays(block=(1, 1), kernel=(2, 32)) is None


@pytest.mark.usefixtures("written")
def test_layers_that_pay_in_no_phase_and_at_no_number_of_rows_are_handed_over():
    assert hands_over(layer((1, 1), 0.9, (8, 8)))
    assert hands_over(layer((4, 1), 0.5, (8, 8)))
    assert not hands_over(layer((1, 2), 0.1, (8, 8)))
    assert not hands_over(layer((2, 2), 0.1, (2, 32)))


@pytest.mark.usefixtures("written")
def test_engine_cpu_computes_what_it_hands_over_as_the_reference_does(monkeypatch):
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("native code was asked")

    monkeypatch.setattr(calls, "multiply", refuse)
    monkeypatch.setattr(calls, "gradient", refuse)
    handed, kept = layer((1, 1), 0.5, (8, 8)), jnp.arange(0, 64, 2, dtype=jnp.int32)
    x, dy, kernel = (jax.random.normal(jax.random.key(i), (8, 8)) for i in range(3))
    for engine_call in (
        lambda engine: engine.product(x, kernel, kernel[0], kept, handed),
        lambda engine: engine.input_gradient(dy, kernel, kept, handed),
        lambda engine: engine.kernel_gradient(x, dy, kept, handed),
        lambda engine: engine.parameter_gradients(x, dy, kept, handed),
    ):
        found, wanted = engine_call(Cpu()), engine_call(Reference())
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    able = layer((4, 2), 0.5, (8, 8))
    assert Cpu().fuses(able, able)
    assert not Cpu().fuses(able, handed)
    assert not Cpu().fuses(handed, able)
