"""What a model sees of an image, whatever its format, and what fast decoding costs in exactness."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sparsemlp.data.imagenet.crops import N_NUMBERS, centre_crop
from sparsemlp.data.imagenet.decoding import decode_training, decode_validation

WHOLE = [0.99, 0.5] * ((N_NUMBERS - 3) // 2) + [0.5, 0.5]
"""Numbers of a crop of nearly the whole image, without the last, which mirrors below 1/2."""


def saved(image: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def natural(height: int, width: int) -> Image.Image:
    """Noise whose amplitude falls with the frequency, as that of photographs does."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    noise = np.random.default_rng(0).normal(size=(3, height, width))
    filtered = np.fft.irfft2(np.fft.rfft2(noise) / frequency, (height, width))
    scaled = 128 + 55 * filtered / filtered.std()
    return Image.fromarray(np.clip(scaled, 0, 255).astype(np.uint8).transpose(1, 2, 0))


COLOUR = (200, 60, 100)
GREY = 120
ODDITIES = {
    "PNG": (saved(Image.new("RGB", (40, 30), COLOUR), "PNG"), COLOUR),
    "GIF": (saved(Image.new("RGB", (40, 30), COLOUR).quantize(4), "GIF"), COLOUR),
    "grey JPEG": (saved(Image.new("L", (40, 30), GREY), "JPEG"), (GREY,) * 3),
    "CMYK JPEG": (saved(Image.new("CMYK", (40, 30), (55, 195, 155, 0)), "JPEG"), COLOUR),
    "transparent PNG": (saved(Image.new("RGBA", (40, 30), (*COLOUR, 0)), "PNG"), COLOUR),
    "grey PNG with alpha": (saved(Image.new("LA", (40, 30), (GREY, 9)), "PNG"), (GREY,) * 3),
    "black and white PNG": (saved(Image.new("1", (40, 30), 1), "PNG"), (255,) * 3),
    "16-bit PNG": (saved(Image.new("I;16", (40, 30), GREY * 256 + 255), "PNG"), (GREY,) * 3),
    "palette with transparency": (
        saved(Image.new("RGB", (40, 30), COLOUR).quantize(4), "PNG", transparency=b"\x00\x80"),
        COLOUR,
    ),
    "one pixel": (saved(Image.new("RGB", (1, 1), COLOUR), "PNG"), COLOUR),
}


@pytest.mark.parametrize(("data", "colour"), ODDITIES.values(), ids=ODDITIES)
def test_readable_oddities_become_rgb(data: bytes, colour: tuple[int, ...]):
    for image in (decode_validation(data, 16), decode_training(data, 16, [*WHOLE, 0.0])):
        assert image.shape == (16, 16, 3)
        assert image.dtype == np.uint8
        # JPEG quantises a constant to within 2 levels; CMYK inverts exactly.
        assert np.abs(image.astype(int) - colour).max() <= 2
        assert (image == image[0, 0]).all()


def test_a_mirrored_image_is_the_mirror_image():
    data = saved(natural(60, 80), "JPEG")
    plain = decode_training(data, 32, [*WHOLE, 0.9])
    np.testing.assert_array_equal(decode_training(data, 32, [*WHOLE, 0.1]), plain[:, ::-1])


def test_an_exif_orientation_is_ignored():
    image = natural(30, 40)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = saved(image, "JPEG", exif=exif)
    assert Image.open(io.BytesIO(turned)).getexif()[0x0112] == 6
    np.testing.assert_array_equal(
        decode_validation(turned, 16), decode_validation(saved(image, "JPEG"), 16)
    )


def test_validation_shows_the_centre():
    image = np.zeros((64, 128, 3), np.uint8)
    image[4:60, 36:92] = 255  # 56 is 7/8 of 64.
    shown = decode_validation(saved(Image.fromarray(image), "PNG"), 56)
    assert (shown == 255).all()
    image[3, :] = image[60, :] = image[:, 35] = image[:, 92] = 255
    image[4:60, 36:92] = 0
    assert not decode_validation(saved(Image.fromarray(image), "PNG"), 56).any()


def test_validation_agrees_with_resizing_and_then_cropping():
    image = natural(192, 384)
    resized = image.resize((128, 64), Image.Resampling.BICUBIC)
    expected = np.asarray(resized)[4:60, 36:92].astype(int)
    shown = decode_validation(saved(image, "PNG"), 56)
    # Bicubic filters reach 2 pixels of the result far: to what is cut off, at the border.
    assert np.abs(shown - expected)[2:-2, 2:-2].max() <= 1


@pytest.mark.parametrize(("height", "width"), [(384, 512), (383, 511), (385, 513)])
def test_decoding_at_a_fraction_of_the_size_matters_less_than_the_choice_of_the_filter(
    height, width
):
    """Also of sizes that the fraction does not divide."""
    data = saved(natural(height, width), "JPEG", quality=90)
    whole = Image.open(io.BytesIO(data))
    whole.load()
    left, _, right, _ = centre_crop(width, height)
    smallest = [int(right - left) // (2 * scale) for scale in (2, 4, 8)]
    for image_size in (*smallest, 80, 60, 40):
        shown = decode_validation(data, image_size).astype(int)

        def difference(resample: Image.Resampling, shown: np.ndarray = shown) -> float:
            size = (shown.shape[1], shown.shape[0])
            return np.abs(
                np.asarray(whole.resize(size, resample, centre_crop(width, height))) - shown
            ).mean()

        assert difference(Image.Resampling.BICUBIC) > 0
        for other in (Image.Resampling.BILINEAR, Image.Resampling.LANCZOS):
            assert difference(Image.Resampling.BICUBIC) < difference(other)


def test_nothing_is_decoded_at_a_fraction_that_would_have_to_be_enlarged(
    monkeypatch: pytest.MonkeyPatch,
):
    data = saved(natural(96, 128), "JPEG")
    sizes = []

    def resize(self: Image.Image, size: Any, resample: Any, box: Any) -> Image.Image:
        sizes.append(self.size)
        return original(self, size, resample, box)

    original = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", resize)
    for image_size in (50, 48, 30, 20):
        decode_validation(data, image_size)
    # The centred square has 84 pixels: 42 remain of half the size, twice 21.
    assert sizes == [(128, 96), (128, 96), (128, 96), (64, 48)]


def test_what_is_no_whole_image_raises():
    data = saved(natural(60, 80), "JPEG")
    for damaged in (data[: len(data) // 2], data[:-10], b"", b"no image", data[:20]):
        with pytest.raises(Exception, match=r".+"):
            decode_validation(damaged, 16)
        with pytest.raises(Exception, match=r".+"):
            decode_training(damaged, 16, [*WHOLE, 0.9])
