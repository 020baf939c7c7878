"""When a population saves; what it trains is held by `test_population`."""

import time
from types import SimpleNamespace
from typing import Any

from sparsemlp.populations.population_run import PopulationRun


def test_saving_takes_a_twentieth_of_the_time_at_most(unchecked):
    def save(every: float) -> float:
        recorder: Any = SimpleNamespace(
            setup=SimpleNamespace(settings=SimpleNamespace(checkpoint_every=every)),
            offer=lambda *_, **__: time.sleep(0.05),
            checkpoints=SimpleNamespace(),
        )
        trainer: Any = SimpleNamespace(
            seconds=1.0, n_members=1, steps_per_epoch=4, member=lambda state, index: state
        )
        run = PopulationRun([recorder], trainer)
        state: Any = None
        run._save(state, 4, now=True)
        assert recorder.checkpoints.pinned == 4
        return run._save_every

    assert save(0.5) >= 20 * 0.05
    assert save(600.0) == 600
    assert save(0.0) == 0
