"""The words for a run say what sets it apart, once, and leave out what follows from that."""

import pytest
import synthetic_study as synthetic

from sparsemlp.studies.labels import Labels, differing_options
from sparsemlp.studies.study import read_study

MASKED = {"block": "32x32", "ratio": 0.8, "epochs": 20}


@pytest.fixture
def labelled(tmp_path):
    """Writes runs by name and returns them by name with their labels."""

    def write(**options):
        for name, changes in options.items():
            synthetic.write_run(tmp_path / name, synthetic.settings(**changes), 1)
        runs = {run.name: run for run in read_study(tmp_path).runs}
        return runs, Labels(list(runs.values()))

    return write


def test_an_option_that_follows_from_another_is_not_said_beside_it(labelled):
    runs, labels = labelled(
        plain=MASKED, faster={**MASKED, "lr": 0.02}, own={**MASKED, "warmup_lr": 0.1}
    )
    assert labels.variant(runs["plain"]) == "lr=0.01"
    assert labels.label(runs["faster"]) == "32x32 at 0.8, masked backward (lr=0.02)"
    assert labels.variant(runs["own"]) == "lr=0.01, warmup_lr=0.1"


def test_what_a_run_does_not_do_is_not_said_beside_what_others_do(labelled):
    runs, labels = labelled(
        plain=MASKED, averaged={**MASKED, "ema": 0.9}, held={**MASKED, "hold_out": 0.1}
    )
    assert labels.label(runs["plain"]) == "32x32 at 0.8, masked backward"
    assert labels.label(runs["averaged"]) == "32x32 at 0.8, masked backward (ema=0.9)"
    assert labels.variant(runs["held"]) == "hold_out=0.1"


def test_what_the_words_of_a_masking_tell_is_not_told_again(labelled):
    runs, labels = labelled(plain=MASKED, reset={**MASKED, "moments": "reset"})
    assert labels.label(runs["reset"]).count("reset") == 1
    assert labels.other_options(runs["reset"]) == "moments=reset"
    assert labels.other_options(runs["plain"]) == ""


def test_the_first_masked_epoch_is_said_where_it_was_chosen(labelled):
    runs, labels = labelled(
        short=MASKED, long={**MASKED, "epochs": 200}, late={**MASKED, "mask_start_epoch": 5}
    )
    assert labels.variant(runs["short"]) == "epochs=20"
    assert labels.variant(runs["long"]) == "epochs=200"
    assert labels.variant(runs["late"]) == "mask_start_epoch=5, epochs=20"


def test_options_that_a_model_string_replaces_do_not_set_others_apart(labelled):
    string = {"config": "ResMLP5 @ XChannel = masked 0.8 (32, 32);", "epochs": 20}
    runs, labels = labelled(options=MASKED, string=string)
    assert labels.variant(runs["options"]) == "XChannel XPatch masked"
    assert labels.variant(runs["string"]) == "XChannel masked"
    assert labels.label(runs["options"]) == "32x32 at 0.8, masked backward"


def test_another_depth_of_a_model_string_is_said(labelled):
    string = {
        "config": "ResMLP3 @ XPatch = masked 0.8 (32, 32); XChannel = masked 0.8 (32, 32);",
        "epochs": 20,
    }
    runs, labels = labelled(options=MASKED, string=string)
    assert [labels.variant(runs[name]) for name in ("options", "string")] == ["depth 5", "depth 3"]


def test_a_dense_run_says_nothing_of_masks(labelled):
    runs, labels = labelled(
        dense={"epochs": 20},
        masked=MASKED,
        late={**MASKED, "mask_start_epoch": 0, "mix_probability": 0.0},
    )
    assert labels.label(runs["dense"]) == "dense (mix_probability=1.0)"
    assert labels.other_options(runs["dense"]) == "mix_probability=1.0"


def test_what_follows_from_the_model_is_not_said_beside_it(labelled):
    runs, labels = labelled(
        tokens=MASKED,
        pixels={**MASKED, "model": "resnet9", "width": 16, "block": "16x16"},
        gradients={"epochs": 20, "model": "resnet9", "width": 16, "gradient": "2:4"},
        slow={"epochs": 20, "model": "resnet9", "width": 16, "lr": 0.1},
    )
    assert labels.variant(runs["tokens"]) == "model=resmlp"
    assert labels.variant(runs["pixels"]) == "model=resnet9, lr=0.5, width=16"
    assert labels.other_options(runs["slow"]) == "model=resnet9, lr=0.1, width=16"
    assert (
        labels.other_options(runs["gradients"]) == "model=resnet9, gradient=2:4, lr=0.5, width=16"
    )


def test_options_that_differ_are_named_in_their_order(labelled):
    runs, _ = labelled(a=MASKED, b={**MASKED, "seed": 1, "block": "2x2", "checkpoint_every": 9.0})
    assert differing_options(runs.values()) == ("block", "seed")
    assert differing_options([]) == ()


def test_other_rules_of_model_strings_set_runs_apart(labelled):
    layers = "ResMLP5 @ XPatch = masked 0.8 (32, 32){0}; XChannel = masked 0.8 (32, 32){0}{1};"
    runs, labels = labelled(
        plain={"config": layers.format("", "")},
        rules={"config": layers.format(" + sparse 0.7 (8, 8)", " + gradient 2:4")},
        option={"block": "32x32", "ratio": 0.8, "activation": "mean:2x2"},
    )
    assert labels.variant(runs["plain"]) == ""
    assert labels.variant(runs["rules"]) == (
        "activations 8x8:0.7 in XChannel XPatch, gradients 2:4 magnitude in XChannel"
    )
    assert labels.variant(runs["option"]) == "activations mean:2x2 in XChannel XPatch"


def test_a_rule_without_a_mask_says_its_layers(labelled):
    runs, labels = labelled(
        tokens={"activation": "8x8:0.8", "mask_layers": "XPatch"},
        all={"activation": "8x8:0.8", "gradient": "2:4"},
    )
    assert labels.label(runs["tokens"]) == "dense, activations 8x8:0.8 in XPatch"
    assert labels.label(runs["all"]) == "dense, activations 8x8:0.8, gradients 2:4 magnitude"


def test_runs_on_images_of_one_name_say_which_they_were(tmp_path):
    for name in ("real", "transcode"):
        for ratio in (0.0, 0.8):
            run = synthetic.settings(block="32x32" if ratio else None, ratio=ratio, epochs=1)
            folder = synthetic.write_run(tmp_path / f"{name}{ratio}", run)
            synthetic.retrain_on("cifar10 (JPEG)" if name == "transcode" else "cifar10", folder)
    study = read_study(tmp_path)
    labels = Labels(study.runs)
    found = {run.name: (labels.label(run), labels.other_options(run)) for run in study.runs}
    assert found["real0.0"] == ("dense", "")
    assert found["transcode0.0"] == ("dense (on cifar10 (JPEG))", "on cifar10 (JPEG)")
    masked = {run.name: labels.variant(run) for run in study.runs if run.masking}
    assert masked == {"real0.8": "", "transcode0.8": "on cifar10 (JPEG)"}


def test_layers_and_depth_are_told_once(labelled):
    runs, labels = labelled(
        channels={**MASKED, "mask_layers": "XChannel", "depth": 4},
        tokens={**MASKED, "mask_layers": "XPatch", "depth": 3},
        string={"config": "ResMLP2 @ XChannel = masked 0.8 (32, 32);", "epochs": 20},
    )
    assert labels.variant(runs["channels"]) == "depth 4, XChannel masked"
    assert labels.variant(runs["tokens"]) == "depth 3, XPatch masked"
    assert labels.variant(runs["string"]) == "depth 2, XChannel masked"


def test_runs_of_one_mask_that_differ_in_other_rules_say_so_beside_them(labelled):
    masked = "ResMLP5 @ XChannel = masked 0.8 (32, 32)"
    texts = [f"{masked};", f"{masked} + gradient 2:4;", f"{masked} + sparse 0.5 (8, 8);"]
    runs, labels = labelled(**{f"run{i}": {"config": text} for i, text in enumerate(texts)})
    told = [labels.other_options(runs[f"run{i}"]) for i in range(3)]
    assert told == [f"config={text}" for text in texts]


def test_a_model_string_that_says_block_and_ratio_alone_is_not_told_beside_them(labelled):
    texts = [f"ResMLP5 @ XChannel = masked {ratio} (32, 32);" for ratio in (0.5, 0.8)]
    runs, labels = labelled(**{f"run{i}": {"config": text} for i, text in enumerate(texts)})
    assert [labels.other_options(run) for run in runs.values()] == ["", ""]


def test_masks_that_differ_by_layer_have_options_like_others(labelled):
    by_layer = "ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (1, 1);"
    own = {"config": by_layer, "epochs": 20}
    runs, labels = labelled(plain=own, later={**own, "mask_start_epoch": 12})
    assert "mask_start_epoch=12" in labels.label(runs["later"])
    assert labels.label(runs["later"]) != labels.label(runs["plain"])
    assert "mask_start_epoch=12" in labels.other_options(runs["later"])


def test_layers_that_a_model_string_spares_are_said(labelled):
    channels = "ResMLP5 @ XChannel = masked 0.8 (32, 32);"
    spared = f"{channels} XChannel1 = masked 0 (32, 32)"
    texts = [
        channels,
        f"{spared};",
        f"{spared} + gradient 2:4;",
        f"{channels} XChannel1 = gradient 2:4;",
        "ResMLP5 @ XPatch = masked 0 (32, 32); XChannel = masked 0.8 (32, 32);",
    ]
    runs, labels = labelled(**{f"run{i}": {"config": text} for i, text in enumerate(texts)})
    assert [labels.variant(runs[f"run{i}"]) for i in range(len(texts))] == [
        "XChannel masked",
        "XChannel but XChannel1 masked",
        "XChannel but XChannel1 masked, gradients 2:4 magnitude in XChannel1",
        "XChannel masked, gradients 2:4 magnitude in XChannel1",
        "XChannel masked",
    ]
