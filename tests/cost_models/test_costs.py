"""The cost models: the published table's cells, and what a mask of known size must cost."""

import math
from typing import Any

import jax
import pytest

from sparsemlp import InputError, resmlp_cifar10, resmlp_imagenet
from sparsemlp.cost_models.costs import (
    KINDS,
    Run,
    Shapes,
    loaded_elements,
    movement_bytes,
    thesis_flops,
    thesis_movement_bytes,
    training_flops,
)

SHAPES, RUN = Shapes(), Run()
MODELS = {
    "cifar10": (SHAPES, resmlp_cifar10()),
    "imagenet": (Shapes(224, 14, 3, 384, 12, 4, 1000), resmlp_imagenet()),
}


def everywhere(block: tuple[int, int], ratio: float) -> dict:
    return dict.fromkeys(KINDS, (block, ratio))


@pytest.mark.parametrize(
    ("block", "ratio", "published"),
    [
        ((1, 1), 0.1, 12.97),
        ((1, 1), 0.5, 7.21),
        ((1, 1), 0.8, 2.88),
        ((1, 1), 0.9, 1.44),
        ((8, 8), 0.1, 13.01),
        ((8, 8), 0.5, 7.21),
        ((8, 8), 0.8, 2.93),
        ((8, 8), 0.9, 1.48),
        ((64, 64), 0.1, 14.41),
        ((64, 64), 0.5, 8.01),
        ((64, 64), 0.8, 4.80),
        ((64, 64), 0.9, 4.80),
    ],
    ids=str,
)
def test_loaded_weights_are_the_published_cells_to_their_digits(block, ratio, published):
    billions = loaded_elements(SHAPES, everywhere(block, ratio), RUN) / 1e9
    assert round(billions, 2) == published


@pytest.mark.parametrize(
    ("masking", "published"), [({}, 318), (everywhere((32, 32), 0.8), 277)], ids=["dense", "masked"]
)
def test_memory_movement_is_the_published_figure_within_half_a_percent(masking, published):
    assert thesis_movement_bytes(SHAPES, masking, RUN) / 2**30 == pytest.approx(published, rel=5e-3)


def test_memory_movement_is_never_above_dense():
    dense = thesis_movement_bytes(SHAPES, {}, RUN)
    assert thesis_movement_bytes(SHAPES, everywhere((1, 1), 0.9), RUN) == dense
    dense = movement_bytes(SHAPES, {}, RUN)
    assert movement_bytes(SHAPES, everywhere((1, 1), 0.9), RUN) == dense


def test_a_row_of_a_block_is_what_lies_side_by_side_in_memory():
    """The weight is `[out, in]`, its rows are contiguous, and a line has 32 numbers."""
    run = Run(batch_size=1, steps_per_epoch=1, epochs=1)
    dense = movement_bytes(SHAPES, {}, run)
    # 6 of 512 blocks of a weight of 512 lines: each of one line, or of 32 that are half empty.
    for block, lines in (((1, 32), 6), ((32, 1), 6 * 32)):
        found = movement_bytes(SHAPES, {"XChannel1": (block, 0.99)}, run)
        assert dense - found == 5 * (512 - lines) * 128


def test_lines_of_one_number_are_all_parameters_once():
    longer, run = (
        Run(batch_size=size, steps_per_epoch=1, epochs=1, line_bytes=4) for size in (2, 1)
    )
    activations = movement_bytes(SHAPES, {}, longer) - movement_bytes(SHAPES, {}, run)
    assert movement_bytes(SHAPES, {}, run) - activations == 4 * 192_074


def test_thesis_flops_are_two_for_each_weight_and_position_of_one_image_an_epoch():
    token_mixing, channel_mixing = 64 * 64 * 64, 2 * 64 * 256 * 64
    embedding, head = 64 * 48 * 64, 64 * 10
    wanted = 2 * 200 * (embedding + head + 5 * (token_mixing + channel_mixing))
    assert thesis_flops(SHAPES, {}, RUN) == wanted


def test_thesis_flops_fall_linearly_and_about_five_times_at_0_8():
    dense, *rest = (
        thesis_flops(SHAPES, everywhere((4, 4), r) if r else {}, RUN) for r in (0, 0.4, 0.8)
    )
    assert dense / rest[1] == pytest.approx(5, rel=0.07)
    assert dense - rest[0] == pytest.approx(rest[0] - rest[1])


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_model(name):
    shapes, model = MODELS[name]
    size = model.image_size
    images = jax.ShapeDtypeStruct((1, size, size, 3), "float32")
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    biases = sum(shapes.kernel(kind)[1] for kind in KINDS)
    maskable = sum(math.prod(shapes.kernel(kind)) for kind in KINDS)
    counted = sum(shapes.unmasked_parameters()) + shapes.depth * (maskable + biases)
    assert counted == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", MODELS)
def test_training_flops_are_three_products_an_image_but_the_embeddings_dx(name):
    shapes, model = MODELS[name]
    run = Run(batch_size=2, steps_per_epoch=1, epochs=1)
    size = model.image_size
    images = jax.ShapeDtypeStruct((2, size, size, 3), "float32")
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]

    def loss(params, images):
        logits: Any = model.apply({"params": params}, images)
        return logits.sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, images)
    traced = sum(flops_of(eqn) for eqn in products(jaxpr.jaxpr))
    # The embedding's dX is traced, and nobody needs it.
    unused = 2 * 2 * shapes.tokens * shapes.patch_features * shapes.dim
    assert training_flops(shapes, {}, run) == traced - unused


def products(jaxpr):
    """All matrix products of a program, in those that it calls too."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield eqn
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None:
                yield from products(getattr(inner, "jaxpr", inner))


def flops_of(eqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    length = math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
    return 2 * length * eqn.outvars[0].aval.size


def test_masking_one_layer_kind_leaves_the_others_dense():
    run = Run(batch_size=1, steps_per_epoch=1, epochs=1)
    masking = {"XPatch": ((32, 32), 0.8)}
    assert loaded_elements(SHAPES, masking, run) == 5 * (1024 + 2 * 64 * 256)
    saved = training_flops(SHAPES, {}, run) - training_flops(SHAPES, masking, run)
    assert saved == 5 * 2 * 3 * 64 * (64 * 64 - 1024)
    lines = movement_bytes(SHAPES, {}, run) - movement_bytes(SHAPES, masking, run)
    assert lines == 5 * (64 * 64 - 1024) * 4


def test_the_corrected_movement_counts_every_token():
    run = Run(batch_size=1, steps_per_epoch=1, epochs=1)
    longer = Run(batch_size=2, steps_per_epoch=1, epochs=1)
    activations = movement_bytes(SHAPES, {}, longer) - movement_bytes(SHAPES, {}, run)
    in_and_out = 2 * 64 * 64 + 64 * (64 + 256) + 64 * (256 + 64)
    assert activations == 4 * (3072 + 64 * 64 + 5 * in_and_out + 64 + 10)


def test_a_block_that_does_not_divide_names_the_layer():
    with pytest.raises(InputError, match="XChannel1"):
        loaded_elements(SHAPES, {"XChannel1": ((48, 32), 0.5)}, RUN)
