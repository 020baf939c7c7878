"""Fused layers under `grad`, `vmap` and `scan`, what they keep, and with the batch split."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_in_child
from jax.sharding import AxisType, PartitionSpec
from mlp_cases import (
    FUSED,
    HIDDEN,
    IN,
    Case,
    Operands,
    apply,
    assert_conforms,
    draw,
    expected,
    value_and_gradients,
)
from native import UNABLE, needs_native

from sparsemlp import BlockMask


@needs_native
@pytest.mark.parametrize("is_compiled", [True, False], ids=["jit", "no jit"])
def test_fused_layers_have_the_gradient_of_a_scalar_with_and_without_jit(is_compiled):
    operands = draw(FUSED)

    def loss(arrays: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        y = apply(arrays, operands.masks, engine="cpu", residual=True)
        return jnp.vdot(y, operands.dy), y

    gradient = jax.value_and_grad(loss, has_aux=True)
    (_, y), gradients = (jax.jit(gradient) if is_compiled else gradient)(operands.arrays)
    actual = {"y": y, **{f"d{name}": g for name, g in gradients.items()}}
    assert_conforms(actual, expected(operands, True), "float32")


@needs_native
def test_mapping_fused_layers_over_x_alone_is_a_longer_batch():
    operands = draw(FUSED)

    def one(x: jax.Array, others: dict[str, Any]) -> jax.Array:
        return apply({**others, "x": x}, operands.masks, engine="cpu", residual=True)

    @jax.jit
    def mapped(arrays: dict[str, Any], dy: jax.Array) -> dict[str, jax.Array]:
        others = {name: a for name, a in arrays.items() if name != "x"}
        y, pull = jax.vjp(jax.vmap(one, in_axes=(0, None)), arrays["x"], others)
        dx, gradients = pull(dy)
        return {"y": y, "dx": dx, **{f"d{name}": g for name, g in gradients.items()}}

    actual = mapped(operands.arrays, operands.dy)
    assert_conforms(actual, expected(operands, True), "float32")


def stacked_masks(choice: Case, n: int) -> tuple[BlockMask, BlockMask]:
    """The masks of `n` pairs of layers, all different."""
    rolled = []
    for mask in draw(choice).masks:
        kept = np.stack([np.sort((np.asarray(mask.kept) + i) % mask.n_blocks) for i in range(n)])
        rolled.append(dataclasses.replace(mask, kept=jnp.asarray(kept, jnp.int32)))
    return rolled[0], rolled[1]


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("cpu", marks=needs_native),
        pytest.param("triton", marks=pytest.mark.exhaustive),
    ],
)
def test_mapping_fused_layers_over_all_is_one_pair_after_another(engine, interpreted):
    n = 3
    stacked = draw(FUSED, stack=(n,))._replace(masks=stacked_masks(FUSED, n))
    one = functools.partial(value_and_gradients, engine=engine, residual=True)
    actual = jax.jit(jax.vmap(one))(stacked)
    for index in range(n):
        pair, found = jax.tree.map(lambda a, i=index: a[i], (stacked, actual))
        assert_conforms(found, expected(pair, True), "float32")


@needs_native
def test_scanning_fused_layers_is_one_pair_after_another():
    n = 2
    stacked = draw(FUSED, stack=(n,))._replace(masks=stacked_masks(FUSED, n))
    layers = {name: a for name, a in stacked.arrays.items() if name != "x"}
    x, dy = stacked.arrays["x"][0], stacked.dy[0]

    @jax.jit
    def scanned(x: jax.Array, layers: dict[str, Any], masks: Any, dy: jax.Array) -> Any:
        def step(x: jax.Array, layer: Any) -> tuple[jax.Array, jax.Array]:
            arrays, masks = layer
            y = apply({**arrays, "x": x}, masks, engine="cpu", residual=True)
            return y, y

        def stack(x: jax.Array, layers: dict[str, Any]) -> Any:
            return jax.lax.scan(step, x, (layers, masks))

        (_, between), pull = jax.vjp(stack, x, layers)
        return between, *pull((dy, jnp.zeros_like(between)))

    between, dx, gradients = scanned(x, layers, stacked.masks, dy)
    # Each pair is held to what it got from its neighbours, in float32 as it was.
    for index in reversed(range(n)):
        arrays, masks = jax.tree.map(lambda a, i=index: a[i], (layers, stacked.masks))
        arrays = {"x": between[index - 1] if index else x, **arrays}
        want = expected(Operands(arrays, masks, dy), True)
        found = {f"d{name}": g[index] for name, g in gradients.items()}
        found["dx"] = dx if index == 0 else jnp.asarray(want["dx"][0], jnp.float32)
        assert_conforms({"y": between[index], **found}, want, "float32")
        dy = found["dx"]


def kept_for_the_backward_pass(operands: Operands, engine: str) -> set[tuple[int, ...]]:
    """The shapes of all arrays that the backward pass is a closure of."""

    def forward(arrays: dict[str, Any], masks: Any) -> Any:
        return jax.vjp(lambda a: apply(a, masks, engine=engine, residual=True), arrays)[1]

    closure = jax.eval_shape(forward, operands.arrays, operands.masks)
    return {leaf.shape for leaf in jax.tree.leaves(closure)}


def test_nothing_of_the_size_of_the_hidden_units_is_kept_for_the_backward_pass():
    operands = draw(FUSED)

    def hidden(engine: str) -> set[tuple[int, ...]]:
        shapes = kept_for_the_backward_pass(operands, engine)
        assert (3, 5, IN) in shapes
        return {s for s in shapes if HIDDEN in s and math.prod(s) >= 15 * HIDDEN} - {
            (IN, HIDDEN),
            (HIDDEN, IN),
        }

    if UNABLE is None:
        assert hidden("cpu") == set()
    # The same look does find them where they are kept.
    assert (3, 5, HIDDEN) in hidden("reference")


def check_on_two_devices() -> None:
    """Raises AssertionError unless halves of a batch give the gradients of the whole."""
    assert jax.device_count() == 2
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    half, whole = PartitionSpec("data"), PartitionSpec()
    operands = draw(FUSED._replace(batch=(6, 5)))
    want = expected(operands, True)
    placed = {name: half if name == "x" else whole for name in operands.arrays}

    def call(arrays: dict[str, Any], masks: Any) -> jax.Array:
        return apply(arrays, masks, engine="cpu", residual=True)

    def outside(arrays: dict[str, Any], masks: Any, dy: jax.Array) -> Any:
        split = jax.shard_map(call, mesh=mesh, in_specs=(placed, whole), out_specs=half)
        y, pull = jax.vjp(lambda a: split(a, masks), arrays)
        return y, *pull(dy)

    def inside(arrays: dict[str, Any], masks: Any, dy: jax.Array) -> Any:
        def loss(arrays: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            y = call(arrays, masks)
            return jax.lax.psum(jnp.vdot(y, dy), "data"), y

        gradients, y = jax.grad(loss, has_aux=True)(arrays)
        return y, gradients

    split = jax.shard_map(
        inside, mesh=mesh, in_specs=(placed, whole, half), out_specs=(half, placed)
    )
    for run in (outside, split):
        y, gradients = jax.jit(run)(*operands)
        actual = {"y": y, **{f"d{name}": g for name, g in gradients.items()}}
        assert_conforms(actual, want, "float32")


@needs_native
def test_fused_layers_have_the_same_gradients_with_the_batch_split_over_two_devices():
    run_in_child("test_mlp_transforms", "check_on_two_devices", n_devices=2)
