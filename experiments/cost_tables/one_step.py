"""One training step on random images, marked for a profiler.

    ncu --profile-from-start off ... python experiments/cost_tables/one_step.py --ratio=0.8

compiles and warms up, then makes one step between `cudaProfilerStart` and `cudaProfilerStop`. The
options are those of cifar10.py; `measured_costs` calls it.
"""

import contextlib
import ctypes
import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from sparsemlp import InputError
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import resolve
from sparsemlp.data import ImageDataset
from sparsemlp.exit_codes import exit_code
from sparsemlp.options import cli
from sparsemlp.train.train_state import initial_state
from sparsemlp.train.training import train_steps

_IN_A_CALL = 10
"""Steps that one call makes at most."""


@dataclasses.dataclass(frozen=True)
class OneStep:
    """One training step on random images, marked for a profiler."""

    run: Annotated[Config, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Config)
    """What to train."""
    size: int = 32
    """Height and width of an image, in pixels."""
    n_classes: int = 10
    """Number of classes."""


def random_images(n_images: int, image_size: int, n_classes: int) -> ImageDataset:
    """Noise as a data set: what a step costs does not depend on what is on an image."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n_images, image_size, image_size, 3), dtype=np.uint8)
    return ImageDataset(
        name="noise",
        source="noise",
        train_images=images,
        train_labels=rng.integers(0, n_classes, n_images).astype(np.int32),
        test_images=images[:1],
        test_labels=np.zeros(1, np.int32),
        n_classes=n_classes,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )


def steps(options: OneStep) -> Callable[[int], None]:
    """Makes so many masked steps and waits for them; the first call compiles."""
    settings = resolve(options.run, "noise")
    n_images = _IN_A_CALL * settings.batch_size
    dataset = random_images(n_images, options.size, options.n_classes)
    program = build_program(settings, dataset)
    images, labels = jnp.asarray(dataset.train_images), jnp.asarray(dataset.train_labels)
    order = jnp.arange(len(labels), dtype=jnp.int32)
    state = initial_state(program)

    def make(n_steps: int) -> None:
        nonlocal state
        for made in range(0, n_steps, _IN_A_CALL):
            state, _ = train_steps(
                program,
                state,
                images,
                labels,
                order,
                jnp.int32(0),
                jnp.int32(min(_IN_A_CALL, n_steps - made)),
                batch_size=settings.batch_size,
                masked=True,
            )
        jax.block_until_ready(state)

    return make


def load_runtime() -> ctypes.CDLL:
    """CUDA's runtime library: the one that JAX has loaded, that of its wheels, or the system's.

    Raises:
      OSError: there is none.
    """
    names = ["libcudart.so.13", "libcudart.so.12", "libcudart.so"]
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels and wheels.submodule_search_locations) or ():
        names += map(str, Path(folder).glob("*/lib/libcudart.so.*"))
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError(f"none of {', '.join(names)} can be loaded")


def main() -> int:
    """Makes the step that the command line describes."""
    return exit_code(lambda: profile(cli(OneStep, description=__doc__)))


def profile(options: OneStep) -> None:
    """Makes one step between the calls that begin and end a profile.

    Raises:
      InputError: an option that cannot be, or CUDA's runtime library is not found.
    """
    make = steps(options)
    make(2)
    try:
        runtime = load_runtime()
    except OSError as error:
        raise InputError(f"CUDA's runtime library is not found: {error}") from error
    runtime.cudaProfilerStart()
    make(1)
    runtime.cudaProfilerStop()


if __name__ == "__main__":
    sys.exit(main())
