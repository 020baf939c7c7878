"""What hidden units and their gradient cost on paper."""

import dataclasses

import pytest
from test_hidden_tiles import hidden
from test_mlp_tiles import layers

from pallas_kernels import Mosaic
from pallas_kernels.mosaic import hidden_cost, mlp_cost, product_cost, stream_tiles
from pallas_kernels.mosaic.hidden_cost import apart_seconds, by_cost, seconds
from pallas_kernels.mosaic.hidden_tiles import APART, HiddenTiles, hidden_of, search_space


@pytest.mark.parametrize(("width", "side"), [(64, 32), (384, 32), (384, 64)])
def test_every_way_is_ranked_by_its_time(width, side):
    its = hidden(width, side)
    ranked = by_cost(its)
    assert set(ranked) == {*search_space(its), APART}
    times = [apart_seconds(its) if t == APART else seconds(its, t) for t in ranked]
    assert times == sorted(times)


def test_wide_layers_in_many_pieces_are_computed_one_after_the_other():
    assert by_cost(hidden(1024, 32))[0] == APART


def test_one_after_the_other_writes_and_reads_what_one_kernel_keeps(monkeypatch):
    its, n_bytes = hidden(1024, 32), 8192 * 4096 * 2
    products = sum(stream_tiles.seconds(a, stream_tiles.tiles_of(a)) for a in its)
    # Out of the first product, into the second, and twice out of that.
    monkeypatch.setattr(mlp_cost, "GELU_SECONDS", 0.0)
    memory = 4 * n_bytes / hidden_cost.MEMORY_BYTES
    assert apart_seconds(its) == pytest.approx(products + memory)
    # GELU takes time of its own only where reading and writing do not hide it.
    monkeypatch.setattr(mlp_cost, "GELU_SECONDS", 1e-9)
    gelu = 8192 * 4096 * 1e-9 / 132
    assert apart_seconds(its) == pytest.approx(products + gelu, rel=1e-3)


def test_loads_of_both_products_bound_a_kernel_whose_steps_take_no_time(monkeypatch):
    for name in ("STEP_SECONDS", "ISSUE_SECONDS", "COPY_SECONDS"):
        monkeypatch.setattr(product_cost, name, 0.0)
    monkeypatch.setattr(product_cost, "FLOPS", {2: float("inf")})
    monkeypatch.setattr(mlp_cost, "GELU_SECONDS", 0.0)
    its = hidden(384, 64)
    tiles = HiddenTiles(1, 1, 2, pieces=1, blocks=6, lines=1, stages=4)
    n_programs, n_kept = 8192 // 64, 6 * 24 // 5
    loaded = n_programs * 2 * (n_kept * 64 * 64 / 2 + 64 * 384) * 2
    written = 2 * 8192 * 1536 * 2
    want = 132 / n_programs * loaded / product_cost.CACHE_BYTES
    assert seconds(its, tiles) == pytest.approx(want + written / hidden_cost.MEMORY_BYTES)


def test_the_tuner_may_try_them_all_and_one_after_the_other():
    first, second = layers(384, 64)
    problem = first.problem("mosaic", 1, "mlp_gradients", 8192)
    found = Mosaic(capability="9.0").configurations(problem)
    ranked = by_cost(hidden_of((first, second), 8192))
    assert found == list(dict.fromkeys([ranked[0], APART, *ranked]))
    oblong = dataclasses.replace(problem, block=(64, 32))
    assert Mosaic(capability="9.0").configurations(oblong) == [APART]
