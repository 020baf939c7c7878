"""Two layers whose activations and gradients are pruned: one kernel against one after the other."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native
from pairwise import every_pair
from pruned_mlp_cases import (
    BLOCKS,
    IN,
    MEANS,
    Case,
    assert_alike,
    gradient_of,
    is_fused,
    value_and_gradients,
)

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    GradientPruning,
)

pytestmark = needs_native


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
