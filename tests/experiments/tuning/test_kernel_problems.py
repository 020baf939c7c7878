"""Every kernel has operands, a dense counterpart, and the problem that its table knows."""

from typing import Any

import jax
import pytest
from tuning.kernel_problems import (
    KERNELS,
    OF_IMAGES,
    PAIRS,
    gpu_engines,
    is_able,
    layer_of,
    problem_of,
    work_of,
)

from pallas_kernels import Reference, SparseLayer, Triton
from pallas_kernels.device_table import Problem
from pallas_kernels.jax_triton import engine as jax_triton
from pallas_kernels.triton import compact, gradient, products, pruned

LAYER = layer_of((64, 128), (32, 32), 0.5, -1, "bfloat16")


BLOCKS = {"compact_gradient": (8, 8), "pruned_input_gradient": (2, 4)}


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_has_a_dense_counterpart_of_the_same_form(kernel, axis):
    if kernel in (*PAIRS, *OF_IMAGES) and axis == -2:
        pytest.skip("pairs of layers and images are computed along the features alone")
    shape = (9 * 64, 128) if kernel in OF_IMAGES else (64, 128)
    layer = SparseLayer(shape, BLOCKS.get(kernel, (32, 32)), 3, axis, "bfloat16")
    work = work_of(kernel, layer, 32)
    sparse = jax.eval_shape(work.reference or work.sparse(Reference()), *work.operands)
    dense = jax.eval_shape(work.dense, *work.operands)
    assert jax.tree.leaves(sparse) == jax.tree.leaves(dense)


def test_an_unknown_kernel_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no kernel 'sum'.*product"):
        work_of("sum", LAYER, 32)


def test_density_is_what_a_kernel_keeps():
    triton = Triton()
    assert problem_of(triton, "product", LAYER, 40).density == 0.5
    pruned = SparseLayer((64, 128), (2, 8), 1, -1, "float32")
    assert problem_of(triton, "pruned_input_gradient", pruned, 40).density == 0.25
    compact = SparseLayer((64, 128), (8, 8), 8, -1, "float32")
    assert problem_of(triton, "compact_gradient", compact, 64).density == 1 / 8


def test_engines_for_gpus_are_found_and_made_to_be_interpreted():
    assert "triton" in gpu_engines()
    assert not {"cpu", "reference"} & set(gpu_engines())
    for engine in gpu_engines(interpret=True).values():
        assert engine.reason_against(LAYER, "cpu") is None


def test_an_engine_that_cannot_be_interpreted_is_left_out(monkeypatch):
    monkeypatch.setattr(jax_triton, "missing", lambda: None)
    assert list(gpu_engines())[-1] == "jax-triton"
    assert "jax-triton" not in gpu_engines(interpret=True)


@pytest.mark.parametrize("kernel", PAIRS)
def test_a_pair_that_drops_nothing_is_no_engine_s(kernel):
    layer = SparseLayer((64, 128), (32, 32), 8, -1, "bfloat16")
    for engine in gpu_engines(interpret=True).values():
        assert not is_able(engine, kernel, layer)
        # The oldest JAX does not interpret all.
        assert is_able(engine, kernel, LAYER) or engine.reason_against(LAYER, "gpu")


@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k not in (*PAIRS, *OF_IMAGES)])
def test_a_kernel_looks_for_what_is_stored_of_it(kernel, axis, monkeypatch):
    looked_for = []

    def configure(problem: Problem, heuristic: Any) -> Any:
        looked_for.append(problem.key)
        return heuristic

    for module in (compact, gradient, products, pruned):
        monkeypatch.setattr(module, "configure", configure)
    blocks = {"compact_gradient": (8, 8), "pruned_input_gradient": (2, 4)}
    layer = SparseLayer((64, 128), blocks.get(kernel, (32, 32)), 4, axis, "bfloat16")
    work, engine = work_of(kernel, layer, 128), Triton(interpret=True)
    jax.eval_shape(work.sparse(engine), *work.operands)
    assert looked_for == [problem_of(engine, kernel, layer, 128).key]
