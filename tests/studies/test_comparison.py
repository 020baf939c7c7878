"""Differences are given where the setting is the thesis', else the reason why not."""

import pytest
import synthetic_study as synthetic

from sparsemlp.studies.comparison import compare
from sparsemlp.studies.study import Study, read_study
from sparsemlp.studies.study_run import StudyRun

MASKED = {"block": "32x32", "ratio": 0.8}


def study_of(folder, *runs) -> Study:
    for number, run in enumerate(runs):
        synthetic.write_run(folder / str(number), run)
    return read_study(folder)


def accuracies(study: Study):
    found = [c for c in compare(study) if c.published.quantity == "test_top1" and c.value]
    return {(c.published.text, c.run): c for c in found}


def test_a_difference_is_ours_minus_the_published_number_over_the_seeds(tmp_path):
    runs = [synthetic.settings(**MASKED, seed=seed) for seed in (0, 1)]
    study = study_of(tmp_path, *runs)
    (found,) = accuracies(study).values()
    mean = sum(run.last("test_top1") for run in study.runs) / 2
    assert found.value == pytest.approx(mean)
    assert found.difference == pytest.approx(mean - 0.7519)
    assert found.n_runs == 2
    assert found.spread > 0


def test_the_costs_of_the_same_setting_are_compared_once_whatever_the_backward(tmp_path):
    runs = [synthetic.settings(**MASKED, backward=b) for b in ("masked", "dense")]
    compared = compare(study_of(tmp_path, *runs))
    (moved,) = [
        c for c in compared if c.published.quantity == "thesis_movement_gb" and c.published.block
    ]
    assert moved.difference == pytest.approx(278.0 - 277, abs=0.1)
    assert [c.published.backward for c in compared if c.value and c.published.backward] == [
        "masked",
        "dense",
    ]


def test_the_costs_of_another_budget_are_not_those_of_the_thesis(tmp_path):
    run = synthetic.settings(**MASKED, budget="erk")
    (moved,) = [
        c
        for c in compare(study_of(tmp_path, run))
        if c.published.quantity == "thesis_movement_gb" and c.published.block
    ]
    assert moved.value is not None
    assert moved.difference is None
    assert "budget is erk, the thesis' is uniform" in moved.note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 20}, "not comparable: epochs is 20, the thesis' is 200"),
        ({"dim": 128}, "dim is 128, the thesis' is 64"),
        ({"lr": 0.02}, "lr is 0.02"),
        ({"warmup_epochs": 7}, "warmup_epochs is 7, the thesis' is 5"),
        ({"moments": "reset"}, "moments is reset"),
        ({"dataset": "digits"}, "the data set is"),
        ({"activation": "8x8:0.5"}, "activation is 8x8:0.5"),
    ],
)
def test_another_setting_has_no_difference_and_says_why(tmp_path, changes, words):
    (found,) = accuracies(study_of(tmp_path, synthetic.settings(**(MASKED | changes)))).values()
    assert found.difference is None
    assert words in found.note


def test_imagenet_is_compared_with_the_numbers_of_imagenet(tmp_path):
    own = {"model": "resmlp_imagenet", "dataset": "imagenet2012"}
    study = study_of(
        tmp_path,
        synthetic.settings(**own, **MASKED),
        synthetic.settings(**own),
        synthetic.settings(**own, **MASKED, epochs=3),
    )
    found = [c for c in compare(study) if c.published.model == "resmlp_imagenet"]
    given = {(c.published.text, c.run): c.difference is not None for c in found}
    assert [text for (text, _), is_given in given.items() if is_given] == ["40.60%", "16.51%"]
    assert len(given) == 3
    (other,) = [c for c in found if c.difference is None]
    assert "epochs is 3, the thesis' is 90" in other.note


def test_a_study_without_imagenet_is_not_told_what_it_lacks_of_it(tmp_path):
    compared = compare(study_of(tmp_path, synthetic.settings(**MASKED, epochs=2)))
    assert {c.published.model for c in compared} == {"resmlp"}


def test_score_and_seed_are_free(tmp_path):
    runs = [synthetic.settings(**MASKED), synthetic.settings(**MASKED, score="spectral", seed=1)]
    found = accuracies(study_of(tmp_path, *runs))
    assert len(found) == 2
    assert all(comparison.difference is not None for comparison in found.values())


def test_the_dense_number_is_a_bound(tmp_path):
    (found,) = accuracies(study_of(tmp_path, synthetic.settings(mask_start_epoch=3))).values()
    assert found.difference == pytest.approx(0.01)
    assert "bound: kept" in found.note


def test_a_number_without_a_run_is_listed_without_a_value(tmp_path):
    study = study_of(tmp_path, synthetic.settings(epochs=1))
    empty = [c for c in compare(study) if c.value is None]
    assert len(empty) == len(compare(study)) - 2
    assert {c.note for c in empty} == {"no finished run of this kind"}


def test_a_model_string_is_compared_as_the_options_it_stands_for(tmp_path):
    text = "ResMLP5 @ XPatch = masked 0.8 (32, 32); XChannel = masked 0.8 (32, 32);"
    (found,) = accuracies(study_of(tmp_path, synthetic.settings(config=text))).values()
    assert found.difference is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ResMLP12 @ XPatch = masked 0.8 (32, 32); XChannel = masked 0.8 (32, 32);", "depth is 12"),
        (
            "ResMLP5 @ XChannel = masked 0.8 (32, 32);",
            "masked layers are XChannel1, XChannel2",
        ),
        (
            "ResMLP5 @ XPatch = masked 0 (32, 32); XChannel = masked 0.8 (32, 32);",
            "masked layers are XChannel1, XChannel2",
        ),
        (
            "ResMLP5 @ XPatch = masked 0.8 (32, 32); "
            "XChannel = masked 0.8 (32, 32) + sparse 0.5 (8, 8);",
            "activations or gradients are pruned",
        ),
    ],
)
def test_a_model_string_of_another_model_is_not_compared(tmp_path, text, why):
    study = study_of(tmp_path, synthetic.settings(config=text))
    (found,) = accuracies(study).values()
    assert found.difference is None
    assert why in found.note
    costs = [c for c in compare(study) if c.value and c.published.quantity != "test_top1"]
    assert all((c.difference is None) == ("pruned" not in why) for c in costs if c.published.block)


def test_costs_of_a_run_that_holds_images_out_are_not_compared(tmp_path):
    run = synthetic.settings(block="32x32", ratio=0.8, hold_out=0.1)
    assert StudyRun("a", "missing", settings=run).steps_per_epoch == 352
    found = [c for c in compare(study_of(tmp_path, run)) if c.value is not None]
    assert found
    assert all("hold_out is 0.1" in c.note and c.difference is None for c in found)


def test_how_it_was_computed_does_not_matter(tmp_path):
    run = synthetic.settings(**MASKED, devices=1, remat=True, accumulate=2)
    (found,) = accuracies(study_of(tmp_path, run)).values()
    assert found.difference is not None
