"""Which layers are fused, and what is refused, of two layers with a GELU between them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_mlp
from mlp_cases import (
    BOTH_ENGINES,
    FUSED,
    HIDDEN,
    IN,
    apply,
    assert_conforms,
    compiled,
    draw,
    expected,
    mask_of,
)
from native import needs_native

from sparsemlp.errors import InputError


@pytest.fixture
def not_fused(monkeypatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("fused")

    monkeypatch.setattr("sparsemlp.mlp._fused", refuse)


@pytest.mark.parametrize("engine", [pytest.param("cpu", marks=needs_native), "triton"])
def test_the_fixture_does_tell_a_fused_call(engine, not_fused, interpreted):
    operands = draw(FUSED)
    with pytest.raises(AssertionError, match=r"^fused$"):
        apply(operands.arrays, operands.masks, engine=engine, residual=True)


def test_auto_does_not_fuse_by_an_engine_that_was_not_measured(not_fused, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    apply(draw(FUSED).arrays, draw(FUSED).masks, engine="auto", residual=True)


@needs_native
@pytest.mark.parametrize(
    ("backwards", "dense"),
    [
        (("dense", "masked"), None),
        (("masked", "straight_through"), None),
        (("masked", "masked"), 0),
        (("masked", "masked"), 1),
    ],
    ids=["dense backward", "straight through", "no first mask", "full second mask"],
)
def test_other_backward_passes_and_dense_layers_go_step_by_step(backwards, dense, not_fused):
    operands = draw(FUSED)
    masks = list(operands.masks)
    if dense == 0:
        masks[0] = None
    if dense == 1:
        masks[1] = mask_of(np.ones((HIDDEN // 32, IN // 32), bool), (32, 32))
    operands = operands._replace(masks=(masks[0], masks[1]))
    actual = compiled(operands, engine="cpu", residual=True, backwards=backwards)
    assert_conforms(actual, expected(operands, True, backwards), "float32")


def test_x_cannot_be_added_to_a_result_of_another_width():
    operands = draw(FUSED._replace(residual=False))
    for engine in ("auto", "reference"):
        with pytest.raises(InputError) as caught:
            apply(operands.arrays, operands.masks, engine=engine, residual=True)
        for part in ("(3, 5, 64)", "96 features", "residual=False"):
            assert part in str(caught.value)


@BOTH_ENGINES
@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("x", (4, 63), "x of shape (4, 63) does not fit the kernel"),
        ("x", (), "x of shape ()"),
        ("w1", (IN, 96), "the mask is for a kernel [in, out] = (64, 128), not (64, 96)"),
        ("w2", (HIDDEN, 32), "the mask is for a kernel [in, out] = (128, 96), not (128, 32)"),
        ("b1", (1,), "bias of shape (1,) does not fit 128 outputs"),
        ("b2", (1,), "bias of shape (1,) does not fit 96 outputs"),
    ],
)
def test_shapes_that_do_not_fit_are_named(engine, name, shape, says, unchecked):
    """A bias of one entry is not spread over all by the scales that are folded into it."""
    of_bias = name.startswith("b")
    scales = "both" if of_bias else "none"
    operands = draw(FUSED._replace(residual=False, scales=scales, with_bias=of_bias))
    arrays = {**operands.arrays, name: jnp.ones(shape)}
    with pytest.raises(InputError) as caught:
        apply(arrays, operands.masks, engine=engine, residual=False)
    assert says in str(caught.value)


@BOTH_ENGINES
def test_layers_that_do_not_follow_each_other_are_named(engine):
    operands = draw(FUSED)
    arrays = {**operands.arrays, "w2": jnp.ones((IN, IN)), "b2": jnp.ones(IN)}
    masks = (operands.masks[0], mask_of(np.eye(2, dtype=bool), (32, 32)))
    with pytest.raises(InputError, match=r"x of shape .* does not fit the kernel"):
        apply(arrays, masks, engine=engine, residual=True)


@BOTH_ENGINES
@pytest.mark.parametrize("wide", [("scale", "shift"), ("after",), ("x",), ("b1",)], ids="-".join)
def test_operands_of_two_dtypes_meet_in_the_wider_one(engine, wide):
    """The parameters of an Affine stay float32 beside kernels in bfloat16."""
    operands = draw(FUSED._replace(dtype="bfloat16"))
    arrays = {
        name: a.astype(jnp.float32) if name in wide else a for name, a in operands.arrays.items()
    }
    y, pull = jax.vjp(lambda a: apply(a, operands.masks, engine=engine, residual=True), arrays)
    (gradients,) = pull(operands.dy.astype(y.dtype))
    assert y.dtype == jnp.float32
    assert {name: g.dtype for name, g in gradients.items()} == {
        name: a.dtype for name, a in arrays.items()
    }
    value, mass = expected(operands, True)["y"]
    reference_mlp.assert_near(y, (value, mass), reference_mlp.share(jnp.bfloat16, HIDDEN), "y")
