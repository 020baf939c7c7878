"""What tables of measurements say, and what becomes of them where they say nothing."""

import dataclasses
import logging
from typing import Any

import jax
import pytest

from pallas_kernels import ENGINES, SparseLayer, Triton, tuning
from pallas_kernels.device_table import Entry, Problem, TableError
from pallas_kernels.triton import launch
from pallas_kernels.triton.launch import Tiles
from pallas_kernels.tuning import configure, forced, pays
from sparsemlp import InputError, engines
from sparsemlp.engines import choose_engine, choose_unmasked

VERSION = Triton.version
PROBLEM = Problem("triton", VERSION, "product", "bfloat16", (32, 32), (384, 1536), -1, 0.2, 8192)
HEURISTIC, MEASURED = Tiles(128, 4, 3), Tiles(64, 8, 2)
LAYER = SparseLayer((384, 1536), (32, 32), 116, -1, "bfloat16")


def entry(microseconds: float, cut: Tiles | None = MEASURED, **changes: Any) -> Entry:
    """Something measured, against 100 microseconds of XLA."""
    configuration = {} if cut is None else dataclasses.asdict(cut)
    return Entry(dataclasses.replace(PROBLEM, **changes), configuration, microseconds, 100.0)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """A device with a table of these entries."""

    class Device:
        device_kind, platform, compute_capability = "NVIDIA Dream", "gpu", "9.0"

    def measure(*entries: Entry) -> None:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(jax, "devices", lambda: [Device()])
        monkeypatch.setattr(tuning, "load_table", lambda device: entries)
        monkeypatch.setattr(launch.triton, "get_gpu_info", lambda: None)
        monkeypatch.setitem(ENGINES, "triton", Triton())

    return measure


def test_without_a_gpu_every_kernel_is_cut_as_its_heuristic_says():
    assert tuning.entries_here("triton", VERSION) == [] or jax.default_backend() == "gpu"
    assert configure(PROBLEM, HEURISTIC) is HEURISTIC or jax.default_backend() == "gpu"


@pytest.mark.parametrize(
    "changes", [{}, {"density": 0.201}, {"n_rows": 7000}, {"density": 0.18, "n_rows": 9000}]
)
def test_a_problem_like_the_measured_one_is_cut_as_was_measured(on_a_gpu, changes):
    on_a_gpu(entry(50.0))
    assert configure(dataclasses.replace(PROBLEM, **changes), HEURISTIC) == MEASURED


@pytest.mark.parametrize(
    "changes",
    [
        {"density": 0.5},
        {"n_rows": 32768},
        {"dtype": "float32"},
        {"block": (64, 32)},
        {"kernel_shape": (1536, 384)},
        {"axis": -2},
        {"kernel": "input_gradient"},
        {"version": VERSION + 1},
        {"engine": "other"},
    ],
)
def test_any_other_problem_is_cut_as_its_heuristic_says(on_a_gpu, changes):
    on_a_gpu(entry(50.0))
    assert configure(dataclasses.replace(PROBLEM, **changes), HEURISTIC) is HEURISTIC


def test_an_entry_without_a_choice_leaves_it_to_the_heuristic(on_a_gpu):
    on_a_gpu(entry(50.0, cut=None))
    assert configure(PROBLEM, HEURISTIC) is HEURISTIC


def test_a_forced_configuration_comes_before_all_and_only_while_it_is_forced(on_a_gpu):
    on_a_gpu(entry(50.0))
    own = Tiles(256, 8, 4)
    with forced(own):
        assert configure(PROBLEM, HEURISTIC) is own
    assert configure(PROBLEM, HEURISTIC) == MEASURED


def test_a_forced_configuration_leaves_kernels_alone_that_are_cut_in_another_way():
    with forced(PROBLEM):
        assert configure(PROBLEM, HEURISTIC) is HEURISTIC


def test_a_kernel_pays_where_it_was_faster_by_more_than_noise(on_a_gpu):
    for microseconds, verdict in ((96.0, True), (99.0, False), (120.0, False)):
        on_a_gpu(entry(microseconds))
        assert pays(PROBLEM) is verdict


def test_what_was_not_measured_takes_the_next_less_favourable_density_and_block(on_a_gpu):
    on_a_gpu(entry(50.0, density=0.2), entry(110.0, density=0.5))

    def verdict(**changes: Any) -> bool:
        return pays(dataclasses.replace(PROBLEM, **changes))

    assert verdict(density=0.1)
    assert not verdict(density=0.3)
    assert not verdict(density=0.6)
    assert verdict(block=(64, 32))
    assert not verdict(block=(16, 32))
    assert verdict(n_rows=100_000)
    assert verdict(kernel_shape=(512, 2048))
    assert not verdict(dtype="float32")
    assert not verdict(axis=-2)


def test_the_nearest_kernel_speaks_for_a_layer_and_no_other(on_a_gpu):
    on_a_gpu(entry(50.0), entry(150.0, kernel_shape=(4096, 16384)))
    assert pays(dataclasses.replace(PROBLEM, kernel_shape=(512, 2048)))
    assert not pays(dataclasses.replace(PROBLEM, kernel_shape=(4096, 8192)))


def test_a_kernel_and_its_transpose_speak_for_themselves(on_a_gpu):
    on_a_gpu(entry(50.0), entry(150.0, kernel_shape=(1536, 384)))
    assert pays(PROBLEM)
    assert not pays(dataclasses.replace(PROBLEM, kernel_shape=(1536, 384)))


def test_what_was_measured_as_near_has_to_pay_as_well(on_a_gpu):
    on_a_gpu(entry(50.0, block=(16, 32)), entry(150.0, block=(32, 16)))
    assert not pays(PROBLEM)


def test_nothing_is_concluded_for_much_smaller_layers_and_fewer_rows(on_a_gpu):
    """Where launches cost more than products a larger layer says nothing."""
    on_a_gpu(entry(50.0), entry(50.0, n_rows=32768))

    def verdict(**changes: Any) -> bool:
        return pays(dataclasses.replace(PROBLEM, **changes))

    assert verdict(kernel_shape=(384, 768))
    assert not verdict(kernel_shape=(64, 256))
    assert verdict(n_rows=4096)
    assert not verdict(n_rows=4095)
    assert verdict(n_rows=16384)


def test_auto_takes_the_engine_where_the_table_says_that_it_pays(on_a_gpu):
    on_a_gpu(entry(50.0), entry(150.0, kernel="input_gradient"))
    assert choose_engine("auto", LAYER, "product", 8192).name == "triton"
    for phase in ("input_gradient", "kernel_gradient", "mlp"):
        assert choose_engine("auto", LAYER, phase, 8192).name == "reference"


def test_pruned_operands_are_left_to_xla_until_both_of_their_kernels_pay(on_a_gpu):
    compact, pruned = "compact_gradient", "pruned_input_gradient"
    for entries, name in (
        ([entry(50.0)], "reference"),
        ([entry(50.0, kernel=compact)], "reference"),
        ([entry(50.0, kernel=compact), entry(99.0, kernel=pruned)], "reference"),
        ([entry(50.0, kernel=compact), entry(90.0, kernel=pruned)], "triton"),
    ):
        on_a_gpu(*entries)
        assert choose_unmasked("auto", (384, 1536), "bfloat16").name == name
        assert choose_unmasked("triton", (384, 1536), "bfloat16").name == "triton"


@pytest.mark.parametrize("precision", ["default", "highest"])
def test_what_was_measured_in_tf32_is_not_gone_by_where_more_is_asked_for(on_a_gpu, precision):
    problem = dataclasses.replace(PROBLEM, dtype="float32")
    kernels = ("compact_gradient", "pruned_input_gradient")
    on_a_gpu(*(entry(50.0, dtype="float32", kernel=k) for k in ("product", *kernels)))
    is_tf32 = precision == "default"
    with jax.default_matmul_precision(precision):
        assert pays(problem) is is_tf32
        assert configure(problem, HEURISTIC) == (MEASURED if is_tf32 else HEURISTIC)
        expected = "triton" if is_tf32 else "reference"
        assert choose_unmasked("auto", (384, 1536), "float32").name == expected


def test_a_table_that_cuts_a_kernel_as_none_is_cut_is_refused(on_a_gpu):
    found = entry(50.0)
    on_a_gpu(dataclasses.replace(found, configuration={"columns": 3}))
    with pytest.raises(TableError, match=r"nvidia_dream\.json cuts a kernel as none is .*anew"):
        configure(PROBLEM, HEURISTIC)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "sparsemlp"]


def test_without_a_table_auto_says_once_which_command_makes_one(on_a_gpu, caplog):
    engines._say_once.cache_clear()
    on_a_gpu()
    with caplog.at_level(logging.WARNING, "sparsemlp"):
        for phase in ("product", "input_gradient", "product"):
            assert choose_engine("auto", LAYER, phase, 8192).name == "reference"
        assert choose_engine("triton", LAYER, "product", 8192).name == "triton"
    (line,) = said(caplog)
    assert "NVIDIA Dream" in line
    assert "python experiments/tune.py" in line
    engines._say_once.cache_clear()


def test_a_table_that_cannot_be_read_is_an_error_by_name_and_a_note_with_auto(
    on_a_gpu, monkeypatch, caplog
):
    engines._say_once.cache_clear()
    on_a_gpu()

    def broken(device: str) -> None:
        raise TableError("it is broken: remove it")

    monkeypatch.setattr(tuning, "load_table", broken)
    with pytest.raises(InputError, match="it is broken"):
        choose_engine("triton", LAYER, "product", 8)
    with caplog.at_level(logging.WARNING, "sparsemlp"):
        assert choose_engine("auto", LAYER, "product", 8).name == "reference"
    assert "it is broken" in said(caplog)[0]
    engines._say_once.cache_clear()


@pytest.mark.parametrize("times", [(None, 100.0), (50.0, None), (None, None)])
def test_what_was_not_timed_does_not_pay(on_a_gpu, times):
    on_a_gpu(Entry(PROBLEM, {}, *times))
    assert not pays(PROBLEM)


def test_an_empty_batch_is_no_error(on_a_gpu):
    empty = dataclasses.replace(PROBLEM, n_rows=0)
    on_a_gpu(entry(50.0))
    assert configure(empty, HEURISTIC) is HEURISTIC
    assert not pays(empty)
    on_a_gpu(entry(50.0, n_rows=0))
    assert pays(empty)


@pytest.mark.parametrize(("of_16", "of_32", "wanted"), [(150.0, 50.0, True), (50.0, 150.0, False)])
def test_a_larger_block_goes_by_the_largest_that_was_timed(on_a_gpu, of_16, of_32, wanted):
    on_a_gpu(entry(of_16, block=(16, 16)), entry(of_32, block=(32, 32)))
    assert pays(dataclasses.replace(PROBLEM, block=(64, 64))) == wanted
