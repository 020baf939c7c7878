"""Training steps of the GPU benchmark: which there are, and what is kept of each."""

import json

from gpu import step_parts
from gpu.budget import Budget
from gpu.step_parts import in_groups, measure_step, step_commands


def test_contenders_of_one_model_and_dtype_are_measured_together():
    commands = step_commands(["mosaic"], [], is_trial=False)
    groups = in_groups(commands)
    assert [words for group in groups for words in group] == commands
    assert all(len({(model, dtype) for model, _, dtype in group}) == 1 for group in groups)
    contenders = ["dense", "mosaic", "reference"]
    assert [[words[1] for words in group] for group in groups] == len(groups) * [
        [f"--contender={name}" for name in contenders]
    ]


def test_a_step_is_left_out_whose_kernels_are_wrong():
    about = {"engine": "triton", "kernel": "mlp", "block": "64x64", "dtype": "bfloat16"}
    verdicts = [{"key": "triton mlp", **about, "wrong": "is off"}]
    words = step_commands(["triton"], verdicts, is_trial=False)
    of_engine = [(w[0], w[2]) for w in words if w[1] == "--contender=triton"]
    assert ("--model=resmlp_cifar10", "--dtype=bfloat16") in of_engine
    assert ("--model=resmlp_b24", "--dtype=float32") in of_engine
    assert ("--model=resmlp_b24", "--dtype=bfloat16") not in of_engine
    assert ["--model=resmlp_b24", "--contender=dense", "--dtype=bfloat16"] in words


def test_a_step_whose_process_fails_later_is_kept(tmp_path, monkeypatch, capsys):
    path = tmp_path / "steps" / "tiny_dense_float32.json"

    def run_part(*_: object, **__: object) -> str:
        path.write_text('{"step_ms": 1.0}')
        return "exit -6"

    monkeypatch.setattr(step_parts, "run_part", run_part)
    words = ["--model=tiny", "--contender=dense", "--dtype=float32"]
    measure_step(tmp_path, words, Budget(1.0), rounds=1, is_trial=False)
    assert json.loads(path.read_text()) == {"step_ms": 1.0}
    assert "exit -6" in capsys.readouterr().out


def test_a_step_without_its_selection_is_measured_again(tmp_path, monkeypatch):
    path, measured = tmp_path / "steps" / "tiny_triton_float32.json", []
    left = ['{"step_ms": 1.0, "masked": "*"}', '{"step_ms": 2.0, "masked": "*", "failed": {}}']

    def run_part(*_: object, **__: object) -> str:
        path.write_text(left[len(measured)])
        measured.append(path)
        return "took longer than 60 s" if len(measured) == 1 else ""

    monkeypatch.setattr(step_parts, "run_part", run_part)
    words = ["--model=tiny", "--contender=triton", "--dtype=float32"]
    for _ in range(3):
        measure_step(tmp_path, words, Budget(1.0), rounds=1, is_trial=False)
    assert len(measured) == 2
    assert json.loads(path.read_text())["step_ms"] == 2.0


def test_a_selection_that_fails_for_good_is_not_tried_again(tmp_path, monkeypatch):
    path, measured = tmp_path / "steps" / "tiny_triton_float32.json", []

    def run_part(*_: object, **__: object) -> str:
        path.write_text('{"step_ms": 1.0, "masked": "*"}')
        measured.append(path)
        return "exit -6"

    monkeypatch.setattr(step_parts, "run_part", run_part)
    words = ["--model=tiny", "--contender=triton", "--dtype=float32"]
    for _ in range(2):
        measure_step(tmp_path, words, Budget(1.0), rounds=1, is_trial=False)
    assert len(measured) == 1
    assert json.loads(path.read_text())["failed"] == {"selection": "exit -6"}
