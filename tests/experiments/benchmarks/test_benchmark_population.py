"""The benchmark of a population trains its runs together and one by one."""

import pytest
from benchmarks import population as benchmark_population

from sparsemlp import InputError


@pytest.mark.slow
def test_a_step_of_all_runs_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    options = benchmark_population.Population(
        ratio=(0.5, 0.8), batch_size=2, depth=1, dim=32, rounds=1, steps=1
    )
    benchmark_population.measure_population(options)
    text = capsys.readouterr().out
    assert "2 runs, a training step of all, batch 2" in text
    for name in ("population", "one by one, reference", "one by one, auto"):
        assert name in text


@pytest.mark.parametrize(
    "options",
    [{"ratio": ()}, {"rounds": 0}, {"steps": 0}, {"engine": ()}, {"engine": ("abacus",)}],
    ids=str,
)
def test_options_that_measure_nothing_are_refused(options) -> None:
    with pytest.raises(InputError):
        benchmark_population.measure_population(benchmark_population.Population(**options))
