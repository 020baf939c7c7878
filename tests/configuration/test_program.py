"""The program of a run: what must fit together, and the numbers that are printed about it."""

import math
import re

import jax
import numpy as np
import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import (
    build_program,
    epoch_learning_rate,
    mask_density,
    n_parameters,
)
from sparsemlp.configuration.settings import resolve
from sparsemlp.data import ImageDataset
from sparsemlp.errors import InputError
from sparsemlp.train.train_state import initial_state


def like_cifar10(height: int = 32, width: int = 32) -> ImageDataset:
    images, labels = np.zeros((300, height, width, 3), np.uint8), np.zeros(300, np.int32)
    third = (1 / 3,) * 3
    return ImageDataset("cifar10", "black", images, labels, images, labels, 10, third, third)


def shapes(config: Config):
    program = build_program(resolve(config, "cifar10"), like_cifar10())
    return program, jax.eval_shape(lambda: initial_state(program)).params


def test_the_default_model_is_that_of_the_thesis():
    _, params = shapes(Config())
    assert n_parameters(params) == 192_074
    blocks = [params[f"block_{index}"] for index in range(5)]
    kinds = ("XPatch", "XChannel1", "XChannel2")
    assert sum(block[kind]["kernel"].size for block in blocks for kind in kinds) == 184_320


@pytest.mark.parametrize(
    ("block", "ratio", "kept_weights"),
    [
        # Blocks kept of XPatch, XChannel1 and XChannel2: k = ceil(n_blocks * (1 - ratio)).
        ("32x32", 0.8, 1024 * (1 + 4 + 4)),
        ("64x64", 0.9, 4096 * (1 + 1 + 1)),
        ("1x64", 0.5, 64 * (32 + 128 + 128)),
        ("32x32", 0.0, 4096 + 2 * 16384),
    ],
)
def test_density_is_the_share_of_weights_in_kept_blocks(block, ratio, kept_weights):
    program, params = shapes(Config(block=block, ratio=ratio))
    expected = kept_weights / (4096 + 2 * 16384)
    assert mask_density(params, program.model.plan) == expected


def test_the_settings_reach_the_model():
    settings = tiny.settings(
        precision="bfloat16", drop_path=0.25, dim=16, depth=2, remat=True, ema=0.99, accumulate=3
    )
    program = build_program(settings, tiny.dataset())
    model = program.model
    found = (model.image_size, model.dim, model.depth, model.expansion, model.drop_path)
    assert found == (8, 16, 2, 2, 0.25)
    assert np.dtype(model.dtype).name == "bfloat16"
    assert (model.remat, program.ema, program.at_once) == (True, 0.99, 3)
    params = jax.eval_shape(lambda: initial_state(program)).params
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"batch_size": 45}, "--batch-size=45 is larger than the 44 training images of tiny.npz"),
        ({"epochs": 10**20}, "more steps than can be counted: choose at most 357913941"),
        ({"accumulate": 9}, "--accumulate=9 is more than the 8 images of a step: choose at most 8"),
        (
            {"activation": "32x4:0.5", "accumulate": 8, "batch_size": 40},
            "with a batch of 40 images, 5 of them at once: activation block 32x4",
        ),
        ({"block": "3x4"}, "block 3x4 does not divide block_0/X"),
        ({"block": "2x32"}, "block 2x32 does not divide block_0/X"),
        ({"patch_size": 3}, "patch size 3 does not divide the image 8x8"),
        ({"patch_size": 16}, "patch size 16 does not divide the image 8x8"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(chosen, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        build_program(tiny.settings(**chosen), tiny.dataset())
    assert "\n" not in str(caught.value)


def test_resnet9_can_compute_again_what_is_between_its_convolutions():
    config = Config(model="resnet9", remat=True, width=4, batch_size=8)
    assert build_program(resolve(config, "cifar10"), like_cifar10()).model.remat


def test_a_block_that_does_not_divide_names_layer_side_and_a_way_out():
    with pytest.raises(InputError) as caught:
        build_program(resolve(Config(block="32x48", ratio=0.5), "cifar10"), like_cifar10())
    message = str(caught.value)
    assert re.search(r"block_0/X\w+/kernel", message)
    assert "in 64 % 48 != 0" in message or "in 256 % 48 != 0" in message
    suggested = re.findall(r"\d+x\d+", message.split("nearest that divide all its kernels:")[1])
    assert suggested
    for block in suggested:
        shapes(Config(block=block, ratio=0.5))


def test_layers_that_the_block_does_divide_are_offered_and_can_be_had():
    odd = like_cifar10(28, 28)
    with pytest.raises(InputError, match=r"49 % 32.*XChannel1,XChannel2 \(--mask-layers\)"):
        build_program(resolve(Config(ratio=0.5), "cifar10"), odd)
    build_program(resolve(Config(ratio=0.5, mask_layers="XChannel1,XChannel2"), "cifar10"), odd)


def test_images_that_are_not_square_are_refused():
    with pytest.raises(InputError, match="images of 32x28 pixels"):
        build_program(resolve(Config(), "cifar10"), like_cifar10(32, 28))


def test_the_learning_rate_warms_up_and_ends_at_the_minimum():
    rate = epoch_learning_rate(resolve(Config(), "cifar10"))
    # PAPERS.md: linear from 1e-3, then a cosine over 200 epochs without an offset, to 1e-5.
    assert [float(rate(e)) for e in range(5)] == pytest.approx(
        [1e-3 + e * (1e-2 - 1e-3) / 5 for e in range(5)]
    )
    assert float(rate(5)) == pytest.approx(
        1e-5 + (1e-2 - 1e-5) * (1 + math.cos(math.pi * 5 / 200)) / 2
    )
    assert float(rate(200)) == pytest.approx(1e-5)


def test_a_peak_below_the_minimum_is_obeyed():
    rate = epoch_learning_rate(resolve(Config(lr=1e-6, warmup_epochs=0), "cifar10"))
    assert [float(rate(e)) for e in (0, 100, 199)] == pytest.approx([1e-6] * 3)


@pytest.mark.parametrize(
    ("optimizer", "moved"),
    # A weight of 0.5 whose loss has no gradient, at rate 0.01 with a decay of 0.1.
    [("adam", 0.01), ("adamw", 0.01 * 0.1 * 0.5), ("sgd", 0.01 * 0.1 * 0.5)],
)
def test_the_optimizer_is_the_one_that_was_asked_for(optimizer, moved):
    settings = tiny.settings(optimizer=optimizer, lr=0.01, weight_decay=0.1, warmup_epochs=0)
    chosen = build_program(settings, tiny.dataset()).optimizer
    params = {"kernel": np.full((2, 2), 0.5, np.float32)}
    gradient = {"kernel": np.zeros((2, 2), np.float32)}
    updates, _ = chosen.update(gradient, chosen.init(params), params)
    (update,) = jax.tree.leaves(updates)
    np.testing.assert_allclose(update, np.full((2, 2), -moved), rtol=1e-4)


def test_a_cutout_larger_than_the_images_is_refused_before_anything_is_made():
    settings = resolve(Config(cutout=33), "cifar10")
    with pytest.raises(InputError, match=r"--cutout=33 is larger than .* 32x32 pixels: choose at"):
        build_program(settings, like_cifar10())


def test_layers_are_advised_by_the_names_that_the_option_takes():
    with pytest.raises(InputError, match="--mask-layers") as refused:
        shapes(Config(model="resnet9", block="64x96", ratio=0.5, batch_size=100))
    named = str(refused.value).split("it divides: ")[1].split(" ")[0]
    chosen = Config(model="resnet9", block="64x96", ratio=0.5, batch_size=100, mask_layers=named)
    program, _ = shapes(chosen)
    assert program.model.plan
