"""A model and a data set so small that a whole training run takes seconds.

A module that trains takes `data = tiny.data`, the file of such a data set (`tiny.ragged_data` where
a partial batch matters), and `no_pictures = tiny.no_pictures` where it looks at none.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from compiled_programs import ignore_half_written

from sparsemlp.checkpoints.checkpoint import Checkpoints, Restored
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import from_json
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import Settings, resolve
from sparsemlp.data import ImageDataset, load_dataset
from sparsemlp.data.dataset import channel_statistics
from sparsemlp.runs.command_line import main
from sparsemlp.runs.progress import Reporter
from sparsemlp.train.train_state import initial_state

N_TRAIN, N_TEST, N_CLASSES, BATCH = 44, 20, 10, 8
STEPS_PER_EPOCH = 6
N_WHOLE = STEPS_PER_EPOCH * BATCH
BLOCK, RATIO = (2, 4), 0.5

MODEL: dict[str, Any] = {"dim": 8, "depth": 1, "expansion": 2, "batch_size": BATCH}
MASKING: dict[str, Any] = {"block": "2x4", "ratio": RATIO}
PLAIN: dict[str, Any] = {
    "mixup": 0.0,
    "cutmix": 0.0,
    "flip": 0.0,
    "crop_padding": 0,
    "label_smoothing": 0.0,
}
RUN = MODEL | MASKING | {"epochs": 3, "mask_start_epoch": 1, "mixup": 0.0, "cutmix": 0.0}


def arrays(seed: int = 0, n_train: int = N_TRAIN, n_test: int = N_TEST) -> dict[str, Any]:
    """The four arrays of a data set of 8x8 noise whose brightness tells the class."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for split, n_images in (("train", n_train), ("test", n_test)):
        labels = np.arange(n_images) % N_CLASSES
        noise = rng.integers(0, 100, (n_images, 8, 8, 3))
        made[f"{split}_images"] = (noise + 15 * labels[:, None, None, None]).astype(np.uint8)
        made[f"{split}_labels"] = labels.astype(np.int32)
    return made


def dataset(seed: int = 0, n_train: int = N_TRAIN, n_test: int = N_TEST) -> ImageDataset:
    """The data set of `arrays`, loaded."""
    made = arrays(seed, n_train, n_test)
    mean, std = channel_statistics(made["train_images"])
    return ImageDataset("tiny", "tiny.npz", **made, n_classes=N_CLASSES, mean=mean, std=std)


def write_npz(path: Path, **changes: Any) -> Path:
    """Writes the data set of `arrays` with some arrays changed; None leaves one out."""
    made: dict[str, Any] = {
        name: array for name, array in (arrays() | changes).items() if array is not None
    }
    np.savez(path, **made)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of as many batches as that of `ragged_data`, all whole: half the programs."""
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    return write_npz(path, **arrays(n_train=N_WHOLE))


@pytest.fixture(scope="module")
def ragged_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set of `arrays` as a file; the last batch of an epoch is a partial one."""
    return write_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """Pictures have tests of their own, and take longer than the steps of so small a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparsemlp.runs.recorder.draw", lambda *_: None)
        yield


def settings(**changes: Any) -> Settings:
    """Settings of a masked tiny model."""
    return resolve(Config(**(MODEL | MASKING | changes)), "tiny")


def flags(**values: Any) -> list[str]:
    """Options as they stand on a command line."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def start(data: Path, out: Path, *more: str, **changes: Any) -> int:
    """Runs the training program in this process, as `sys.exit` would end it."""
    return command(*flags(**(RUN | changes)), f"--dataset={data}", f"--out={out}", *more)


def resume(out: Path, *more: str) -> int:
    """Resumes a run in this process."""
    return command(f"--resume={out}", *more)


def command(*arguments: str) -> int:
    """The exit code of a command line; its warnings are printed, as in a program of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        ignore_half_written()
        try:
            return main("A test.", arguments)
        except SystemExit as ended:
            return int(ended.code or 0)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], Any]) -> None:
    """Does something after that step of a run, which then reports after every step."""

    def steps(self: Reporter, *, done: int, **_: Any) -> None:
        if done == step:
            act()

    monkeypatch.setattr(Reporter, "steps", steps)
    monkeypatch.setattr("sparsemlp.runs.run.CHUNK_SECONDS", 0.0)


def records(out: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` without what a clock says; NaN is no JSON here."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    timed = ("seconds", "images_per_second")
    return [{key: value for key, value in r.items() if key not in timed} for r in found]


def last_state(out: Path) -> Restored:
    """The newest checkpoint of a run."""
    config = from_json((out / "config.json").read_text(), out)
    data = load_dataset(config.dataset)
    program = build_program(resolve(config, data.name), data)
    with Checkpoints(out / "checkpoints") as checkpoints:
        return checkpoints.restore(jax.eval_shape(lambda: initial_state(program)))


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Raises AssertionError unless two pytrees of arrays are equal in structure and every bit."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True
    ):
        assert a.dtype == b.dtype, path
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path


def assert_same_outcome(actual: Path, expected: Path) -> None:
    """Raises AssertionError unless two finished runs agree in all but times."""
    assert records(actual) == records(expected)
    a, b = last_state(actual), last_state(expected)
    assert a.step == b.step
    assert_same_bits(a.state, b.state)
    with (
        np.load(actual / "mask_activity.npz") as one,
        np.load(expected / "mask_activity.npz") as other,
    ):
        assert {n: one[n].tolist() for n in one} == {n: other[n].tolist() for n in other}
    summaries = [json.loads((out / "summary.json").read_text()) for out in (actual, expected)]
    for summary in summaries:
        del summary["seconds"]
    assert summaries[0] == summaries[1]
