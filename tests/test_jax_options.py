"""What options of JAX ask of a library: no rank promoted, no NaN made, nothing compiled twice."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from native import needs_native

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    ResMLP,
    ResNet9,
    SparseConv,
    SparseDense,
    select_blocks,
    select_masks,
    sparse_conv,
    sparse_linear,
)

KEY = jax.random.key(0)
KERNEL = jax.random.normal(KEY, (32, 64))
MASK = select_blocks(KERNEL, (16, 16), 0.5)


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(KEY, shape)


@pytest.mark.parametrize("engine", ["reference", pytest.param("cpu", marks=needs_native)])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"mask": MASK, "backward": "dense"},
        {"mask": MASK, "backward": "straight_through", "gradient": GradientPruning(2, 4)},
        {"activation": ActivationPruning((2, 8), 0.5)},
        {"activation": ActivationPooling((2, 2))},
    ],
    ids=["masked", "dense", "straight-through", "pruned", "pooled"],
)
def test_a_linear_layer_promotes_no_rank(engine, rules):
    options: dict[str, Any] = {"mask": MASK, "engine": engine} | rules
    for axis, shape in ((-1, (4, 8, 32)), (-2, (4, 32, 8))):

        def loss(kernel: jax.Array, x: jax.Array, axis: Any = axis) -> jax.Array:
            return sparse_linear(x, kernel, jnp.ones(64), axis=axis, **options).sum()

        with jax.numpy_rank_promotion("raise"):
            jax.grad(loss, (0, 1))(KERNEL, normal(*shape))


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (SparseDense(3), (2, 4, 32)),
        (SparseDense(3, axis=-2), (2, 4, 32)),
        (SparseConv(3, (3, 3)), (2, 4, 5, 32)),
        (
            ResMLP(8, dim=8, depth=1, n_classes=3, drop_path=0.5),
            (2, 8, 8, 3),
        ),
        (ResNet9(image_size=12, width=2, n_classes=3), (2, 12, 12, 3)),
    ],
    ids=["linear", "tokens", "convolution", "resmlp", "resnet9"],
)
def test_models_promote_no_rank(model: nn.Module, shape: tuple[int, ...]):
    training: dict[str, Any] = {"train": True} if isinstance(model, ResMLP | ResNet9) else {}
    variables = model.init(KEY, jnp.ones(shape))

    def loss(params: Any) -> jax.Array:
        rest = {name: own for name, own in variables.items() if name != "params"}
        found, _ = model.apply(
            {"params": params, **rest},
            jnp.ones(shape),
            rngs={"drop_path": KEY},
            mutable=["batch_stats"],
            **training,
        )
        return jnp.sum(found)

    with jax.numpy_rank_promotion("raise"):
        jax.grad(loss)(variables["params"])


def test_selection_makes_no_nan_of_healthy_weights():
    with jax.debug_nans(True):
        select_blocks(KERNEL, (16, 16), 0.5)
        plan = {"*/kernel": BlockMasking((16, 16), 0.5)}
        select_masks({"a": {"kernel": KERNEL}}, plan)


def _vmapped(engine: str) -> Callable[[], Any]:
    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        return sparse_linear(x, kernel, mask=MASK, engine=engine).sum()

    x = normal(5, 6, 32)
    return lambda: jax.vmap(jax.grad(loss), (None, 0))(KERNEL, x)


def _convolved(**rules: Any) -> Callable[[], Any]:
    x, kernel = normal(1, 6, 6, 128), normal(3, 3, 128, 8)
    return lambda: jax.grad(lambda k: sparse_conv(x, k, **rules).sum())(kernel)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _vmapped("reference"),
        pytest.param(lambda: _vmapped("cpu"), marks=needs_native),
        _convolved,
        lambda: _convolved(activation=ActivationPruning((2, 8), 0.5)),
    ],
    ids=["reference", "cpu", "convolution", "pruned convolution"],
)
def test_what_is_not_compiled_as_a_whole_is_compiled_once(make, caplog):
    call = make()
    call()
    with jax.log_compiles():
        call()
    assert [record.getMessage() for record in caplog.records if "Compiling" in record.msg] == []
