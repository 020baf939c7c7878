"""The input pipeline of large image sets: images a second that it decodes, crops and mirrors."""

import dataclasses
import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.timing import describe_machine, quartiles
from sparsemlp import InputError, parse_block
from sparsemlp.cores import usable_cores
from sparsemlp.data.imagenet import training_pipeline
from sparsemlp.data.imagenet.batch_plan import BatchPlan
from sparsemlp.data.imagenet.folder import FolderSource, find_images
from sparsemlp.data.imagenet.loading import Loader
from sparsemlp.data.imagenet.workers import require_grain
from sparsemlp.options import flag, open_default
from sparsemlp.runs.environment import describe_environment

_BATCHES_IN_A_TURN = 4


@dataclasses.dataclass(frozen=True)
class Input:
    """The input pipeline of large image sets: from JPEG files to batches, images a second."""

    size: str = "500x375"
    """Width and height of the JPEG images, WxH."""
    kilobytes: float = 110.0
    """About how large their files are: the quality of the encoding is chosen for it."""
    images: int = 64
    """How many different ones are made."""
    image_size: int = 224
    """Height and width of what comes out."""
    batch_size: int = 128
    """Images in a batch."""
    workers: Annotated[tuple[int, ...], open_default("INT [INT ...]", "as many as cores")] = ()
    """Worker processes of the whole pipeline."""
    rounds: int = 5
    """How often each is timed, over a turn of some batches; the median is over these."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """Images a second, a number a turn.

    Attributes:
      wall: by the clock.
      processor: by the processor time of this process; None where others do the work.
      waited: share of the time that a caller who does nothing else waits for a batch.
    """

    wall: list[float]
    processor: list[float] | None = None
    waited: float | None = None


def measure_input(options: Annotated[Input, tyro.conf.arg(name="")]) -> None:
    """The input pipeline of large image sets: from JPEG files to batches, images a second."""
    for name in ("images", "image_size", "batch_size", "rounds"):
        if getattr(options, name) < 1:
            raise InputError(f"{flag(name)}={getattr(options, name)} must be >= 1")
    if not options.kilobytes > 0:
        raise InputError(f"--kilobytes={options.kilobytes:g} must be more than 0")
    if any(n_workers < 1 for n_workers in options.workers):
        raise InputError(f"--workers={min(options.workers)} must be at least 1")
    width, height = parse_block(options.size, "--size", "WxH", "width and height in pixels")
    require_grain()
    with tempfile.TemporaryDirectory(prefix="sparsemlp-input-") as folder:
        quality, n_bytes = write_images(Path(folder), width, height, options)
        source = find_images(Path(folder))
        found = {
            "training, one process": in_this_process(source, options, seed=0),
            "validation, one process": in_this_process(source, options, seed=None),
        }
        for n_workers in options.workers or (usable_cores(),):
            found[f"training, {n_workers} workers"] = through_workers(source, options, n_workers)
    table = Table(
        title=f"{options.images} JPEG images of {options.size}, quality {quality}, "
        f"{n_bytes / options.images / 1000:.0f} kB on average, to {options.image_size} pixels",
        caption=f"medians of {options.rounds} turns; per core: by processor time, which others on "
        "the machine disturb less\n" + describe_machine(describe_environment(), "grain", "pillow"),
    )
    for name in ("", "images/s", "quartiles", "images/s per core", "waited"):
        table.add_column(name, justify="right" if name else "left")
    for name, rates in found.items():
        low, high = quartiles(rates.wall)
        table.add_row(
            name,
            f"{statistics.median(rates.wall):.0f}",
            f"{low:.0f} - {high:.0f}",
            f"{statistics.median(rates.processor):.0f}" if rates.processor else "",
            "" if rates.waited is None else f"{rates.waited:.0%}",
        )
    Console(width=110).print(table)


def in_this_process(source: FolderSource, options: Input, seed: int | None) -> Rates:
    """What a worker does, without a worker: read, decode, crop and resize."""
    loader = Loader(source, BatchPlan(len(source), len(source), seed=seed), options.image_size)
    wall, processor = [], []
    for turn in range(options.rounds + 1):
        began, began_processor = time.perf_counter(), time.process_time()
        chunks = range(
            turn * loader.plan.chunks_per_epoch, (turn + 1) * loader.plan.chunks_per_epoch
        )
        n_images = sum(len(loader[number].labels) for number in chunks)
        if turn > 0:
            wall.append(n_images / (time.perf_counter() - began))
            processor.append(n_images / (time.process_time() - began_processor))
    return Rates(wall, processor)


def through_workers(source: FolderSource, options: Input, n_workers: int) -> Rates:
    """The whole pipeline, from the first batch after those that were made ahead."""
    wall = []
    with training_pipeline(
        source,
        batch_size=options.batch_size,
        image_size=options.image_size,
        seed=0,
        n_workers=n_workers,
    ) as batches:
        for _ in range(2 * _BATCHES_IN_A_TURN):
            next(batches)
        batches.seconds_waited = 0.0
        began_all = time.perf_counter()
        for _ in range(options.rounds):
            began = time.perf_counter()
            n_images = sum(len(next(batches).labels) for _ in range(_BATCHES_IN_A_TURN))
            wall.append(n_images / (time.perf_counter() - began))
        waited = batches.seconds_waited / (time.perf_counter() - began_all)
    return Rates(wall, waited=waited)


def write_images(folder: Path, width: int, height: int, options: Input) -> tuple[int, int]:
    """Writes images into one class, of the quality whose mean size is nearest to the wanted one.

    Returns:
      The quality, and the bytes of all files together.
    """
    rng = np.random.default_rng(0)
    images = [natural_image(rng, width, height) for _ in range(options.images)]
    sample = images[:4]
    wanted = 1000 * options.kilobytes * len(sample)
    quality = min(
        range(20, 100),
        key=lambda quality: abs(sum(len(_jpeg(image, quality)) for image in sample) - wanted),
    )
    (folder / "class").mkdir()
    n_bytes = 0
    for number, image in enumerate(images):
        data = _jpeg(image, quality)
        (folder / "class" / f"{number}.JPEG").write_bytes(data)
        n_bytes += len(data)
    return quality, n_bytes


def natural_image(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Noise with the amplitude spectrum 1 / frequency of photographs, colours alike but not equal.

    References:
      Field, Relations between the statistics of natural images and the response properties of
      cortical cells, J. Opt. Soc. Am. A 4, 1987
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    noise = rng.normal(size=(height, width)) + 0.3 * rng.normal(size=(3, height, width))
    filtered = np.fft.irfft2(np.fft.rfft2(noise) / frequency, (height, width))
    levels = np.clip(128 + 55 * filtered / filtered.std(), 0, 255).astype(np.uint8)
    return Image.fromarray(levels.transpose(1, 2, 0))


def _jpeg(image: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
