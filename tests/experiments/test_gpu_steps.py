"""A batch fits the memory before anything is allocated; unknown options are refused."""

import sys
from pathlib import Path

import gpu_steps


def test_a_batch_is_halved_until_it_fits():
    model = gpu_steps.MODELS["tiny"][0]()
    batch, needed = gpu_steps.fitting_batch(model, 8, None)
    assert batch == 8
    halved, less = gpu_steps.fitting_batch(model, 8, int(needed / 0.75) - 8)
    assert halved == 4
    assert less < needed
    assert gpu_steps.fitting_batch(model, 8, 1)[0] == 1


def test_the_published_models_are_masked_where_the_block_divides_them():
    for name, (make, _, block, with_tokens) in gpu_steps.MODELS.items():
        model = make()
        tokens = (model.image_size // model.patch_size) ** 2
        assert model.dim % block[0] == model.dim * model.expansion % block[0] == 0, name
        assert not with_tokens or tokens % block[0] == 0, name


def test_an_unknown_model_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path: Path):
    words = ["--model=vit", "--contender=dense", f"--out={tmp_path / 'x.json'}"]
    monkeypatch.setattr(sys, "argv", ["gpu_steps.py", *words])
    assert gpu_steps.main() == 2
    assert "--model=vit" in capsys.readouterr().err
