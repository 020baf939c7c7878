"""What a configuration comes to is known without training it, and told as training would."""

import dataclasses

import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.data import ImageDataset
from sparsemlp.errors import InputError
from sparsemlp.sweeps.rehearsal import outline_of, rehearse, training_of

SMALL = Config(dataset="digits", block="4x4", ratio=0.5, dim=8, depth=1, expansion=2, epochs=3)
TWO_RATIOS = {
    "config": "ResMLP1 @ XPatch = masked 0.5 (4, 4); XChannel = masked 0.8 (4, 4);",
    **dict.fromkeys(("block", "ratio", "depth")),
}


def test_a_configuration_that_fits_gives_its_settings():
    settings = rehearse(SMALL)
    assert (settings.dataset, settings.block, settings.epochs) == ("digits", "4x4", 3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"block": "5x4"}, "5x4"),
        ({"dataset": "none.npz"}, "none.npz"),
        ({"lr": -1.0}, "--lr"),
        ({"warmup_lr": 0.1}, "--warmup-lr"),
        ({"dropped_decay": 0.1}, "--dropped-decay"),
        ({"activation": "3x3:0.5"}, "3x3"),
        ({"batch_size": 1400, "hold_out": 0.1}, "larger than the 1293 .* that --hold-out leaves"),
        ({"hold_out": 0.0001}, "--hold-out=0.0001: that share of the 1437"),
        ({**TWO_RATIOS, "budget": "erk"}, "one ratio"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        rehearse(dataclasses.replace(SMALL, **wrong))


def test_a_file_that_is_called_digits_is_not_those_of_scikit_learn(tmp_path):
    path = tiny.write_npz(tmp_path / "digits.npz")
    config = Config(dataset=str(path), block="4x4", ratio=0.5, batch_size=8, mask_start_epoch=50)
    assert rehearse(config).epochs == 200


def test_a_folder_of_data_that_is_not_there_is_refused_where_it_is_known(tmp_path):
    lost = dataclasses.replace(SMALL, data_dir=tmp_path / "lost")
    with pytest.raises(InputError, match=r"lost does not exist: pass an existing --data-dir"):
        rehearse(lost)
    assert rehearse(lost, is_remote=True).data_dir == tmp_path / "lost"


def test_the_outline_of_a_named_set_has_its_shapes_and_no_memory():
    outline = outline_of(dataclasses.replace(SMALL, dataset="cifar10"))
    assert isinstance(outline, ImageDataset)
    assert outline.train_images.shape == (50_000, 32, 32, 3)
    assert not any(outline.train_images.strides)


def test_a_dense_training_is_the_same_whatever_its_block():
    dense = dataclasses.replace(SMALL, ratio=0.0)
    other = dataclasses.replace(dense, block="8x8", mask_start_epoch=1)
    assert training_of(dense) == training_of(other)
    assert training_of(SMALL) != training_of(dataclasses.replace(SMALL, block="8x8"))
    assert training_of(SMALL) != training_of(dense)


def test_where_a_run_leaves_its_files_makes_no_other_training():
    assert training_of(SMALL) == training_of(dataclasses.replace(SMALL, checkpoint_every=1.0))
    assert training_of(SMALL) != training_of(dataclasses.replace(SMALL, seed=1))
