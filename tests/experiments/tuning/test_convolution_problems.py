"""What is tuned of masked convolutions is what engine `triton` looks up for them."""

from typing import Any

import jax
import pytest
from tuning.convolution_problems import convolution_work, is_convolved, n_channels
from tuning.kernel_check import compare, expected
from tuning.kernel_problems import OF_IMAGES, layer_of, problem_of, work_of
from tuning.tuned_layers import tuned_layer

from pallas_kernels import ENGINES, Mosaic, Triton, tuning
from pallas_kernels.device_table import Entry, Problem
from pallas_kernels.triton import convolution_gradient, convolution_products

LAYER = layer_of((288, 64), (32, 16), 0.8, -1, "float32")


def test_a_matrix_has_nine_positions_of_the_channels():
    assert tuned_layer("convolution", (32, 64), (32, 16), 0.8, 64, "float32", -1) == LAYER
    assert n_channels(LAYER) == 32
    assert tuned_layer("convolution", (48, 64), (32, 32), 0.8, 64, "float32", -1) is None
    assert tuned_layer("convolution", (32, 64), (32, 16), 0.8, 64, "float32", -2) is None
    assert is_convolved(Triton(interpret=True), LAYER)
    assert not is_convolved(Mosaic(interpret=True), LAYER)


@pytest.mark.parametrize(("n_rows", "side"), [(512, 16), (192, 8), (3, 1)])
def test_images_are_as_large_as_their_pixels_allow(n_rows, side):
    x, *_ = convolution_work("convolution", LAYER, n_rows).operands
    assert x.shape == (n_rows // side**2, side, side, 32)


@pytest.mark.parametrize("kernel", OF_IMAGES)
def test_a_kernel_looks_for_what_is_stored_of_it_and_computes_what_is_expected(kernel, monkeypatch):
    looked_for = []

    def configure(problem: Problem, heuristic: Any) -> Any:
        looked_for.append(problem.key)
        return heuristic

    for module in (convolution_gradient, convolution_products):
        monkeypatch.setattr(module, "configure", configure)
    work, engine = work_of(kernel, LAYER, 128), Triton(interpret=True)
    program = jax.jit(work.sparse(engine))
    with jax.default_matmul_precision("highest"):
        assert compare(program, work, expected(work), "float32") == ""
    problem = problem_of(engine, kernel, LAYER, 128)
    assert looked_for == [problem.key]
    assert engine.configurations(problem)


def test_auto_takes_them_where_the_table_of_the_gpu_says_so(monkeypatch):
    engine = ENGINES["triton"]
    problem = problem_of(engine, "convolution", LAYER, 8192)
    entries = [Entry(problem, {"rows": 64, "warps": 4, "stages": 2}, 10.0, 30.0)]
    monkeypatch.setattr(tuning, "entries_here", lambda *_: entries)
    monkeypatch.setattr(tuning, "_holds", lambda _: True)
    assert engine.pays_convolving("product", LAYER, 8192)
    assert not engine.pays_convolving("input_gradient", LAYER, 8192)
