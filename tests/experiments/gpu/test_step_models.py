"""A batch fits the memory before anything is allocated."""

from gpu.step_models import MODELS, fitting_batch, needed_bytes


def test_a_batch_is_halved_until_it_fits():
    model = MODELS["tiny"].make()
    needed = needed_bytes(model, 8)
    assert needed_bytes(model, 4) < needed
    assert fitting_batch(model, 8, None) == 8
    assert fitting_batch(model, 8, int(needed / 0.75) + 8) == 8
    assert fitting_batch(model, 8, int(needed / 0.75) - 8) == 4
    assert fitting_batch(model, 8, 1) == 1


def test_the_published_models_are_masked_where_the_block_divides_them():
    for name, case in MODELS.items():
        model, block = case.make(), case.block
        tokens = (model.image_size // model.patch_size) ** 2
        assert model.dim % block[0] == model.dim * model.expansion % block[0] == 0, name
        assert not case.with_tokens or tokens % block[0] == 0, name
