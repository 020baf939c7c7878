"""What stands between the kernels and JAX's way to compile them."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES, SparseLayer, Triton
from pallas_kernels.triton import launch
from sparsemlp import InputError
from sparsemlp.engines import choose_engine

LAYER = SparseLayer((64, 128), (32, 16), 3, -1, "float32")


@pytest.mark.parametrize(
    ("length", "size"), [(0, 16), (1, 16), (16, 16), (17, 32), (128, 128), (129, 128), (5000, 128)]
)
def test_a_tile_covers_a_short_length_and_no_more_than_the_largest(length, size):
    assert launch.tile_size(length, 128) == size


def test_quotient_and_rest_are_those_of_python():
    a = jnp.arange(20, dtype=jnp.int32)
    quotient, rest = launch.quotient_and_rest(a, 7)
    np.testing.assert_array_equal(quotient, np.arange(20) // 7)
    np.testing.assert_array_equal(rest, np.arange(20) % 7)


def test_without_the_compiler_in_jax_the_engine_says_which_jax_has_it(monkeypatch):
    assert launch.missing() is None
    monkeypatch.setattr(launch, "triton", None)
    reason = Triton(interpret=True).reason_against(LAYER, "gpu")
    assert reason is not None
    assert "install 'jax>=0.11.1,<0.13'" in reason


@pytest.mark.parametrize(
    ("change", "platform", "words"),
    [
        ({}, "cpu", "pip install -e '.[cuda13]'"),
        ({}, "tpu", "platform is 'tpu'"),
        ({"dtype": "float16"}, "gpu", "float32 and bfloat16, not float16"),
        ({"block": (8, 32)}, "gpu", "16, 32, 64, 128, not 8x32"),
        ({"block": (32, 48)}, "gpu", "16, 32, 64, 128, not 32x48"),
    ],
)
def test_what_the_engine_does_not_do_it_says_with_the_way_out(change, platform, words):
    reason = Triton().reason_against(dataclasses.replace(LAYER, **change), platform)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("capability", "words"),
    [("8.0", None), ("9.0", None), ("12.0", None), ("7.5", "not 7.5"), ("gfx942", "not gfx942")],
)
def test_gpus_before_ampere_and_of_others_are_told(monkeypatch, capability, words):
    gpu = SimpleNamespace(platform="gpu", compute_capability=capability)
    monkeypatch.setattr(launch.jax, "devices", lambda: [gpu])
    monkeypatch.setattr(launch.triton, "get_gpu_info", lambda: None)
    reason = Triton().reason_against(LAYER, "gpu")
    assert reason is None if words is None else words in str(reason)


def test_a_gpu_that_this_jax_does_not_know_is_told_with_the_jax_that_does(monkeypatch):
    def unknown() -> None:
        raise ValueError("Unsupported GPU device kind: NVIDIA L40S")

    gpu = SimpleNamespace(platform="gpu", compute_capability="8.9")
    monkeypatch.setattr(launch.jax, "devices", lambda: [gpu])
    monkeypatch.setattr(launch.triton, "get_gpu_info", unknown)
    reason = str(Triton().reason_against(LAYER, "gpu"))
    assert "NVIDIA L40S" in reason
    assert "install 'jax>=0.11.2'" in reason


def test_any_block_will_do_where_all_are_kept():
    whole = SparseLayer((64, 128), (1, 1), 64 * 128, -1, "float32")
    assert Triton().reason_against(whole, "gpu") is None


def test_by_name_it_is_an_error_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setitem(ENGINES, "triton", Triton())
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(InputError, match=r"engine 'triton' cannot run here: .*cuda13"):
        choose_engine("triton", LAYER, "product", 8)


def test_auto_leaves_out_what_was_not_measured(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert choose_engine("auto", LAYER, "product", 8) is ENGINES["reference"]


def test_nothing_in_is_nothing_out():
    engine = Triton(interpret=True)
    kernel, bias, kept = jnp.ones((64, 128)), jnp.ones(128), jnp.arange(3, dtype=jnp.int32)
    x, dy = jnp.ones((0, 64)), jnp.ones((0, 128))
    assert engine.product(x, kernel, bias, kept, LAYER).shape == dy.shape
    assert engine.input_gradient(dy, kernel, kept, LAYER).shape == x.shape
    np.testing.assert_array_equal(engine.kernel_gradient(x, dy, kept, LAYER), 0 * kernel)
