"""An engine is compared with the reference before it is timed, alone, and not twice."""

import sys

import jax
import pytest
from gpu import check as gpu_check
from gpu.check import add_comparisons, at_work_of, check_engines, check_points, comparisons
from gpu.points import Point, all_points
from tuning.watch import WorkLostError

from pallas_kernels import Mosaic, Reference, Triton
from pallas_kernels.mosaic.gradient_cost import gradient_tiles_of
from pallas_kernels.mosaic.product_tiles import product_of
from pallas_kernels.mosaic.stream_tiles import StreamTiles, tiles_of
from sparsemlp.runs.history import History

POINT = Point((64, 64), (32, 32), 0.5, 24, "float32")


class Forgets(Reference):
    def product(self, x, kernel, bias, kept, layer):
        return super().product(x, kernel, bias, kept[:-1], layer)


class Refuses(Reference):
    def kernel_gradient(self, x, dy, kept, layer):
        raise ValueError("no room")


def test_an_engine_that_is_wrong_or_fails_is_found():
    engines = {"right": Reference(), "wrong": Forgets(), "fails": Refuses()}
    records = list(check_engines(engines, [POINT]))
    assert len({record["key"] for record in records}) == len(records) == 9
    failed = {record["key"].split()[0]: record["wrong"] for record in records if record["wrong"]}
    assert set(failed) == {"wrong", "fails"}
    assert "is off by" in failed["wrong"]
    assert "no room" in failed["fails"]


def test_a_comparison_after_which_the_device_is_silent_is_the_last(monkeypatch):
    def lost(name: str, error: Exception) -> None:
        raise WorkLostError(name, str(error))

    monkeypatch.setattr(gpu_check, "require_device", lost)
    records = []
    with pytest.raises(WorkLostError, match="no room"):
        records.extend(check_engines({"fails": Refuses()}, [POINT]))
    found = check_engines({"fails": Refuses()}, [POINT])
    assert [next(found)["wrong"], next(found)["wrong"]] == ["", ""]
    assert "no room" in next(found)["wrong"]
    with pytest.raises(WorkLostError):
        next(found)


def test_what_is_compared_is_named_while_it_is(tmp_path):
    """A process that dies of it leaves the name behind."""
    out, seen = tmp_path / "correctness.jsonl", []

    class Looks(Reference):
        pass

    options = gpu_check.Options("looks", out)
    point = check_points(is_tiny=True)[0]
    at_work = at_work_of(out, "looks")

    def compare(*_: object) -> str:
        left = at_work.left()
        assert left is not None
        seen.append(left[1])
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_check, "compare", compare)
        patch.setattr(gpu_check, "check_points", lambda _: [point])
        add_comparisons(options, Looks())
    assert seen == list(comparisons("looks", Looks(), [point]))
    assert at_work.left() is None
    assert [record["kernel"] for record in History(out).read()] == [
        "product",
        "input_gradient",
        "kernel_gradient",
    ]


def test_programs_are_compiled_at_the_precision_of_who_asks():
    """They are traced in threads, each of which has a precision of its own."""
    seen = []

    class Looks(Reference):
        def product(self, x, kernel, bias, kept, layer):
            seen.append(jax.config.jax_default_matmul_precision)
            return super().product(x, kernel, bias, kept, layer)

    with jax.default_matmul_precision("bfloat16"):
        list(check_engines({"looks": Looks()}, [POINT]))
    assert set(seen) == {"bfloat16"}


def test_a_comparison_that_is_known_is_not_made_again():
    engine = Reference()
    keys = list(comparisons("right", engine, [POINT]))
    records = list(check_engines({"right": engine}, [POINT], set(keys[:2])))
    assert [record["key"] for record in records] == keys[2:]


def test_engines_are_compared_on_rows_that_do_not_fill_a_tile():
    points = check_points(is_tiny=False)
    assert all(point.n_rows % 8 for point in points)
    for engine in (Mosaic(interpret=True), Triton(interpret=True)):
        keys = list(comparisons("it", engine, points))
        fused = [key for key in keys if key.startswith("it mlp ")]
        assert fused
        assert len(keys) - len(fused) == 3 * len(points)


def _way(tiles: StreamTiles) -> tuple[object, ...]:
    return tiles.n_compute, tiles.teams, tiles.tall


@pytest.mark.thorough
def test_kernels_are_cut_in_every_way_that_is_timed():
    def ways(points: list[Point]) -> set[object]:
        found = set()
        for point in points:
            for transposed in (False, True):
                tiles = tiles_of(product_of(point.layer, point.n_rows, transposed=transposed))
                found.add((point.block, point.dtype, *_way(tiles)))
            tiles = gradient_tiles_of(point.layer, point.n_rows)
            way = tiles.n_together, tiles.by_rows, tiles.balanced
            found.add((point.block, point.dtype, "gradient", *way))
        return found

    masked = [point for point in all_points() if point.ratio]
    assert ways(masked) <= ways(check_points(is_tiny=False))


def test_the_program_adds_what_is_missing_and_refuses_an_unknown_engine(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "correctness.jsonl"
    monkeypatch.setattr(gpu_check, "gpu_engines", lambda _: {"right": Reference()})
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["x", "--engine=right", f"--out={path}", "--smoke"])
        assert gpu_check.main() == 0
        records = History(path).read()
        assert [record["key"] for record in records] == list(
            comparisons("right", Reference(), check_points(is_tiny=True))
        )
        assert not any(record["wrong"] or record["measured"] for record in records)
    monkeypatch.setattr(sys, "argv", ["x", "--engine=left", f"--out={path}", "--smoke"])
    assert gpu_check.main() == 2
    assert capsys.readouterr().err.startswith("error: --engine=left is none of right")
