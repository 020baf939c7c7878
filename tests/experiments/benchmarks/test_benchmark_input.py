"""The benchmark of the input pipeline makes the images it promises and counts what comes out."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.input import Input, in_this_process, measure_input, natural_image, write_images
from PIL import Image

from sparsemlp.data.imagenet.folder import find_images


def test_images_have_the_wanted_size(tmp_path: Path):
    options = Input(images=5, kilobytes=10)
    quality, n_bytes = write_images(tmp_path, 120, 90, options)
    files = sorted((tmp_path / "class").iterdir())
    assert sum(file.stat().st_size for file in files) == n_bytes
    for file in files:
        with Image.open(file) as image:
            assert image.size == (120, 90)
    # A step of the quality changes the size by less than a fifth, up to 96.
    assert quality > 20
    assert n_bytes == pytest.approx(5 * 10_000, rel=0.2)


def test_images_have_the_spectrum_of_photographs():
    image = np.asarray(natural_image(np.random.default_rng(0), 256, 256)).astype(float)
    power = (np.abs(np.fft.rfft2(image.mean(axis=-1) - image.mean())) ** 2)[:128, :128]
    frequency = np.hypot(*np.mgrid[:128, :128])
    low, high = (power[(frequency >= f) & (frequency < 2 * f)].mean() for f in (8, 32))
    # Power falls with the square of the frequency: by 16 over two octaves, more or less for noise.
    assert 10 < low / high < 25


def test_both_kinds_of_decoding_are_timed(tmp_path: Path):
    options = Input(images=4, kilobytes=5, image_size=16, rounds=2)
    write_images(tmp_path, 60, 40, options)
    for seed in (0, None):
        rates = in_this_process(find_images(tmp_path), options, seed)
        assert len(rates.wall) == len(rates.processor or []) == 2
        assert min(rates.wall) > 0


def test_every_number_of_workers_has_a_row(capsys: pytest.CaptureFixture[str]):
    measure_input(
        Input("60x40", kilobytes=5, images=4, image_size=16, batch_size=4, workers=(1,), rounds=1)
    )
    text = capsys.readouterr().out
    for row in ("training, one process", "validation, one process", "training, 1 workers"):
        (line,) = [line for line in text.splitlines() if row in line]
        assert any(int(word) > 0 for word in line.split() if word.isdecimal())
