"""What two fused layers cost on paper."""

import dataclasses

import pytest
from test_mlp_tiles import layers, pair

from pallas_kernels import Mosaic
from pallas_kernels.mosaic import mlp_cost, product_cost, stream_tiles
from pallas_kernels.mosaic.mlp_cost import apart_seconds, by_cost, seconds
from pallas_kernels.mosaic.mlp_tiles import APART, MlpTiles, pair_of, search_space


@pytest.mark.parametrize(("width", "side"), [(64, 32), (384, 32), (384, 64)])
def test_every_way_is_ranked_by_its_time(width, side):
    its = pair(width, side)
    ranked = by_cost(its)
    assert set(ranked) == {*search_space(its), APART}
    times = [apart_seconds(its) if t == APART else seconds(its, t) for t in ranked]
    assert times == sorted(times)


def test_what_cannot_be_fused_is_apart():
    assert by_cost(pair(768, 64)) == [APART]


def test_one_after_the_other_is_both_products_gelu_and_the_hidden_units(monkeypatch):
    its = pair(768, 64)
    alone = [stream_tiles.seconds(a, stream_tiles.tiles_of(a)) for a in its]
    written = 8192 * 3072 * 2 / product_cost.CACHE_BYTES
    with_gelu = apart_seconds(its)
    monkeypatch.setattr(mlp_cost, "GELU_SECONDS", 0.0)
    assert apart_seconds(its) == pytest.approx(sum(alone) + written)
    # All of it, shared out among the multiprocessors, the last wave of programs perhaps in part.
    least = 8192 * 3072 / product_cost.places(1) * 27 / (128 * 1.7e9)
    assert least <= with_gelu - apart_seconds(its) < 2 * least


def test_a_warpgroup_alone_takes_longer_for_gelu():
    times = [mlp_cost.gelu_seconds(132, 1, 1000, n) for n in (1, 2, 4)]
    assert times[0] == pytest.approx(2 * times[2])
    assert times[1] == times[2]
    assert mlp_cost.gelu_seconds(133, 1, 1000, 4) == pytest.approx(2 * times[2])


def test_loads_bound_a_pair_whose_steps_take_no_time(monkeypatch):
    """Panels of all rows once, kept blocks once for every cluster of programs."""
    for name in ("STEP_SECONDS", "ISSUE_SECONDS", "COPY_SECONDS"):
        monkeypatch.setattr(product_cost, name, 0.0)
    monkeypatch.setattr(product_cost, "FLOPS", {2: float("inf")})
    monkeypatch.setattr(mlp_cost, "GELU_SECONDS", 0.0)
    tiles = MlpTiles(2, 2, 2, pieces=4, blocks=12, inputs=12, lines=6, stages=8)
    n_programs, waves = 8192 // 64, 1
    n_kept = 12 * 48 // 5
    loaded = n_programs * (2 * n_kept * 32 * 32 / 2 + 64 * 384) * 2
    want = waves * 132 / n_programs * loaded / product_cost.CACHE_BYTES
    assert seconds(pair(384, 32), tiles) == pytest.approx(want)


def test_the_tuner_may_try_them_all_and_one_after_the_other():
    first, second = layers(384, 64)
    problem = first.problem("mosaic", 1, "mlp", 8192)
    found = Mosaic(capability="9.0").configurations(problem)
    ranked = by_cost(pair_of((first, second), 8192))
    assert found == list(dict.fromkeys([ranked[0], APART, *ranked]))
    assert Mosaic(capability="8.0").configurations(problem) == []
    oblong = dataclasses.replace(problem, block=(64, 32))
    assert Mosaic(capability="9.0").configurations(oblong) == [APART]
