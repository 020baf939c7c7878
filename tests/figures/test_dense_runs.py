"""The measure of a masked run is a dense run of the same setting."""

import synthetic_study as synthetic

from sparsemlp.figures.dense_runs import dense_runs, dense_top1, named_dense_runs
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_dense_runs_of_the_same_setting_are_found(small):
    masked = [run for run in small.finished if run.masking]
    found = dense_runs(small, masked)
    assert found is not None
    assert [run.name for run in found.runs] == ["dense-seed0", "dense-seed1"]
    assert dense_top1(small, masked) == found.top1()


def test_the_group_of_most_seeds_is_the_measure(tmp_path):
    """Groups that differ in what changes no result, which a masked run need not share."""
    for seed, engine in ((0, "auto"), (1, "reference"), (2, "reference")):
        run = synthetic.settings(epochs=1, seed=seed, engine=engine)
        synthetic.write_run(tmp_path / str(seed), run)
    synthetic.write_run(tmp_path / "a", synthetic.settings(block="2x2", ratio=0.5, epochs=1))
    study = read_study(tmp_path)
    found = dense_runs(study, [run for run in study.runs if run.is_masked])
    assert found is not None
    assert [run.name for run in found.runs] == ["1", "2"]


def test_a_dense_run_of_other_epochs_is_no_measure(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=2))
    synthetic.write_run(tmp_path / "b", synthetic.settings(block="2x2", ratio=0.5, epochs=1))
    study = read_study(tmp_path)
    assert dense_top1(study, [study.runs[1]]) is None
    assert dense_top1(study, [study.runs[0]]) is not None


def test_a_dense_run_of_another_depth_or_training_is_no_measure(tmp_path):
    for name, changes in (
        ("a", {"depth": 2}),
        ("b", {"ema": 0.9}),
        ("c", {"config": "ResMLP5"}),
        ("masked", {"block": "2x2", "ratio": 0.5, "budget": "erk", "mask_start_epoch": 0}),
    ):
        synthetic.write_run(tmp_path / name, synthetic.settings(epochs=1, **changes))
    study = read_study(tmp_path)
    found = dense_runs(study, [study.runs[-1]])
    assert found is not None
    assert [run.name for run in found.runs] == ["c"]


def test_a_dense_run_on_images_of_another_size_is_no_measure(tmp_path):
    for name, changes in (
        ("a", {"image_size": 112}),
        ("b", {"image_size": 224}),
        ("masked", {"image_size": 224, "block": "2x2", "ratio": 0.5}),
    ):
        own = {"model": "resmlp_imagenet", "dataset": "imagenet2012", "epochs": 1} | changes
        synthetic.write_run(tmp_path / name, synthetic.settings(**own))
    study = read_study(tmp_path)
    found = dense_runs(study, [study.runs[-1]])
    assert found is not None
    assert [run.name for run in found.runs] == ["b"]


def test_dense_runs_of_several_settings_say_which_one_they_measure(small, tmp_path):
    for mixing in (0.0, 1.0):
        own = {"epochs": 1, "mix_probability": mixing}
        synthetic.write_run(tmp_path / f"dense{mixing}", synthetic.settings(**own))
        masked = synthetic.settings(block="2x2", ratio=0.5, **own)
        synthetic.write_run(tmp_path / f"masked{mixing}", masked)
    study = read_study(tmp_path)
    runs = [run for run in study.runs if run.masking]
    found = named_dense_runs(study, runs)
    assert list(found) == ["dense model, mix_probability=0.0", "dense model, mix_probability=1.0"]
    assert dense_runs(study, runs) is None
    assert list(named_dense_runs(study, runs[:1])) == ["dense model"]
    assert dense_top1(study, runs[:1]) is not None
    assert list(named_dense_runs(small, [r for r in small.finished if r.masking])) == [
        "dense model"
    ]


def test_a_dense_run_on_other_images_of_that_name_is_no_measure(tmp_path):
    own = {"epochs": 1}
    synthetic.write_run(tmp_path / "a", synthetic.settings(**own))
    masked = synthetic.settings(block="2x2", ratio=0.5, **own)
    synthetic.retrain_on("cifar10 (JPEG)", synthetic.write_run(tmp_path / "masked", masked))
    study = read_study(tmp_path)
    assert dense_runs(study, [study.runs[1]]) is None
    folder = synthetic.write_run(tmp_path / "b", synthetic.settings(**own))
    synthetic.retrain_on("cifar10 (JPEG)", folder)
    study = read_study(tmp_path)
    found = dense_runs(study, [run for run in study.runs if run.masking])
    assert found is not None
    assert [run.name for run in found.runs] == ["b"]
