"""Maps are the counts over the masked steps, transposed to rows of outputs."""

import shutil

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.figures.kept_blocks import kept_blocks
from sparsemlp.studies.study import read_study

RUN = synthetic.settings(block="1x8", ratio=0.5, epochs=3, mask_start_epoch=1)
CHOSEN = Chosen("1x8", 0.5)


def test_a_map_shows_the_share_of_steps_by_outputs_and_inputs(tmp_path):
    folder = synthetic.write_run(tmp_path / "a", RUN)
    (drawing,) = kept_blocks(read_study(tmp_path), CHOSEN)
    with np.load(folder / "mask_activity.npz") as file:
        counts, steps = file["block_0/XChannel1/kernel"], int(file["masked_steps"])
    assert counts.shape == (64 // 8, 256)
    mesh = drawing.figure.axes[1].collections[0]
    np.testing.assert_allclose(np.asarray(mesh.get_array()), counts.T / steps)
    assert [axes.get_title() for axes in drawing.figure.axes[:3]] == [
        "XPatch",
        "XChannel1",
        "XChannel2",
    ]


def test_large_maps_are_images_and_small_ones_vectors(tmp_path):
    synthetic.write_run(tmp_path / "a", RUN)
    synthetic.write_run(
        tmp_path / "b", synthetic.settings(block="1x1", ratio=0.5, epochs=3, mask_start_epoch=1)
    )
    study = read_study(tmp_path)
    for chosen, is_image in ((CHOSEN, False), (Chosen("1x1", 0.5), True)):
        (drawing,) = kept_blocks(study, chosen)
        assert drawing.figure.axes[1].collections[0].get_rasterized() is is_image


def test_a_row_a_backward_pass_of_the_lowest_seed(tmp_path):
    for backward in ("dense", "masked"):
        for seed in (1, 0):
            run = synthetic.settings(
                block="1x8", ratio=0.5, epochs=2, backward=backward, seed=seed, mask_start_epoch=1
            )
            synthetic.write_run(tmp_path / f"{backward}{seed}", run)
    (drawing,) = kept_blocks(read_study(tmp_path), CHOSEN)
    labels = [axes.get_ylabel() for axes in drawing.figure.axes if "backward" in axes.get_ylabel()]
    assert labels == ["masked backward\noutputs", "dense backward\noutputs"]


def test_damaged_counts_of_the_lowest_seed_leave_those_of_the_next(tmp_path):
    for seed in (0, 1):
        run = synthetic.settings(block="1x8", ratio=0.5, epochs=2, seed=seed, mask_start_epoch=1)
        synthetic.write_run(tmp_path / str(seed), run)
    (tmp_path / "0" / "mask_activity.npz").write_bytes(b"x")
    (drawing,) = kept_blocks(read_study(tmp_path), CHOSEN)
    assert [axes.get_title() for axes in drawing.figure.axes[:1]] == ["XPatch"]


@pytest.mark.parametrize("damage", ["lost", "damaged", "no masked step"])
def test_without_counts_there_is_nothing_to_draw(tmp_path, damage):
    file = synthetic.write_run(tmp_path / "a", RUN) / "mask_activity.npz"
    if damage == "lost":
        file.unlink()
    elif damage == "damaged":
        file.write_bytes(b"PK\x03\x04")
    else:
        np.savez(file, masked_steps=0, dataset="x")
    with pytest.raises(NothingToDrawError, match=r"mask_activity\.npz"):
        list(kept_blocks(read_study(tmp_path), CHOSEN))
    with pytest.raises(NothingToDrawError, match="no run of 32x32"):
        list(kept_blocks(read_study(tmp_path), Chosen()))


def test_what_sets_a_row_apart_fits_beside_it(tmp_path):
    text = "ResMLP5 @ XPatch = masked 0.5 (1, 8) + sparse 0.5 (8, 8); XChannel = masked 0.5 (1, 8);"
    counts = synthetic.write_run(tmp_path / "counts", RUN) / "mask_activity.npz"
    for name, own in (("plain", text), ("pruned", text[:-1] + " + gradient 2:4;")):
        run = synthetic.settings(config=own, epochs=3, mask_start_epoch=1)
        shutil.copy(counts, synthetic.write_run(tmp_path / name, run) / counts.name)
    (drawing,) = kept_blocks(read_study(tmp_path), CHOSEN)
    told = [axes.get_ylabel().split("\n") for axes in drawing.figure.axes if axes.get_ylabel()]
    assert max(len(lines) for lines in told) > 4
    assert max(len(line) for lines in told for line in lines) <= 28
