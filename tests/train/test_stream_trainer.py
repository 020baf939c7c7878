"""Training on images of the disk: the batches of the pipeline, each once, on one device or many."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import launch
import numpy as np
import pytest
import tiny
import tiny_stream
from tiny_images import PER_CLASS, write_folder

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import Settings, resolve
from sparsemlp.data.imagenet import (
    ImageSet,
    ImageSource,
    hold_out_images,
    open_image_set,
    training_pipeline,
)
from sparsemlp.data.imagenet.decoding import decode_validation
from sparsemlp.data.imagenet.folder import FolderSource
from sparsemlp.errors import InputError
from sparsemlp.schedule import DENSE, MASKED
from sparsemlp.train.evaluation import Evaluation, evaluate
from sparsemlp.train.stream_trainer import StreamTrainer
from sparsemlp.train.train_state import TrainState, initial_state
from sparsemlp.train.training import train_step

N_TRAIN, N_VALIDATION = (sum(counts) for counts in PER_CLASS.values())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    folder = write_folder(tmp_path_factory.mktemp("images") / "tiny")
    return open_image_set(str(folder), image_size=tiny_stream.IMAGE_SIZE)


def folder_of(images: ImageSet) -> str:
    assert isinstance(images.train, FolderSource)
    return str(images.train.folder.parent)


def settings(images: ImageSet, **changes: Any) -> Settings:
    options: dict[str, Any] = tiny_stream.RUN | {"dataset": folder_of(images)} | changes
    config = Config(**options)
    return resolve(config, images.name)


def trainer_of(images: ImageSet, chosen: Settings) -> StreamTrainer:
    training, held_out = hold_out_images(images, chosen.hold_out)
    return StreamTrainer(
        build_program(chosen, training),
        training,
        chosen.batch_size,
        held_out,
        n_workers=0,
        largest_unreadable_share=chosen.unreadable,
    )


def trained(trainer: StreamTrainer, seconds: float, first: int = 0, last: int = 6) -> TrainState:
    """The state after the steps from one to before another."""
    state, step = initial_state(trainer._program), 0
    while step < last:
        epoch, position = divmod(step, trainer.steps_per_epoch)
        wanted = seconds if step >= first else 0.0
        state, n_steps, healthy = trainer.train(
            state, epoch, position, seconds=wanted, phase=MASKED
        )
        assert healthy
        step += n_steps
    return state


def test_two_epochs_are_the_steps_on_the_batches_of_the_pipeline(images: ImageSet):
    """The last batch of 23 images holds 7: its step is one on 7 images, in the pipeline's order."""
    chosen = settings(images)
    with trainer_of(images, chosen) as trainer:
        assert trainer.steps_per_epoch == 3
        found = trained(trainer, seconds=1e9)
    program = trainer.program(MASKED)
    expected = initial_state(program)
    step = jax.jit(train_step, static_argnums=0, static_argnames="masked")
    with training_pipeline(
        images.train, batch_size=8, image_size=8, seed=chosen.seed, n_workers=0
    ) as batches:
        for _ in range(6):
            batch = next(batches)
            expected = step(program, expected, batch.images, batch.labels, masked=True)
    assert int(found.totals["images"]) == 2 * N_TRAIN
    tolerance = 6 * 64 * np.finfo(np.float32).eps
    for one, other in zip(
        jax.tree.leaves(found.params), jax.tree.leaves(expected.params), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_however_an_epoch_is_cut_the_state_is_the_same_bit_for_bit(images: ImageSet):
    chosen = settings(images)
    with trainer_of(images, chosen) as whole, trainer_of(images, chosen) as single:
        tiny.assert_same_bits(trained(whole, seconds=1e9), trained(single, seconds=0.0))


def test_a_trainer_that_begins_within_an_epoch_takes_the_batches_from_there_on(images: ImageSet):
    chosen = settings(images)
    with trainer_of(images, chosen) as trainer:
        expected = trained(trainer, seconds=0.0)
        state = trained(trainer, seconds=0.0, last=4)
        # The pipeline stands elsewhere than at the first step: it is opened anew.
        assert int(state.step) == 4
    with trainer_of(images, chosen) as later:
        state, _, _ = later.train(state, 1, 1, seconds=0.0, phase=MASKED)
        state, _, _ = later.train(state, 1, 2, seconds=0.0, phase=MASKED)
    tiny.assert_same_bits(state, expected)


def test_an_evaluation_counts_every_image_once_and_no_filler(images: ImageSet):
    """11 images in batches of 8: five rows are fillers. Counting them would show in each sum."""
    with trainer_of(images, settings(images, mask_start_epoch=3)) as trainer:
        state = initial_state(trainer._program)
        found = trainer.evaluate(state, DENSE)
        again = trainer.evaluate(state, DENSE)
    assert int(found.images) == N_VALIDATION
    tiny.assert_same_bits(jax.tree.leaves(found), jax.tree.leaves(again))
    whole = evaluated_whole(trainer, state, images.validation)
    assert (int(found.top1), int(found.top5)) == (int(whole.top1), int(whole.top5))
    np.testing.assert_allclose(found.loss, whole.loss, rtol=64 * np.finfo(np.float32).eps)


def evaluated_whole(trainer: StreamTrainer, state: TrainState, source: ImageSource) -> Evaluation:
    """A dense evaluation of all images of a source in one batch."""
    every = (source.read(index) for index in range(len(source)))
    pixels, labels = zip(
        *((decode_validation(data, tiny_stream.IMAGE_SIZE), label) for data, label in every),
        strict=True,
    )
    return evaluate(
        trainer.program(DENSE),
        state.params,
        state.batch_stats,
        state.memory,
        np.stack(pixels)[None],
        np.asarray(labels, np.int32)[None],
        masked=False,
    )


def test_held_out_images_give_their_mean_loss_and_are_not_trained_on(images: ImageSet):
    """12 of 23 are held out, two batches of 8 with four fillers; the rest are two steps."""
    chosen = settings(images, mask_start_epoch=3, hold_out=0.5)
    training, held_out = hold_out_images(images, 0.5)
    assert held_out is not None
    with trainer_of(images, chosen) as trainer:
        state = trained(trainer, seconds=0.0, last=2)
        assert trainer.steps_per_epoch == 2
        assert int(state.totals["images"]) == training.n_train == 11
        found = trainer.validate(state, DENSE)
        assert found is not None
        assert found == trainer.validate(state, DENSE)
        assert int(trainer.evaluate(state, DENSE).images) == N_VALIDATION
        assert set(trainer.measures()) >= {"held_out_unreadable", "validation_unreadable"}
    whole = evaluated_whole(trainer, state, held_out)
    np.testing.assert_allclose(
        found, float(whole.loss) / len(held_out), rtol=64 * np.finfo(np.float32).eps
    )
    with trainer_of(images, settings(images)) as without:
        assert without.validate(state, DENSE) is None


def test_unreadable_images_are_counted_in_the_record_and_in_no_accuracy(tmp_path: Path):
    folder = write_folder(tmp_path / "tiny")
    for split in PER_CLASS:
        (folder / split / "n01" / "n01_0001.JPEG").write_bytes(b"no image")
    damaged = open_image_set(str(folder), image_size=tiny_stream.IMAGE_SIZE)
    with trainer_of(damaged, settings(damaged, unreadable=0.2)) as trainer:
        state = initial_state(trainer._program)
        with pytest.warns(UserWarning, match=r"n01_0001\.JPEG cannot be read"):
            state = trained(trainer, seconds=0.0, last=3)
        with pytest.warns(UserWarning, match=r"n01_0001\.JPEG cannot be read"):
            found = trainer.evaluate(state, MASKED)
        measures = trainer.measures()
    assert int(state.totals["images"]) == N_TRAIN
    assert int(found.images) == N_VALIDATION - 1
    assert measures["training_unreadable"] == measures["validation_unreadable"] == 1
    assert measures["seconds_waiting"] > 0
    assert trainer.measures()["seconds_waiting"] == 0


@pytest.mark.thorough(after=1)
@pytest.mark.filterwarnings("ignore:.* cannot be read")
@pytest.mark.parametrize("n_steps", [1, 2, 3])
def test_an_epoch_that_another_process_ends_has_its_counts_in_the_record(
    tmp_path: Path, n_steps: int
):
    folder = write_folder(tmp_path / "tiny")
    for name in ("n01_0000", "n01_0001", "n01_0002"):
        (folder / "train" / "n01" / f"{name}.JPEG").write_bytes(b"no image")
    damaged = open_image_set(str(folder), image_size=tiny_stream.IMAGE_SIZE)
    chosen = settings(damaged, unreadable=0.5)
    with trainer_of(damaged, chosen) as whole:
        trained(whole, seconds=0.0, last=3)
        expected = whole.measures()
    with trainer_of(damaged, chosen) as first:
        state = trained(first, seconds=0.0, last=n_steps)
        if n_steps == 3:
            assert first.measures()["training_unreadable"] == expected["training_unreadable"]
        counted = first.counted()
    with trainer_of(damaged, chosen) as second:
        second.go_on_from(counted)
        for step in range(n_steps, 6 if n_steps == 3 else 3):
            state, _, _ = second.train(state, *divmod(step, 3), seconds=0.0, phase=MASKED)
        found = second.measures()
    assert found["training_unreadable"] == expected["training_unreadable"] >= 2
    assert found["seconds_waiting"] >= counted["seconds_waiting"]


def test_a_set_without_a_readable_image_is_refused(tmp_path: Path):
    folder = write_folder(tmp_path / "tiny")
    for image in (folder / "val").rglob("*.JPEG"):
        image.write_bytes(b"no image")
    damaged = open_image_set(str(folder), image_size=tiny_stream.IMAGE_SIZE)
    with trainer_of(damaged, settings(damaged, unreadable=1.0)) as trainer:
        state = initial_state(trainer._program)
        with (
            pytest.warns(UserWarning, match="cannot be read"),
            pytest.raises(InputError, match=r"none of the .* validation images can be read"),
        ):
            trainer.evaluate(state, MASKED)


@pytest.mark.slow
def test_four_devices_give_the_losses_of_one_over_20_steps(images: ImageSet, tmp_path: Path):
    """The last batch, 7 images in 8 rows, is computed whole by every device."""
    folder = folder_of(images)
    done = subprocess.run(
        [sys.executable, __file__, folder],
        capture_output=True,
        text=True,
        env=launch.environment(devices=4),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    one, four = found
    tolerance = 20 * 64 * np.finfo(np.float32).eps
    np.testing.assert_allclose(four["losses"], one["losses"], rtol=tolerance)
    np.testing.assert_allclose(four["test_loss"], one["test_loss"], rtol=tolerance)
    assert four["test_images"] == one["test_images"] == N_VALIDATION
    assert len(set(one["losses"])) == 20


def losses(images: ImageSet, devices: int) -> dict[str, Any]:
    """The losses of 20 steps on so many devices, and what the evaluation after them finds."""
    from sparsemlp.distributed.parallel import replicate
    from sparsemlp.train.train_state import no_totals

    with trainer_of(images, settings(images, devices=devices, drop_path=0.2, depth=2)) as trainer:
        mesh = trainer.mesh
        assert (1 if mesh is None else mesh.size) == devices
        state = replicate(initial_state(trainer._program), mesh)
        found: list[float] = []
        for step in range(20):
            epoch, position = divmod(step, trainer.steps_per_epoch)
            state = dataclasses.replace(state, totals=replicate(no_totals(), mesh))
            state, _, _ = trainer.train(state, epoch, position, seconds=0.0, phase=MASKED)
            found.append(float(state.totals["loss"]) / int(state.totals["images"]))
        tested = trainer.evaluate(state, MASKED)
    return {
        "losses": found,
        "test_loss": float(tested.loss),
        "test_images": int(tested.images),
    }


if __name__ == "__main__":
    opened = open_image_set(sys.argv[1], image_size=tiny_stream.IMAGE_SIZE)
    print(json.dumps([losses(opened, devices) for devices in (1, len(jax.devices()))]))
