"""Two layers whose activations and gradients are pruned: one kernel against one after the other."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native
from pairwise import every_pair

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    GradientPruning,
    GridMask,
    InputError,
    select_blocks,
)
from sparsemlp.layer import Linear
from sparsemlp.mlp import sparse_mlp

IN, HIDDEN = 32, 64
BLOCKS, MEANS = ActivationPruning((8, 8), 0.7), ActivationPooling((2, 2))
pytestmark = needs_native


@dataclasses.dataclass(frozen=True)
class Case:
    """One pair of layers with the same rules, and what is around it."""

    activation: Any = BLOCKS
    gradient: GradientPruning | None = None
    masked: str = "both"
    block: tuple[int, int] = (16, 8)
    backward: str = "masked"
    with_bias: bool = True
    scales: str = "both"
    residual: bool = True
    batch: tuple[int, ...] = (3, 16)
    dtype: str = "float32"

    def draw(self) -> dict[str, Any]:
        """Arrays by name; hidden units of a size at which GELU bends."""
        rng = np.random.default_rng(0)

        def normal(*shape: int, scale: float = 1.0) -> jax.Array:
            return jnp.asarray(scale * rng.normal(size=shape), self.dtype)

        arrays = {
            "x": normal(*self.batch, IN),
            "w1": normal(IN, HIDDEN, scale=IN**-0.5),
            "w2": normal(HIDDEN, IN, scale=HIDDEN**-0.5),
        }
        if self.with_bias:
            arrays |= {"b1": normal(HIDDEN), "b2": normal(IN)}
        if self.scales in ("before", "both"):
            arrays |= {"scale": 1 + normal(IN, scale=0.1), "shift": normal(IN)}
        if self.scales in ("after", "both"):
            arrays["after"] = normal(IN)
        return arrays

    def layers(self, arrays: dict[str, Any]) -> tuple[Linear, Linear]:
        """Both layers; the masks are those of the arrays, no part of what is differentiated."""
        masks = [
            select_blocks(jax.lax.stop_gradient(arrays[f"w{index}"]), self.block, 0.6)
            if self.masked in ("both", name)
            else None
            for index, name in ((1, "first"), (2, "second"))
        ]
        first, second = (
            Linear(
                arrays[f"w{index}"],
                arrays.get(f"b{index}"),
                mask,
                self.backward,  # pyright: ignore[reportArgumentType]
                self.activation,
                self.gradient,
            )
            for index, mask in zip((1, 2), masks, strict=True)
        )
        return first, second

    def apply(self, arrays: dict[str, Any], engine: str) -> jax.Array:
        """`sparse_mlp` of arrays by name."""
        return sparse_mlp(
            arrays["x"],
            *self.layers(arrays),
            before=(arrays["scale"], arrays["shift"]) if "scale" in arrays else None,
            after=arrays.get("after"),
            residual=self.residual,
            engine=engine,
        )


@functools.partial(jax.jit, static_argnames=("case", "engine"))
def value_and_gradients(
    arrays: dict[str, Any], dy: jax.Array, case: Case, engine: str
) -> dict[str, Any]:
    """The result `y`, and the gradient of each array by its name."""
    y, pull = jax.vjp(lambda a: case.apply(a, engine), arrays)
    return {"y": y, **pull(dy)[0]}


def gradient_of(case: Case) -> jax.Array:
    shape = (*case.batch, IN)
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), case.dtype)


def is_fused(case: Case, engine: str = "cpu") -> bool:
    program = jax.make_jaxpr(lambda a: case.apply(a, engine))(case.draw())
    return "sparsemlp_pruned_mlp" in str(program)


def assert_alike(found: dict[str, Any], want: dict[str, Any], share: float) -> None:
    """Every entry is within a share of the largest of its array."""
    assert set(found) == set(want)
    for name, value in want.items():
        expected = np.asarray(value, np.float64)
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(
            np.asarray(found[name], np.float64),
            expected,
            rtol=0,
            atol=share * np.abs(expected).max(),
            err_msg=name,
        )


@every_pair(
    activation=(
        None,
        BLOCKS,
        ActivationPruning((16, 32), 0.4),
        MEANS,
    ),
    gradient=(GradientPruning(2, 4), GradientPruning(1, 8, "rescaled"), None),
    masked=("none", "both", "second"),
    backward=("masked", "straight_through"),
    around=(
        (True, "both", True),
        (True, "after", False),
        (False, "before", True),
        (False, "", True),
    ),
    batch=((3, 16), (48,), (2, 3, 8)),
)
def test_it_is_what_the_layers_make_one_after_the_other(
    activation, gradient, masked, backward, around, batch
):
    if isinstance(activation, ActivationPooling) and activation.window[0] > 1:
        batch = batch if len(batch) > 1 else (3, 16)  # a window needs tokens
    with_bias, scales, residual = around
    case = Case(activation, gradient, masked, (16, 8), backward, with_bias, scales, residual, batch)
    arrays, dy = case.draw(), gradient_of(case)
    if activation is not None or gradient is not None:
        assert is_fused(case)
    found = value_and_gradients(arrays, dy, case, "cpu")
    assert_alike(found, value_and_gradients(arrays, dy, case, "reference"), 2e-5)


@pytest.mark.parametrize("masked", ["none", "both"])
def test_bfloat16_is_what_float32_gives_rounded(masked):
    case = Case(MEANS, None, masked, dtype="bfloat16")
    arrays, dy = case.draw(), gradient_of(case)
    wide = jax.tree.map(lambda a: a.astype(jnp.float32), (arrays, dy))
    found = value_and_gradients(arrays, dy, case, "cpu")
    want = value_and_gradients(*wide, dataclasses.replace(case, dtype="float32"), "reference")
    assert_alike(found, {name: a.astype(jnp.bfloat16) for name, a in want.items()}, 3e-2)


def test_dropped_blocks_of_kernels_have_no_gradient_and_those_of_a_whole_kernel_have_one():
    case = Case(masked="both")
    arrays = case.draw()
    found = value_and_gradients(arrays, gradient_of(case), case, "cpu")
    for name, layer in zip(("w1", "w2"), case.layers(arrays), strict=True):
        assert layer.mask is not None
        kept = np.asarray(layer.mask.dense())
        np.testing.assert_array_equal(np.asarray(found[name])[~kept], 0)
        assert np.any(np.asarray(found[name])[kept] != 0)
    whole = dataclasses.replace(case, backward="straight_through")
    found = value_and_gradients(arrays, gradient_of(case), whole, "cpu")
    for name, layer in zip(("w1", "w2"), case.layers(arrays), strict=True):
        assert layer.mask is not None
        assert np.any(np.asarray(found[name])[~np.asarray(layer.mask.dense())] != 0)


@pytest.mark.parametrize("activation", [BLOCKS, MEANS], ids=["blocks", "means"])
def test_the_backward_pass_is_given_x_and_ids_alone(activation):
    case = Case(activation)
    arrays = case.draw()
    pull = jax.vjp(lambda a: case.apply(a, "cpu"), arrays)[1]
    given = {id(a) for a in arrays.values()}
    kept = [a for a in jax.tree.leaves(pull) if id(a) not in given and a.ndim]
    n_blocks = math.prod(case.batch) * IN // 64
    ids = [math.ceil(0.3 * n_blocks), math.ceil(0.3 * 2 * n_blocks)]
    expected = ids if isinstance(activation, ActivationPruning) else []
    of_masks = [layer.mask.n_kept for layer in case.layers(arrays) if layer.mask is not None]
    assert sorted(a.size for a in kept) == sorted([*expected, *of_masks])
    assert all(a.dtype == jnp.int32 for a in kept)


@pytest.mark.parametrize(
    "change",
    [
        {"backward": "dense"},
        {"activation": ActivationPruning((8, 8), 0.7, "l1")},
        {"activation": ActivationPruning((8, 2), 0.7)},
        {"activation": ActivationPruning((96, 8), 0.7), "batch": (6, 16)},
        {"activation": ActivationPruning((8, 8), 0.0)},
        {"activation": ActivationPooling((1, 1))},
        {"activation": None, "gradient": GradientPruning(4, 4)},
        {"block": (4, 8)},
    ],
    ids=str,
)
def test_other_rules_go_step_by_step(change):
    case = dataclasses.replace(Case(), **change)
    assert not is_fused(case)
    arrays, dy = case.draw(), gradient_of(case)
    found = value_and_gradients(arrays, dy, case, "cpu")
    assert_alike(found, value_and_gradients(arrays, dy, case, "reference"), 2e-5)


def test_masks_whose_size_is_data_and_draws_at_random_go_step_by_step():
    arrays = Case().draw()
    first, second = Case().layers(arrays)
    assert first.mask is not None
    grid = GridMask(first.mask.grid(), first.mask.kernel_shape, first.mask.block)
    random = GradientPruning(2, 4, "random")
    for changed, engine in (
        ({"mask": grid}, "auto"),
        ({"gradient": random, "rng": jax.random.key(0)}, "cpu"),
    ):
        one = dataclasses.replace(first, **changed)
        call = functools.partial(sparse_mlp, first=one, second=second, engine=engine)
        assert "sparsemlp_pruned_mlp" not in str(jax.make_jaxpr(call)(arrays["x"]))


def test_blocks_that_do_not_divide_are_refused_as_by_one_layer():
    case = Case(ActivationPruning((5, 8), 0.5))
    with pytest.raises(InputError, match="activation block 5x8 does not divide"):
        value_and_gradients(case.draw(), gradient_of(case), case, "cpu")


def takes(n_in: int, ratio: float, backward: Any = "masked", **rule: Any) -> bool:
    """Whether `auto` does, of n_in to 4 n_in features and back and 32x32 blocks of both kernels."""

    def call(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        first, second = (
            Linear(w, None, select_blocks(w, (32, 32), ratio), backward, **rule) for w in (w1, w2)
        )
        return sparse_mlp(x, first, second)

    shapes = ((64, 64, n_in), (n_in, 4 * n_in), (4 * n_in, n_in))
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return "sparsemlp_pruned_mlp" in str(jax.make_jaxpr(call)(*operands))


def test_auto_takes_it_where_little_of_both_kernels_is_kept():
    assert takes(64, 0.0, activation=BLOCKS)
    assert takes(64, 0.8, "straight_through", activation=BLOCKS)
    assert takes(384, 0.0, activation=BLOCKS)
    assert takes(384, 0.8, activation=BLOCKS)
    assert not takes(768, 0.0, activation=BLOCKS)
    assert not takes(384, 0.8, "straight_through", activation=BLOCKS)
    assert not takes(768, 0.5, activation=BLOCKS)
    assert takes(768, 0.8, activation=BLOCKS)


def test_with_pruned_gradients_alone_it_takes_it_where_still_less_is():
    gradient = GradientPruning(2, 4)
    assert takes(64, 0.0, gradient=gradient)
    assert takes(384, 0.8, gradient=gradient)
    assert not takes(384, 0.5, gradient=gradient)


@pytest.mark.parametrize("over", ["x", "all"])
def test_it_maps_over_batches(over):
    case = Case(gradient=GradientPruning(2, 4, "rescaled"))
    arrays = case.draw()
    stacked = {name: jnp.stack([a, 0.5 * a]) for name, a in arrays.items()}
    axes = {name: 0 if over == "all" or name == "x" else None for name in arrays}
    given = {name: stacked[name] if axes[name] == 0 else arrays[name] for name in arrays}
    found = jax.vmap(lambda a: case.apply(a, "cpu"), in_axes=(axes,))(given)
    for i in range(2):
        one = {name: given[name][i] if axes[name] == 0 else given[name] for name in given}
        np.testing.assert_allclose(found[i], case.apply(one, "cpu"), rtol=1e-5, atol=1e-5)


def test_compiled_and_eager_calls_agree_to_the_bit():
    """As in a training step, where the compiled program alone knows the ids of its masks."""
    case = Case()
    arrays, dy = case.draw(), gradient_of(case)
    found = value_and_gradients(arrays, dy, case, "cpu")
    eagerly, pull = jax.vjp(lambda a: case.apply(a, "cpu"), arrays)
    np.testing.assert_array_equal(found["y"], eagerly)
    np.testing.assert_array_equal(found["w1"], pull(dy)[0]["w1"])


WRONG = {
    "an array as a mask": {"mask": np.ones((HIDDEN, IN), bool)},
    "a string as an activation rule": {"activation": "8x8:0.5"},
    "a gradient rule for the activation": {"activation": GradientPruning(2, 4)},
    "a string as a gradient rule": {"gradient": "2:4"},
    "an activation rule for the gradient": {"gradient": BLOCKS},
    "another backward": {"backward": "foo"},
    "a mask of another kernel": {"mask": select_blocks(jnp.ones((IN, HIDDEN)), (16, 8), 0.5)},
    "a whole mask of another kernel": {"mask": select_blocks(jnp.ones((64, 64)), (16, 8), 0.0)},
}


@pytest.mark.parametrize("engine", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_the_second_layer_is_said(wrong, engine, unchecked):
    arrays = Case().draw()
    first, second = (dataclasses.replace(layer, mask=None) for layer in Case().layers(arrays))
    with pytest.raises(InputError):
        sparse_mlp(arrays["x"], first, dataclasses.replace(second, **WRONG[wrong]), engine=engine)


@pytest.mark.parametrize("length", [1, IN // 2])
def test_scales_of_another_length_are_left_to_the_layers(length, unchecked):
    arrays = Case().draw()
    first, second = Case().layers(arrays)
    scales = (jnp.ones(length), jnp.zeros(length))
    call = functools.partial(sparse_mlp, arrays["x"], first, second, engine="cpu")
    if length == 1:
        np.testing.assert_allclose(
            call(before=scales, after=scales[0]), call(), rtol=1e-5, atol=1e-5
        )
        return
    with pytest.raises((ValueError, TypeError), match=r"float32\[16|16,"):
        call(before=scales)
    with pytest.raises((ValueError, TypeError), match=r"float32\[16|16,"):
        call(after=scales[0])


def test_numbers_of_numpy_are_taken_as_those_of_jax():
    arrays = Case().draw()
    wide = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
    first, second = Case().layers(arrays)
    one = dataclasses.replace(first, kernel=wide["w1"], bias=wide["b1"])
    other = dataclasses.replace(second, kernel=wide["w2"], bias=wide["b2"])
    found = sparse_mlp(jnp.asarray(arrays["x"]), one, other, engine="cpu")
    np.testing.assert_array_equal(found, sparse_mlp(arrays["x"], first, second, engine="cpu"))
