"""What engine `mosaic` leaves to others, and what it says of that."""

import dataclasses

import jax
import pytest

from pallas_kernels import ENGINES, Mosaic, SparseLayer
from sparsemlp import InputError
from sparsemlp.engines import choose_engine

LAYER = SparseLayer((64, 128), (32, 16), 3, -1, "float32")


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
    reason = Mosaic().reason_against(dataclasses.replace(LAYER, **change), platform)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize("precision", [None, "default", "tensorfloat32", "highest", "float32"])
def test_float32_is_declined_where_more_than_tf32_is_asked_for(precision):
    with jax.default_matmul_precision(precision):
        reason = Mosaic().reason_against(LAYER, "gpu")
        narrow = Mosaic().reason_against(dataclasses.replace(LAYER, dtype="bfloat16"), "gpu")
    assert (reason is not None) == (precision in ("highest", "float32"))
    assert reason is None or "'triton'" in reason
    assert narrow is None


@pytest.mark.parametrize(
    ("capability", "runs"), [("7.5", False), ("8.0", True), ("9.0", True), ("10.0", False)]
)
def test_there_are_kernels_for_ampere_and_hopper_alone(capability, runs, monkeypatch):
    class Device:
        compute_capability = capability

    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    reason = Mosaic().reason_against(dataclasses.replace(LAYER, dtype="bfloat16"), "gpu")
    assert (reason is None) == runs
    assert reason is None or f"not {capability}: engine 'triton'" in reason


def test_by_name_it_is_an_error_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setitem(ENGINES, "mosaic", Mosaic())
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(InputError, match=r"engine 'mosaic' cannot run here: .*cuda13"):
        choose_engine("mosaic", LAYER, "product", 8)
