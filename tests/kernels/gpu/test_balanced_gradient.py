"""Engine `mosaic` where its gradients are cut so that all programs have as much to do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec
from test_product_program import INTERPRETED
from test_products import normal

from pallas_kernels import Mosaic, Reference, SparseLayer
from pallas_kernels.lists import listed
from pallas_kernels.mosaic import balanced_gradient
from pallas_kernels.mosaic.gradient_cost import by_cost, gradient_tiles_of
from pallas_kernels.mosaic.gradient_tiles import GradientTiles
from pallas_kernels.tuning import forced

KEPT = jnp.asarray([0, 2, 5], jnp.int32)
LAYER = SparseLayer((128, 192), (64, 64), 3, -1, "bfloat16")


@pytest.mark.thorough(after=1)
@INTERPRETED
@pytest.mark.parametrize(("axis", "with_lists"), [(-1, True), (-2, False)])
def test_both_gradients_are_those_of_the_reference(axis, with_lists):
    layer, engine = dataclasses.replace(LAYER, axis=axis), Mosaic(interpret=True)
    shapes = [(2, 72, 128), (2, 72, 192)]
    x, dy = (
        jnp.moveaxis(normal(*shape, dtype="bfloat16", seed=seed), -1, axis)
        for seed, shape in enumerate(shapes)
    )
    want = Reference().parameter_gradients(x, dy, KEPT, layer)
    kept = listed(KEPT, (2, 3)) if with_lists else KEPT
    with forced(GradientTiles(1, 2, 3, by_rows=True, balanced=True)):
        found = engine.parameter_gradients(x, dy, kept, layer)
        alone = engine.kernel_gradient(x, dy, kept, layer)
    for own, other in zip((*found, alone), (*want, want[0]), strict=True):
        assert (own.shape, own.dtype) == (other.shape, other.dtype)
        own, other = (np.asarray(a, np.float32) for a in (own, other))
        np.testing.assert_allclose(own, other, rtol=2**-7, atol=1e-3)
        np.testing.assert_array_equal(own[other == 0], 0)


def test_terms_of_a_bias_in_float32_are_not_rounded(monkeypatch):
    """Tensor cores would: XLA adds them up."""
    layer = dataclasses.replace(LAYER, dtype="float32")
    found = jnp.ones(layer.kernel_shape)
    monkeypatch.setattr(balanced_gradient, "kernel_gradient", lambda *_, **__: found)
    monkeypatch.delattr(balanced_gradient, "parameter_gradients")
    x, dy = (jnp.ones((8, n)) * (1 + 2**-11) for n in layer.kernel_shape)
    with forced(GradientTiles(1, 2, 3, by_rows=False, balanced=True)):
        dw, db = Mosaic(interpret=True).parameter_gradients(x, dy, KEPT, layer)
    assert dw is found
    np.testing.assert_array_equal(db, 8 * (1 + 2**-11))


def test_an_empty_batch_has_no_gradient():
    x, dy = jnp.zeros((0, 128), jnp.bfloat16), jnp.zeros((0, 192), jnp.bfloat16)
    with forced(GradientTiles(1, 2, 3, by_rows=True, balanced=True)):
        dw, db = Mosaic(interpret=True).parameter_gradients(x, dy, KEPT, LAYER)
    assert (dw.shape, db.shape) == ((128, 192), (192,))
    assert not dw.any()
    assert not db.any()


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("n_rows", [1, 37, 1000])
@pytest.mark.parametrize("is_long", [False, True], ids=["32 bits", "64 bits"])
def test_any_number_of_rows_lowers_on_each_of_several_devices(n_rows, is_long):
    """Where the devices have rows of their own, results are typed by the devices they differ on."""
    engine, device = Mosaic(), AbstractDevice("NVIDIA H200", num_cores=132, platform="gpu")
    auto = (AxisType.Auto,)
    mesh = AbstractMesh((2,), ("data",), axis_types=auto, abstract_device=device)
    half, whole = PartitionSpec("data"), PartitionSpec()

    def gradients(x, dy, kept):
        dw, db = engine.parameter_gradients(x, dy, kept, LAYER)
        return dw[None], db[None]

    call = jax.shard_map(gradients, mesh=mesh, in_specs=(half, half, whole), out_specs=(half, half))
    x, dy = (jax.ShapeDtypeStruct((2 * n_rows, n), jnp.bfloat16) for n in LAYER.kernel_shape)
    cuts = by_cost(LAYER, n_rows, balanced=True)
    for cut in (next(c for c in cuts if c.by_rows == by_rows) for by_rows in (False, True)):
        with forced(cut), jax.enable_x64(is_long), jax.sharding.use_abstract_mesh(mesh):
            traced = jax.jit(call).trace(x, dy, jax.ShapeDtypeStruct((3,), KEPT.dtype))
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert "sparsemlp_balanced_gradient" in text
        assert "uses_xla_collective_metadata = true" not in text
        assert [out.shape for out in traced.out_info] == [(2, 128, 192), (2, 192)]


def test_a_heuristic_takes_a_balanced_way_and_the_tuner_tries_the_best_of_both_early():
    engine, layer = (
        Mosaic(capability="9.0"),
        SparseLayer((768, 3072), (64, 64), 116, -1, "bfloat16"),
    )
    problem = layer.problem(engine.name, engine.version, "kernel_gradient", 8192)
    space = engine.configurations(problem)
    assert space[0] == gradient_tiles_of(layer, 8192)
    assert space[0].balanced
    assert space[1] == by_cost(layer, 8192)[0]
    balanced = [tiles for tiles in by_cost(layer, 8192, balanced=True) if tiles != space[0]]
    assert space[2 : 2 + len(balanced)] == balanced
    assert {tiles.by_rows for tiles in balanced} == {False, True}
    assert len(set(space)) == len(space)
