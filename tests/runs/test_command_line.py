"""Every bad input is one clear line and exit code 2, and leaves nothing behind."""

import dataclasses
import json
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import to_json
from sparsemlp.configuration.settings import resolve
from sparsemlp.errors import InputError
from sparsemlp.runs import command_line

data = tiny.data


@pytest.fixture
def started(data: Path, tmp_path: Path) -> Path:
    """A run that was started and killed before it had saved anything."""
    out = tmp_path / "started"
    out.mkdir()
    chosen = Config(**(tiny.RUN | {"dataset": str(data), "lr": 0.02}))
    (out / "config.json").write_text(to_json(resolve(chosen, "tiny")))
    return out


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that was printed."""
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    return line


MODEL_STRING = "--config=ResMLP1 @ XPatch = masked 0.5 (2, 2);"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--block=32x"], "'32x'"),
        (["--block=3x4"], "3x4"),
        (["--block=2x32"], "2x32"),
        (["--ratio=1"], "1.0"),
        (["--ratio=-0.1"], "-0.1"),
        (["--ratio=nan"], "nan"),
        (["--engine=cuda"], "'cuda'"),
        (["--engine=mosaic", "--mask-start-epoch=2"], "'mosaic' cannot run here"),
        (["--engine=triton", "--mask-start-epoch=2"], "'triton' cannot run here"),
        (["--backward=sparse"], "'sparse'"),
        (["--score=l3"], "'l3'"),
        (["--precision=float16"], "float16"),
        (["--mask-layers=XPatch,Head"], "'Head'"),
        (["--dataset=imagenet"], "imagenet is not prepared"),
        (["--dataset=absent.npz"], "absent.npz"),
        (["--data-dir=/absent/folder"], "/absent/folder"),
        (["--data-dir=/dev/null"], "/dev/null"),
        (["--epochs=0"], "--epochs=0"),
        (["--epochs=-5"], "--epochs=-5"),
        (["--batch-size=49"], "--batch-size=49"),
        (["--patch-size=3"], "3"),
        (["--lr=inf"], "--lr=inf"),
        (["--seed=-1"], "--seed=-1"),
        (["--flip=2"], "2.0"),
        (["--checkpoint-every=-1"], "--checkpoint-every=-1"),
        (["--resume=somewhere"], "--resume and --out"),
        (["--join-timeout=inf"], "--join-timeout=inf"),
        (["--join-timeout=-1"], "--join-timeout=-1"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(data, tmp_path, capsys, options, named):
    out = tmp_path / "out"
    assert tiny.start(data, out, *options) == 2
    assert named in error_line(capsys)
    assert not out.exists()


def test_auto_takes_options_that_fit_one_of_its_sets():
    # Of digits 30 epochs are masked from the fourth on, of CIFAR-10 200 from the eleventh.
    settings = command_line._resolve_early(Config(ratio=0.5, block="8x8", freeze_epoch=5))
    assert settings.freeze_epoch == 5
    with pytest.raises(InputError, match="--lr"):
        command_line._resolve_early(Config(lr=-1.0))
    with pytest.raises(InputError, match="freeze"):
        command_line._resolve_early(Config(dataset="cifar10", ratio=0.5, freeze_epoch=5))


def plain(data: Path, out: Path, *more: str) -> int:
    return tiny.command(f"--dataset={data}", f"--out={out}", "--batch-size=8", *more)


@pytest.mark.parametrize("other", ["--block=4x4", "--ratio=0.5", "--mask-layers=XPatch"])
def test_a_model_string_excludes_single_options(data, tmp_path, capsys, other):
    assert plain(data, tmp_path / "out", MODEL_STRING, other) == 2
    assert f"--config and {other.split('=')[0]} exclude each other" in error_line(capsys)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--activation=3x2:0.5", "does not divide the activation"),
        ("--activation=mean:3x1", "pooling window 3x1 does not divide"),
        ("--gradient=1:3", "does not divide the"),
        ("--gradient=5:4", "is not N:M"),
    ],
)
def test_a_rule_that_does_not_fit_the_batch_is_said_before_the_run(
    data, tmp_path, capsys, option, says
):
    assert plain(data, tmp_path / "out", "--dim=8", "--depth=1", option) == 2
    assert says in error_line(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "under"),
    [
        ("ResMLP1 @ XPatch = masked 0.5 (2, 2)", ""),
        ("ResMLP1 @ XToken = masked 0.5 (2, 2);", "XToken"),
        ("ResMLP1 @ XPatch = masked 1.5 (2, 2);", "1.5"),
        ("ResNet1 @ XPatch = masked 0.5 (2, 2);", "ResNet"),
    ],
)
def test_a_malformed_model_string_is_shown_with_a_caret(data, tmp_path, capsys, text, under):
    assert plain(data, tmp_path / "out", f"--config={text}") == 2
    first, string, caret = capsys.readouterr().err.splitlines()
    assert first.startswith("error: model string: ")
    assert text in string
    assert caret.strip() == "^"
    assert string[caret.index("^") :].startswith(under)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train_images": np.zeros((44, 8, 8, 3), np.float32)}, "train_images is float32"),
        ({"train_images": np.zeros((44, 8), np.uint8)}, "[44, 8]"),
        ({"train_images": np.zeros((44, 8, 6, 3), np.uint8)}, "8x6x3"),
        ({"test_images": np.zeros((20, 4, 4, 3), np.uint8)}, "4x4x3"),
        ({"test_images": np.zeros((0, 8, 8, 3), np.uint8)}, "test_images"),
        ({"train_labels": np.zeros(44)}, "train_labels is float64"),
        ({"train_labels": np.zeros(43, np.int32)}, "[43]"),
        ({"test_labels": np.full(20, 10)}, "test_labels holds 10"),
        ({"train_labels": np.full(44, -1)}, "train_labels holds -1"),
        ({"test_labels": None}, "lacks test_labels"),
    ],
)
def test_a_bad_npz_is_one_line(tmp_path, capsys, changes, named):
    bad = tiny.write_npz(tmp_path / "bad.npz", **changes)
    assert tiny.start(bad, tmp_path / "out") == 2
    line = error_line(capsys)
    assert named in line
    assert "bad.npz" in line


def test_images_that_are_not_square_are_one_line(tmp_path, capsys):
    tall = {
        f"{s}_images": np.zeros((n, 8, 4, 3), np.uint8) for s, n in (("train", 44), ("test", 20))
    }
    assert tiny.start(tiny.write_npz(tmp_path / "tall.npz", **tall), tmp_path / "out") == 2
    assert "8x4" in error_line(capsys)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--ratio=abc", ["--ratio", "abc"]),
        ("--epochs=1.5", ["--epochs", "1.5"]),
        ("--blok=3", ["--blok", "--block"]),
        ("extra", ["extra"]),
        ("--block", ["--block"]),
    ],
)
def test_what_the_parser_refuses_is_told_without_a_traceback(tmp_path, capsys, option, named):
    assert tiny.command(f"--out={tmp_path / 'out'}", option) == 2
    printed = capsys.readouterr()
    assert all(name in printed.err for name in named)
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert not (tmp_path / "out").exists()


def test_help_explains_every_option(capsys):
    assert tiny.command("--help") == 0
    shown = capsys.readouterr().out
    for field in dataclasses.fields(Config):
        assert f"--{field.name.replace('_', '-')}" in shown
    assert "--out" in shown
    assert "--resume" in shown
    assert "A test." in shown


def test_an_existing_folder_is_refused_and_untouched(data, tmp_path, capsys):
    (tmp_path / "mine").write_text("precious")
    assert tiny.start(data, tmp_path) == 2
    assert f"{tmp_path} is not empty" in error_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_missing_tensorboardx_is_one_line_with_the_command(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert tiny.start(data, tmp_path / "out", "--tensorboard") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "pip install tensorboardX" in line


@pytest.mark.parametrize("folder", ["", "absent"])
def test_resuming_what_is_no_run_is_refused(tmp_path, capsys, folder):
    assert tiny.resume(tmp_path / folder) == 2
    assert f"{tmp_path / folder} is no run folder" in error_line(capsys)


@pytest.mark.parametrize(
    ("option", "before"),
    [
        ("--lr=0.5", "0.02"),
        ("--seed=3", "0"),
        ("--epochs=30", "3"),
        ("--ratio=0.25", "0.5"),
        ("--block=4x4", "2x4"),
        ("--backward=dense", "masked"),
    ],
)
def test_a_resumed_run_keeps_its_options(started, capsys, option, before):
    stored = (started / "config.json").read_bytes()
    assert tiny.resume(started, option) == 2
    line = error_line(capsys)
    assert option in line
    assert before in line.replace(option, "")
    assert (started / "config.json").read_bytes() == stored


def test_the_same_options_may_be_given_again_on_resuming(started, data, capsys):
    """The options are accepted, so the error is that of the data, which are gone."""
    again = tiny.flags(**tiny.RUN, lr=0.02)
    data_back = data.rename(data.with_suffix(".away"))
    try:
        assert tiny.resume(started, *again, f"--dataset={data}") == 2
        assert f"{data} is not a file" in error_line(capsys)
    finally:
        data_back.rename(data)


def test_a_relative_name_of_the_same_data_is_the_same_data(started, data, capsys, monkeypatch):
    monkeypatch.chdir(data.parent)
    data_back = data.rename(data.with_suffix(".away"))
    try:
        assert tiny.resume(started, f"--dataset={data.name}") == 2
        assert "is not a file" in error_line(capsys)
    finally:
        data_back.rename(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "is damaged"), ("{}", "is no configuration"), ('{"block": 3}', "is no configuration")],
)
def test_a_broken_configuration_is_one_line(started, capsys, text, says):
    (started / "config.json").write_text(text)
    assert tiny.resume(started) == 2
    assert f"{started / 'config.json'} {says}" in error_line(capsys)


def test_a_configuration_with_values_of_another_type_is_one_line(started, capsys):
    values = json.loads((started / "config.json").read_text()) | {"epochs": "three"}
    (started / "config.json").write_text(json.dumps(values))
    assert tiny.resume(started) == 2
    assert "config.json" in error_line(capsys)


def test_a_run_without_a_name_goes_below_runs(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.at_step(monkeypatch, 1, lambda: signal.raise_signal(signal.SIGTERM))
    assert tiny.command(*tiny.flags(**tiny.RUN), f"--dataset={data}") == 143
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-tiny-2x4-at-0.5-masked-backward-seed0")
    assert (folder / "config.json").exists()


def test_a_model_string_of_any_length_names_a_folder(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.at_step(monkeypatch, 1, lambda: signal.raise_signal(signal.SIGTERM))
    text = "ResMLP1 @ XPatch=masked 0.5 (2, 2); XChannel=masked 0.5 (2, 2);" + " " * 500
    options = ("block", "ratio", "mask_layers", "depth")
    flags = {key: value for key, value in tiny.RUN.items() if key not in options}
    assert tiny.command(*tiny.flags(**flags), f"--config={text}", f"--dataset={data}") == 143
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"[\w.-]{1,140}", folder.name)
    assert "ResMLP1" in folder.name
