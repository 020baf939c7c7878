"""Augmentation: what leaves, what stays, and in which proportion it happens."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.errors import InputError
from sparsemlp.train.augment import Augmentation, augment, normalize

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
N_CLASSES = 10
OFF = Augmentation(flip=0.0, crop_padding=0, mixup_alpha=0.0, cutmix_alpha=0.0, label_smoothing=0.0)
MIXUP = Augmentation(flip=0.0, crop_padding=0, cutmix_alpha=0.0, label_smoothing=0.0)
CUTMIX = Augmentation(flip=0.0, crop_padding=0, mixup_alpha=0.0, label_smoothing=0.0)
BOTH = Augmentation(flip=0.0, crop_padding=0, label_smoothing=0.0)
EPS = float(np.finfo(np.float32).eps)


def batch(size: int = 8, height: int = 8, width: int = 6) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(size)
    images = rng.integers(0, 256, size=(size, height, width, 3), dtype=np.uint8)
    return jnp.asarray(images), jnp.arange(size, dtype=jnp.int32) % N_CLASSES


@functools.cache
def compiled(augmentation: Augmentation, mean=MEAN, std=STD, many: bool = False):
    """The augmentation under jit; with `many`, for a vector of keys at once."""
    run = functools.partial(
        augment, augmentation=augmentation, n_classes=N_CLASSES, mean=mean, std=std
    )

    def run_many(keys, images, labels):
        return jax.lax.map(lambda key: run(key, images, labels), keys)

    return jax.jit(run_many if many else run)


def keys(n: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), n)


def raw(augmentation: Augmentation, many: bool = False):
    """The augmentation with a normalisation that returns the pixels as they were, 0 to 255."""
    return compiled(augmentation, mean=(0.0,) * 3, std=(1 / 255,) * 3, many=many)


def test_normalize_equals_the_formula_in_float64():
    images, _ = batch()
    with jax.numpy_dtype_promotion("strict"):
        result = normalize(images, MEAN, STD)
    expected = (np.asarray(images, np.float64) / 255 - MEAN) / STD
    assert result.dtype == jnp.float32
    # Three roundings of numbers no larger than 1 / 0.2435.
    np.testing.assert_allclose(result, expected, atol=3 * EPS / 0.2435)


@pytest.mark.parametrize("size", [1, 5, 8])
def test_everything_off_leaves_the_normalised_image_and_one_hot_labels(size):
    images, labels = batch(size)
    result, targets = compiled(OFF)(jax.random.key(0), images, labels)
    expected = jax.jit(functools.partial(normalize, mean=MEAN, std=STD))(images)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(targets, jax.nn.one_hot(labels, N_CLASSES))


def test_everything_on_is_a_function_of_the_key_and_passes_strict_promotion():
    images, labels = batch()
    run = compiled(Augmentation())
    with jax.numpy_dtype_promotion("strict"):
        first, again = (run(jax.random.key(1), images, labels) for _ in range(2))
        other = run(jax.random.key(2), images, labels)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first[0], other[0])
    assert [value.dtype for value in first] == [jnp.float32, jnp.float32]


def test_soft_labels_sum_to_one_and_are_smoothed():
    images, labels = batch()
    _, targets = compiled(Augmentation(), many=True)(keys(32), images, labels)
    np.testing.assert_allclose(targets.sum(axis=-1), 1, atol=N_CLASSES * EPS)
    assert float(targets.min()) == pytest.approx(0.1 / N_CLASSES)
    assert float(targets.max()) <= 1 - 0.1 + 0.1 / N_CLASSES + EPS


def test_flip_mirrors_the_columns_and_twice_is_the_identity():
    images, labels = batch()
    always = raw(Augmentation(flip=1.0, crop_padding=0, mix_probability=0.0))
    once, _ = always(jax.random.key(0), images, labels)
    np.testing.assert_array_equal(once, np.asarray(images)[:, :, ::-1])
    twice, _ = always(jax.random.key(1), once.astype(jnp.uint8), labels)
    np.testing.assert_array_equal(twice, images)


def test_flip_is_drawn_for_each_image_with_its_probability():
    images, labels = batch()
    quarter = raw(Augmentation(flip=0.25, crop_padding=0, mix_probability=0.0), many=True)
    results, _ = quarter(keys(250), images, labels)
    mirrored = np.asarray(results == images[:, :, ::-1]).all(axis=(2, 3, 4))
    kept = np.asarray(results == images).all(axis=(2, 3, 4))
    np.testing.assert_array_equal(mirrored, ~kept)
    assert not (mirrored == mirrored[:, :1]).all()
    # Five standard deviations of a mean of 2000 draws.
    assert mirrored.mean() == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 2000))


def test_crop_is_a_window_of_the_padded_image_and_every_offset_occurs():
    padding = 2
    images, labels = batch(4)
    images = jnp.maximum(images, 1)
    crop = raw(Augmentation(flip=0.0, crop_padding=padding, mix_probability=0.0), many=True)
    results, _ = crop(keys(200), images, labels)
    results = np.asarray(results)
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = images.shape[1:3]
    offsets = range(2 * padding + 1)
    hits = np.array(
        [
            (results == padded[:, y : y + height, x : x + width]).all(axis=(2, 3, 4))
            for y in offsets
            for x in offsets
        ]
    )
    np.testing.assert_array_equal(hits.sum(axis=0), 1)
    share = hits.mean(axis=(1, 2))
    expected = 1 / len(hits)
    tolerance = 5 * math.sqrt(expected * (1 - expected) / hits[0].size)
    np.testing.assert_allclose(share, expected, atol=tolerance)
    assert not (hits == hits[:, :, :1]).all()


def test_crop_pads_with_black_before_normalisation():
    images, labels = batch(4)
    black = compiled(Augmentation(flip=0.0, crop_padding=40, mix_probability=0.0), many=True)
    results, _ = black(keys(16), images, labels)
    expected = -np.array(MEAN) / STD
    outside = np.isclose(np.asarray(results), expected, atol=4 * EPS / 0.2435).all(axis=-1)
    assert outside.mean() > 0.5


def lambdas(targets: jax.Array) -> np.ndarray:
    """Lambda of each batch, from the targets of distinct labels without smoothing."""
    return np.asarray(targets[:, 0, 0])


def test_cutout_gives_a_square_of_each_image_the_mean_colour_wherever_it_fits():
    images, labels = batch()
    cut = dataclasses.replace(OFF, cutout=3)
    results, _ = compiled(cut, many=True)(keys(100), images, labels)
    plain, _ = compiled(OFF)(jax.random.key(0), images, labels)
    gone = np.asarray(results == 0).all(axis=-1)
    assert not np.asarray(plain == 0).all(axis=-1).any()
    assert (gone.sum(axis=(2, 3)) == 9).all()
    assert (gone.any(axis=3).sum(axis=2) == 3).all()
    assert (gone.any(axis=2).sum(axis=2) == 3).all()
    np.testing.assert_array_equal(results, np.where(gone[..., None], 0, plain))
    corners = {(int(i[0]), int(j[0])) for i, j in map(np.nonzero, gone.reshape(-1, 8, 6))}
    assert corners == {(i, j) for i in range(6) for j in range(4)}


def test_a_cutout_larger_than_the_images_is_refused():
    images, labels = batch()
    with pytest.raises(InputError, match="cutout=7 is larger than the images of 8x6 pixels"):
        compiled(dataclasses.replace(OFF, cutout=7))(jax.random.key(0), images, labels)


def test_mixup_blends_image_and_label_with_the_reversed_batch_by_one_lambda():
    images, labels = batch()
    results, targets = raw(MIXUP, many=True)(keys(100), images, labels)
    lam = lambdas(targets)
    own = np.asarray(images, np.float64)
    weight = lam[:, None, None, None, None]
    np.testing.assert_allclose(results, own * weight + own[::-1] * (1 - weight), atol=4 * EPS * 255)
    one_hot = np.eye(N_CLASSES)[np.asarray(labels)]
    weight = lam[:, None, None]
    np.testing.assert_allclose(
        targets, one_hot * weight + one_hot[::-1] * (1 - weight), atol=2 * EPS
    )


def test_lambda_of_cutmix_is_the_share_of_pixels_that_were_not_pasted():
    images, labels = batch()
    assert (images != images[::-1]).any(axis=(0, 3)).all()
    results, targets = raw(CUTMIX, many=True)(keys(100), images, labels)
    results, own, lam = np.asarray(results), np.asarray(images), lambdas(targets)
    pasted = (results == own[::-1]).all(axis=(1, -1))
    np.testing.assert_array_equal(results, np.where(pasted[:, None, ..., None], own[::-1], own))
    np.testing.assert_allclose(lam, 1 - pasted.mean(axis=(1, 2)), atol=2 * EPS)
    assert 0 < lam.min() <= 0.5 < lam.max() == 1


def test_switch_probability_is_the_share_of_cutmix():
    images, labels = batch()
    fifth = Augmentation(**{**vars(BOTH), "switch_probability": 0.2})
    results, targets = raw(fifth, many=True)(keys(1000), images, labels)
    blended = np.asarray((results != images) & (results != images[::-1])).any(axis=(1, 2, 3, 4))
    unmixed = lambdas(targets) == 1
    # Beta(0.2, 0.2) also gives lambdas so near 0 or 1 that a float32 pixel does not show them.
    assert 0.2 - 0.07 < 1 - (blended | unmixed).mean() < 0.2 + 0.15
    for probability, same in ((0.0, MIXUP), (1.0, CUTMIX)):
        one = Augmentation(**{**vars(BOTH), "switch_probability": probability})
        jax.tree.map(
            np.testing.assert_array_equal,
            raw(one, many=True)(keys(100), images, labels),
            raw(same, many=True)(keys(100), images, labels),
        )


def test_mix_probability_is_the_share_of_mixed_batches():
    images, labels = batch()
    rarely = Augmentation(**{**vars(MIXUP), "mixup_alpha": 8.0, "mix_probability": 0.3})
    results, targets = raw(rarely, many=True)(keys(1000), images, labels)
    mixed = lambdas(targets) < 1
    assert mixed.mean() == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / 1000))
    changed = np.asarray(results != images).any(axis=(1, 2, 3, 4))
    np.testing.assert_array_equal(changed, mixed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flip": 1.5}, r"flip=1.5 is no probability: choose it in \[0, 1\]"),
        ({"mix_probability": math.nan}, "mix_probability=nan is no probability"),
        ({"switch_probability": -0.1}, "switch_probability=-0.1 is no probability"),
        ({"mixup_alpha": -1.0}, "mixup alpha -1.0 parametrises no Beta distribution"),
        ({"cutmix_alpha": math.inf}, "cutmix alpha inf parametrises no Beta distribution"),
        ({"mixup_alpha": 1e-39}, r"that float32 can draw from: choose it in \[1e-30, 1e\+30\]"),
        ({"cutmix_alpha": math.nan}, "cutmix alpha nan parametrises no Beta distribution"),
        ({"crop_padding": -1}, "crop_padding=-1 is negative"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0 leaves no mass for the label"),
    ],
)
def test_augmentation_refuses(change, message):
    with pytest.raises(InputError, match=message):
        Augmentation(**change)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), STD, r"mean of shape \(1,\) for images of 3 channels: give 3 numbers"),
        (MEAN, (0.2, 0.2), r"std of shape \(2,\) for images of 3 channels"),
        (MEAN, (0.2, 0.0, 0.2), r"std=\[0.2, 0.0, 0.2\] divides the pixels"),
    ],
)
def test_normalize_refuses(mean, std, message):
    with pytest.raises(InputError, match=message):
        normalize(batch()[0], mean, std)
