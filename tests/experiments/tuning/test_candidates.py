"""The fastest right configuration is found; wrong and failing ones are written down, not chosen."""

import contextlib
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest
from tuning import candidates, compiled_loops, kernel_problems
from tuning.candidates import key_of, measure, plain
from tuning.compiled_loops import Loop
from tuning.device_timing import Timed
from tuning.kernel_problems import layer_of, problem_of
from tuning.watch import WorkLostError

from pallas_kernels import Reference
from pallas_kernels.tuning import configure

LAYER = layer_of((64, 64), (32, 32), 0.5, -1, "float32")


@dataclasses.dataclass(frozen=True)
class Size:
    size: int


SIZES = [key_of(Size(n)) for n in (1, 2, 3, 4)]


class Cuts(Reference):
    """Right with sizes 1 and 4, wrong with 2, refused by the compiler with 3."""

    name = "cuts"
    seen: ClassVar[list[int]] = []

    def configurations(self, problem: Any) -> list[Size]:
        return [Size(n) for n in (1, 2, 3, 4)]

    def product(self, x, kernel, bias, kept, layer):
        problem = layer.problem(self.name, 1, "product", len(x))
        size = configure(problem, Size(0)).size
        self.seen.append(size)
        if size == 3:
            raise ValueError("out of shared memory")
        y = super().product(x, kernel, bias, kept, layer)
        return y + jnp.asarray(size == 2, y.dtype)


def test_the_fastest_right_one_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(loops: Any, *_: Any) -> Any:
        times = {SIZES[0]: 3e-6, SIZES[3]: 2e-6, "dense": 5e-6}
        assert set(times) == set(loops)
        assert set(Cuts.seen) == {1, 2, 3, 4}
        return {name: Timed(t, t, t) for name, t in times.items()}, {}

    Cuts.seen.clear()
    monkeypatch.setattr(candidates, "time_loops", timed)
    entry = tune(Cuts())
    assert entry["configuration"] == {"size": 4}
    assert entry["microseconds"] == pytest.approx(2)
    assert entry["dense_microseconds"] == pytest.approx(5)
    assert entry["heuristic_microseconds"] == pytest.approx(3)
    assert [t["configuration"] for t in entry["timed"]] == [{"size": 1}, {"size": 4}]
    assert [t["microseconds"] for t in entry["timed"]] == pytest.approx([3, 2])
    reasons = {r["configuration"]["size"]: r["reason"] for r in entry["rejected"]}
    assert set(reasons) == {2, 3}
    assert "is off by" in reasons[2]
    assert "out of shared memory" in reasons[3]


def test_where_none_is_right_none_is_chosen() -> None:
    class Wrong(Cuts):
        def configurations(self, problem: Any) -> list[Size]:
            return [Size(2)]

    entry = tune(Wrong())
    assert entry["configuration"] == {}
    assert entry["microseconds"] is None
    assert len(entry["rejected"]) == 1


def test_what_broke_before_is_not_tried_again() -> None:
    Cuts.seen.clear()
    entry = tune(Cuts(), broken={SIZES[3]: "took longer than 120 s"})
    assert 4 not in Cuts.seen
    assert {"configuration": {"size": 4}, "reason": "took longer than 120 s"} in entry["rejected"]
    assert entry["configuration"] == {"size": 1}
    entry = tune(Cuts(), broken={"dense": "took longer than 15 s"})
    assert entry["microseconds"] is None
    assert entry["rejected"][0]["reason"] == "took longer than 15 s"


def test_a_configuration_is_watched_and_the_one_that_breaks_the_device_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = []

    def lost(name: str, error: Exception) -> None:
        raise WorkLostError(name, str(error))

    def guard(name: str) -> Any:
        watched.append(name)
        return contextlib.nullcontext()

    def broken(*_: Any) -> None:
        raise RuntimeError("an illegal address")

    def compile_loops(*arguments: Any) -> Any:
        shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        loops = compiled_loops.compile_loops(*arguments)
        return loops | ({SIZES[2]: Loop(broken, (), shape, {})} if SIZES[2] in loops else {})

    monkeypatch.setattr(candidates, "compile_loops", compile_loops)
    monkeypatch.setattr(candidates, "require_device", lost)
    with pytest.raises(WorkLostError, match="an illegal address") as raised:
        tune(Cuts(), guard=guard)
    assert raised.value.name == SIZES[2]
    assert watched[0] == SIZES[0]
    assert watched[-1] == SIZES[2]


@pytest.mark.parametrize("n", [1, 2, 7, 40, 100])
def test_half_of_those_tried_are_what_the_engine_expects_most_of(n: int) -> None:
    tried = candidates.chosen(range(40), n)
    assert len(tried) == len(set(tried)) == min(n, 40)
    n_first = min(40, -(-n // 2))
    assert tried[:n_first] == list(range(n_first))
    assert n != 7 or tried[n_first:] != list(range(n_first, 7))


def test_an_engine_without_choices_is_timed_as_it_is() -> None:
    entry = tune(Reference())
    assert entry["configuration"] == {}
    assert entry["microseconds"] > 0
    assert entry["rejected"] == []


def test_operands_that_do_not_fit_memory_are_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    def planned_work(*given: Any) -> Any:
        return kernel_problems.planned_work(*given)[0], too_large

    monkeypatch.setattr(candidates, "planned_work", planned_work)
    entry = tune(Cuts())
    assert entry["microseconds"] is None
    assert "RESOURCE_EXHAUSTED" in entry["rejected"][0]["reason"]


def test_a_dataclass_becomes_json() -> None:
    assert plain(None) == {}
    assert plain(problem_of(Cuts(), "product", LAYER, 40))["block"] == [32, 32]


def tune(engine: Reference, **more: Any) -> dict[str, Any]:
    return measure(
        engine,
        problem_of(engine, "product", LAYER, 40),
        LAYER,
        n_candidates=10,
        rounds=1,
        is_interpreted=True,
        **more,
    )
