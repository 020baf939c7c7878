"""ResNet-9 as the training program trains it: batch statistics and mirrored test images."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import resolve
from sparsemlp.data import ImageDataset
from sparsemlp.errors import InputError
from sparsemlp.train.augment import normalize
from sparsemlp.train.evaluation import evaluate, evaluation_batches
from sparsemlp.train.train_state import Program, initial_state
from sparsemlp.train.training import train_step

OPTIONS: dict[str, Any] = {
    "model": "resnet9",
    "width": 2,
    "batch_size": 16,
    "epochs": 2,
    "mask_start_epoch": 1,
    "block": "2x2",
    "ratio": 0.5,
    "activation": "4x2:0.5",
    "gradient": "1:2",
    "gradient_method": "random",
    "checkpoint_every": 0.0,
}


def enlarged(images: Any) -> np.ndarray:
    return np.repeat(np.repeat(images, 2, axis=1), 2, axis=2)


def dataset() -> ImageDataset:
    made = tiny.dataset(n_train=32)
    return dataclasses.replace(
        made, train_images=enlarged(made.train_images), test_images=enlarged(made.test_images)
    )


@pytest.fixture(scope="module")
def program() -> Program:
    options = {name: value for name, value in OPTIONS.items() if name != "checkpoint_every"}
    return build_program(resolve(Config(**options), "tiny"), dataset())


def test_a_step_moves_the_batch_statistics_and_counts_masks(program: Program):
    data = dataset()
    state = initial_state(program)
    step = jax.jit(lambda s, i, y: train_step(program, s, i, y, masked=True))
    after = step(state, jnp.asarray(data.train_images[:16]), jnp.asarray(data.train_labels[:16]))
    for name, before in state.batch_stats.items():
        assert np.any(before["mean"] != after.batch_stats[name]["mean"])
        assert np.all(np.asarray(after.batch_stats[name]["var"]) > 0)
    assert set(after.activity) == {f"conv_{index}/kernel" for index in range(2, 9)}
    assert all(int(jnp.sum(count)) > 0 for count in after.activity.values())


def test_a_test_image_is_judged_with_its_mirror_image_by_the_running_statistics(program: Program):
    data, state = dataset(), initial_state(program)
    stats = jax.tree.map(lambda a: a * 0.9, state.batch_stats)
    found = evaluate(
        program,
        state.params,
        stats,
        {},
        *evaluation_batches(data.test_images, data.test_labels, 8),
        masked=False,
    )
    inputs = normalize(jnp.asarray(data.test_images), data.mean, data.std)
    variables = {"params": state.params, "batch_stats": stats}
    both: Any = [program.model.apply(variables, x) for x in (inputs, inputs[:, :, ::-1])]
    logits = np.float64(both[0]) + np.float64(both[1])
    guesses = np.argsort(-logits, axis=1)
    assert int(found.top1) == (guesses[:, 0] == data.test_labels).sum()
    assert int(found.top5) == (guesses[:, :5] == data.test_labels[:, None]).sum()
    assert np.any(both[0] != both[1])


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_ends_as_one_never_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = tiny.arrays(n_train=32)
    images = {n: enlarged(made[n]) for n in ("train_images", "test_images")}
    data = tiny.write_npz(tmp_path / "tiny.npz", **(made | images))
    arguments = [*tiny.flags(**OPTIONS), f"--dataset={data}"]
    assert tiny.command(*arguments, f"--out={tmp_path / 'whole'}") == 0

    def stop() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        tiny.at_step(patch, 3, stop)
        assert tiny.command(*arguments, f"--out={tmp_path / 'cut'}") == 130
    assert tiny.resume(tmp_path / "cut") == 0
    tiny.assert_same_outcome(tmp_path / "cut", tmp_path / "whole")


def test_images_too_small_for_it_are_refused():
    with pytest.raises(InputError, match="8x8 pixels are too small for ResNet-9"):
        build_program(resolve(Config(model="resnet9", batch_size=8), "tiny"), tiny.dataset())


def test_an_engine_that_cannot_mask_a_convolution_is_refused_before_the_dense_epochs():
    options: dict[str, Any] = OPTIONS | {
        "activation": None,
        "gradient": None,
        "gradient_method": None,
    }
    options["engine"] = "mosaic"
    settings = resolve(Config(**options), "x")
    with pytest.raises(InputError, match=r"engine 'mosaic' masks .* conv_2/kernel is another"):
        build_program(settings, dataset())
