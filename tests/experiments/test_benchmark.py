"""The benchmark compares contenders that do what their names say."""

import math

import benchmark
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import InputError


def test_contenders_take_turns_and_the_first_turn_does_not_count() -> None:
    calls: list[tuple[str, int]] = []
    contenders = {
        "a": lambda steps: calls.append(("a", steps)),
        "b": lambda steps: calls.append(("b", steps)),
    }
    seconds = benchmark.take_turns(contenders, rounds=3, steps=5)
    assert calls == [("a", 5), ("b", 5)] * 4
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}
    assert all(time >= 0 for times in seconds.values() for time in times)


def test_the_table_states_medians_ratios_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"dense": [0.002, 0.004, 0.030], "sparse": [0.001, 0.002, 0.003]}
    benchmark.print_table("products", seconds, "dense")
    text = capsys.readouterr().out
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    dense, sparse = rows["dense"], rows["sparse"]
    assert "4.0" in dense
    assert "1.00x" in dense
    assert "2.0" in sparse
    assert "2.00x" in sparse
    assert "jax " in text


def test_a_whole_training_step_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.measure_step(benchmark.Step(batch_size=2, rounds=1, steps=1))
    text = capsys.readouterr().out
    assert "dense" in text
    assert "reference: 32x32 at 0.8, masked" in text


@pytest.mark.parametrize("options", [{"ratio": 0.0}, {"ratio": 1.0}, {"rounds": 0}, {"steps": 0}])
def test_options_that_measure_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError):
        benchmark.measure_step(benchmark.Step(**options))  # pyright: ignore[reportArgumentType]


def test_pytorch_keeps_the_blocks_that_sparsemlp_keeps() -> None:
    torch = pytest.importorskip("torch")
    from torch_resmlp import MaskedLinear

    from sparsemlp import select_blocks

    layer = MaskedLinear(16, 12, (3, 4), 0.6)
    x = torch.randn(5, 16)
    kernel = layer.weight.detach().numpy().T
    mask = np.asarray(select_blocks(jnp.asarray(kernel), (3, 4), 0.6).dense())
    expected = x.numpy() @ (kernel * mask) + layer.bias.detach().numpy()
    tolerance = 4 * np.finfo(np.float32).eps * math.sqrt(16)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=tolerance * 4)
