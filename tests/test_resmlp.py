"""ResMLP against an independent one in float64 NumPy, values and gradients."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_resmlp
from reference_resmlp import Tree, resmlp_forward, resmlp_loss_gradients
from tiny_resmlp import (
    BATCH,
    CLASSES,
    DEPTH,
    DIM,
    EXPANSION,
    LAYERS_IN_A_ROW,
    ROUNDING,
    tiny,
)

from sparsemlp import BlockMasking, ResMLP, flatten_masks, select_masks
from sparsemlp.errors import InputError
from sparsemlp.resmlp import patches
from sparsemlp.rules import Backward

images, params = tiny_resmlp.images, tiny_resmlp.params


def plan_of(backward: Backward) -> dict[str, BlockMasking]:
    return {
        "*/XPatch/kernel": BlockMasking((4, 1), 0.5, backward),
        "*/XChannel1/kernel": BlockMasking((2, 4), 0.6, backward),
        "*/XChannel2/kernel": BlockMasking((2, 2), 0.3, backward),
    }


def run(model: ResMLP, variables: Tree, images: jax.Array, **options: Any) -> Any:
    """The logits of a model."""
    return model.apply(variables, images, **options)


@pytest.fixture(scope="module")
def targets() -> np.ndarray:
    targets = np.random.default_rng(1).random((BATCH, CLASSES))
    return targets / targets.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def masks(params) -> Tree:
    return select_masks(params, plan_of("masked"))


@pytest.fixture(scope="module")
def apply():
    """Logits, compiled once for each combination of collections."""
    return jax.jit(tiny().apply)


def dense_tree(masks: Tree) -> Tree:
    """The masks as the reference takes them: bool arrays `[in, out]`."""
    tree: Tree = {}
    for path, mask in flatten_masks(masks).items():
        block, layer, kernel = path.split("/")
        tree.setdefault(block, {})[layer] = {kernel: np.asarray(mask.dense())}
    return tree


def test_dense_logits_are_those_of_the_reference(params, images, apply):
    expected = resmlp_forward(params, np.asarray(images))
    logits = apply({"params": params}, images)
    assert logits.shape == (BATCH, CLASSES)
    np.testing.assert_allclose(logits, expected, atol=ROUNDING * np.abs(expected).max())


def test_masked_logits_are_those_of_the_reference(params, masks, images, apply):
    expected = resmlp_forward(params, np.asarray(images), dense_tree(masks))
    logits = apply({"params": params, "masks": masks}, images)
    tolerance = ROUNDING * np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, atol=tolerance)
    dense = resmlp_forward(params, np.asarray(images))
    assert not np.allclose(logits, dense, atol=tolerance)


@pytest.mark.parametrize("backward", ["masked", "dense", "straight_through", None])
def test_gradients_of_all_parameters_are_those_of_the_reference(
    params, masks, images, targets, backward
):
    model = tiny(plan=plan_of(backward) if backward else {})
    collections = {"masks": masks} if backward else {}

    def loss(params: Tree) -> jax.Array:
        logits = run(model, {"params": params, **collections}, images)
        return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=1))

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    expected_value, expected = resmlp_loss_gradients(
        params,
        np.asarray(images),
        targets,
        dense_tree(masks) if backward else None,
        backward or "masked",
    )
    np.testing.assert_allclose(value, expected_value, rtol=ROUNDING)
    assert jax.tree.structure(gradient) == jax.tree.structure(expected)
    by_path = dict(jax.tree.leaves_with_path(gradient))
    for path, want in jax.tree.leaves_with_path(expected):
        scale = np.abs(want).max()
        assert scale > 0, path
        np.testing.assert_allclose(
            by_path[path], want, atol=ROUNDING * scale, err_msg=jax.tree_util.keystr(path)
        )


def test_the_loss_gradient_of_dropped_weights_is_exactly_zero(params, masks, images):
    model = tiny(plan=plan_of("masked"))

    @jax.jit
    @jax.grad
    def gradient(params: Tree) -> jax.Array:
        return jnp.sum(jnp.square(run(model, {"params": params, "masks": masks}, images)))

    gradients = gradient(params)
    assert len(flatten_masks(masks)) == 3 * DEPTH
    for path, mask in flatten_masks(masks).items():
        block, layer, kernel = path.split("/")
        of_kernel = np.asarray(gradients[block][layer][kernel])
        kept = np.asarray(mask.dense())
        np.testing.assert_array_equal(of_kernel[~kept], 0.0)
        assert np.all(of_kernel[kept] != 0)


def test_init_gives_plain_parameters_also_with_a_plan(images):
    with_plan = jax.eval_shape(tiny(plan=plan_of("masked")).init, jax.random.key(0), images)
    assert set(with_plan) == {"params"}
    assert with_plan == jax.eval_shape(tiny().init, jax.random.key(0), images)
    names = {"affine1", "XPatch", "scale1", "affine2", "XChannel1", "XChannel2", "scale2"}
    params = with_plan["params"]
    assert set(params) == {"embed", "norm", "head", "block_0", "block_1"}
    assert set(params["block_1"]) == names


@pytest.mark.parametrize(
    ("depth", "scale"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)]
)
def test_layer_scales_start_from_the_published_value_of_their_depth(depth, scale):
    model = ResMLP(4, 4, 1, dim=1, depth=depth, expansion=1, n_classes=1)
    images, key = jnp.zeros((1, 4, 4, 1)), jax.random.key(0)

    def init(key):
        params = model.init(key, images)["params"]
        return params["block_0"]["scale1"]["scale"], params[f"block_{depth - 1}"]["scale2"]["scale"]

    scales = jax.jit(init)(key)
    np.testing.assert_array_equal(jnp.concatenate(scales), np.full(2, scale, np.float32))


def test_initial_parameters_have_the_published_spread():
    # Enough weights that the sample deviation is within a few per cent of the true one.
    model = ResMLP(8, 1, 3, dim=48, depth=1, expansion=4, n_classes=64)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
    block = params["block_0"]
    for layer in (block["XPatch"], block["XChannel1"], block["XChannel2"], params["head"]):
        kernel = np.asarray(layer["kernel"], np.float64)
        assert abs(kernel.std() / 0.02 - 1) < 5 / math.sqrt(2 * kernel.size)
        assert abs(kernel.mean()) < 5 * 0.02 / math.sqrt(kernel.size)
        np.testing.assert_array_equal(layer["bias"], 0)
    for affine in (block["affine1"], block["affine2"], params["norm"]):
        np.testing.assert_array_equal(affine["scale"], 1)
        np.testing.assert_array_equal(affine["bias"], 0)


def test_bfloat16_computation_keeps_float32_parameters_and_logits(params, images, apply):
    model = tiny(dtype=jnp.bfloat16)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
    logits = jax.jit(model.apply)({"params": params}, images)
    assert logits.dtype == jnp.float32
    exact = np.asarray(apply({"params": params}, images))
    scale = float(np.abs(exact).max())
    # Each layer rounds its result to bfloat16; sums are float32.
    rounding = 4 * float(jnp.finfo(jnp.bfloat16).eps) * math.sqrt(2 * LAYERS_IN_A_ROW)
    np.testing.assert_allclose(logits, exact, atol=rounding * scale)
    assert not np.array_equal(logits, exact)


@pytest.fixture(scope="module")
def apply_dropping():
    """Features of a model whose residual branches are dropped at random, compiled once."""
    model = tiny(drop_path=0.5)

    @jax.jit
    def apply(params: Tree, images: jax.Array, seed: jax.Array) -> jax.Array:
        rngs = {"drop_path": jax.random.key(seed)}
        return run(model, {"params": params}, images, train=True, rngs=rngs)

    return apply


def test_drop_path_acts_in_training_alone_and_follows_its_seed(
    params, images, apply, apply_dropping
):
    evaluated = jax.jit(tiny(drop_path=0.5).apply)({"params": params}, images)
    np.testing.assert_array_equal(evaluated, apply({"params": params}, images))
    first, again, other = (np.asarray(apply_dropping(params, images, s)) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_drop_path_drops_every_branch_of_every_sample_for_itself(params, images, apply_dropping):
    # The same image many times: each sample takes one of 2**4 ways through the four branches.
    same = jnp.broadcast_to(images[:1], (512, *images.shape[1:]))
    logits = np.asarray(apply_dropping(params, same, 0), np.float64)
    ways = []
    for kept in np.ndindex(*[2] * 2 * DEPTH):
        scaled = {name: dict(value) for name, value in params.items()}
        for branch, factor in enumerate(kept):
            block, name = scaled[f"block_{branch // 2}"], f"scale{branch % 2 + 1}"
            # A kept branch is doubled at rate 1/2.
            block[name] = {"scale": 2.0 * factor * np.asarray(block[name]["scale"])}
        ways.append(resmlp_forward(scaled, np.asarray(images[:1]))[0])
    distance = np.abs(logits[:, None] - np.array(ways)[None]).max(axis=2)
    assert np.all(distance.min(axis=1) <= ROUNDING * np.abs(ways).max())
    # Each way has 32 of 512 samples in expectation, with a standard deviation of 5.5.
    counts = np.bincount(distance.argmin(axis=1), minlength=len(ways))
    assert np.all(np.abs(counts - 32) < 5 * 5.5)


@pytest.mark.parametrize(
    "shape", [(2, 8, 8, 1), (2, 9, 9, 3), (2, 8, 10, 3)], ids=["channels", "size", "one side"]
)
def test_images_of_another_shape_are_named_with_the_expected_one(shape):
    with pytest.raises(InputError) as caught:
        jax.eval_shape(tiny().init, jax.random.key(0), jnp.zeros(shape))
    for part in (str(shape), "[batch, 8, 8, 3]", "image_size"):
        assert part in str(caught.value)


def test_an_image_without_a_batch_axis_is_an_error_that_says_so(unchecked):
    with pytest.raises(InputError, match=r"no batch axis, give images\[None\]"):
        jax.eval_shape(tiny().init, jax.random.key(0), jnp.zeros((8, 8, 3)))


def test_a_patch_that_does_not_divide_the_image_is_an_error_with_the_sums():
    model = ResMLP(8, 3, 3, DIM, DEPTH, EXPANSION, CLASSES)
    expected = r"patch size 3 does not divide the image 8x8: 8 % 3 = 2.* such as [24] \(--patch"
    with pytest.raises(InputError, match=expected):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8, 8, 3)))


def test_an_empty_patch_and_a_certain_drop_are_errors():
    with pytest.raises(InputError, match="patch size 0 is no number of pixels"):
        jax.eval_shape(
            ResMLP(8, 0, 3, DIM, DEPTH, EXPANSION, CLASSES).init,
            jax.random.key(0),
            jnp.zeros((1, 8, 8, 3)),
        )
    with pytest.raises(InputError, match=r"drop path rate 1\.0 is outside \[0, 1\)"):
        jax.eval_shape(
            ResMLP(8, 2, 3, DIM, DEPTH, EXPANSION, CLASSES, drop_path=1.0).init,
            jax.random.key(0),
            jnp.zeros((1, 8, 8, 3)),
        )


def test_patches_run_row_by_row_and_inside_a_patch_channel_fastest():
    height, width, patch = 4, 6, 2
    row, column, channel = np.indices((height, width, 3))
    images = jnp.asarray((100 * row + 10 * column + channel)[None], jnp.float32)
    cut = np.asarray(patches(images, patch))
    assert cut.shape == (1, 6, 12)
    np.testing.assert_array_equal(cut[0, 0], [0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112])
    np.testing.assert_array_equal(cut[0, :, 0], [0, 20, 40, 200, 220, 240])


def test_models_with_equal_plans_are_equal_and_hash_alike():
    plan = plan_of("masked")
    first, second = tiny(plan=plan), tiny(plan=dict(reversed(plan.items())))
    assert first == second
    assert hash(first) == hash(second)
    assert first != tiny(plan=plan_of("dense"))
    assert first.plan == second.plan


def test_a_plan_that_changes_afterwards_does_not_change_the_model():
    plan = plan_of("masked")
    model = tiny(plan=plan)
    plan.clear()
    assert model == tiny(plan=plan_of("masked"))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"depth": -1}, "depth=-1 is too small: it must be at least 0"),
        ({"dim": 0}, "dim=0 is too small: it must be at least 1"),
        ({"expansion": -4}, "expansion=-4 is too small"),
        ({"n_classes": 0}, "n_classes=0 is too small"),
    ],
)
def test_sizes_that_no_model_has_are_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        ResMLP(**sizes).init(jax.random.key(0), jnp.ones((1, 32, 32, 3)))
