"""Grid files as they are shipped and as they go wrong."""

from collections import Counter
from pathlib import Path

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid import Grid, read_grid
from sparsemlp.sweeps.run_names import run_name

CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"


def names(grid: Grid) -> list[str]:
    return [run_name(resolve(run.config, run.config.dataset), run.swept) for run in grid.runs]


def test_the_grid_of_the_thesis_has_its_342_runs():
    grid = read_grid(CONFIGS / "grid_cifar10.yaml")
    settings = [resolve(run.config, "cifar10") for run in grid.runs]
    found = {run_name(s, run.swept) for s, run in zip(settings, grid.runs, strict=True)}
    assert len(grid.runs) == len(found) == 19 * 9 * 2
    assert {s.backward for s in settings} == {"masked", "dense"}
    assert {s.ratio for s in settings} == {n / 10 for n in range(1, 10)}
    assert len({s.block for s in settings}) == 19
    thesis = resolve(Config(), "cifar10")
    for name in ("epochs", "batch_size", "lr", "warmup_lr", "weight_decay", "mixup", "cutmix"):
        assert {getattr(s, name) for s in settings} == {getattr(thesis, name)}


def test_the_case_study_is_dense_and_three_backwards_with_three_seeds():
    found = names(read_grid(CONFIGS / "case_study.yaml"))
    kinds = ("dense", "32x32-0.8-masked", "32x32-0.8-dense", "32x32-0.8-straight_through")
    assert found == [f"{kind}-seed{seed}" for kind in kinds for seed in (0, 1, 2)]


def test_the_grid_of_sr_ste_has_what_it_is_compared_with():
    found = names(read_grid(CONFIGS / "sr_ste.yaml"))
    kinds = (
        "dense",
        "32x32-0.8-masked-budget-uniform",
        "32x32-0.8-masked-budget-global",
        "32x32-0.8-straight_through-budget-global-dropped_decay-0.0002",
    )
    assert found == [f"{kind}-seed{seed}" for kind in kinds for seed in (0, 1, 2)]


def test_the_grid_of_weight_decay_has_every_run_with_it_and_without():
    grid = read_grid(CONFIGS / "weight_decay.yaml")
    settings = [run.config for run in grid.runs]
    decays = {decay: [c for c in settings if c.weight_decay == decay] for decay in (1e-4, 0.0)}
    assert [len(found) for found in decays.values()] == [9, 9]
    assert {(c.ratio, c.backward, c.seed) for c in decays[1e-4]} == {
        (c.ratio, c.backward, c.seed) for c in decays[0.0]
    }


def test_the_grid_of_pruned_gradients_has_every_setting_with_three_seeds():
    settings = [run.config for run in read_grid(CONFIGS / "pruned_gradients.yaml").runs]
    assert len(settings) == 39
    assert Counter(c.seed for c in settings) == {0: 13, 1: 13, 2: 13}
    alone = {(c.gradient_method, c.mask_layers) for c in settings if c.gradient is not None}
    assert len(alone) == 6
    strings = {c.config for c in settings if c.config is not None}
    assert sum("gradient 2:4" in text for text in strings) == 4


def test_the_short_grid_has_every_block_at_every_ratio_and_dense():
    dense, *masked = (run.config for run in read_grid(CONFIGS / "short_grid.yaml").runs)
    assert dense.ratio == 0
    assert len({(c.block, c.ratio) for c in masked}) == len(masked) == 7 * 4
    assert {(c.epochs, c.mask_start_epoch, c.weight_decay) for c in masked} == {(6, 1, 0.0)}


def test_the_grid_without_mixing_compares_the_same_training():
    grid = read_grid(CONFIGS / "no_mixing.yaml")
    configs = [run.config for run in grid.runs]
    found = [(c.config is None, c.backward, c.score) for c in configs]
    kinds = [
        (True, "masked", "l2"),
        (False, "masked", "l2"),
        (False, "straight_through", "l2"),
        (False, "straight_through", "gradient"),
    ]
    assert found == [kind for kind in kinds for _ in range(3)]
    assert {(c.epochs, c.mix_probability, c.weight_decay) for c in configs} == {(200, 0, 0)}


def test_the_smoke_test_needs_no_download():
    grid = read_grid(CONFIGS / "smoke.yaml")
    assert {run.config.dataset for run in grid.runs} == {"digits"}


def test_all_problems_of_a_file_are_told_together(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text(
        "hp:\n  block: [32x32, 7]\n  ratio: [0.5, 2]\n  blok: [1]\nfixed:\n  epochs: many\n"
        "meta:\n  run: cloud\n  mode: random\nsbatch:\n  time: soon\n  array: 1-3\n"
    )
    with pytest.raises(InputError) as caught:
        read_grid(file)
    heading, *lines = str(caught.value).splitlines()
    assert f"{file} has 8 problems, nothing was started" in heading
    at = [int(line.strip().removeprefix(f"{file}:").split(":")[0]) for line in lines]
    assert at == [2, 3, 4, 6, 8, 9, 11, 12]


def test_launcher_and_job_name_come_from_meta(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text("meta: {run: slurm, prefix: a b}\nfixed: {dataset: digits}\n")
    grid = read_grid(file)
    assert (grid.launcher, grid.prefix) == ("slurm", "a b")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    file = tmp_path / "grid.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=f"{file} cannot be read"):
        read_grid(file)
