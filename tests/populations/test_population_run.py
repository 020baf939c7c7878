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


def test_a_signal_while_it_saves_ends_it_after_a_chunk_that_is_saved(unchecked, monkeypatch):
    """An epoch ends, is offered and not saved yet; it must not end there unsaved."""
    saved: list[int] = []
    interruption: Any = SimpleNamespace(signal=None)
    ended: list[int] = []

    def offer(step: int, state: Any, seconds: float, *, now: bool) -> None:
        interruption.signal = 15
        if now:
            saved.append(step)

    recorder: Any = SimpleNamespace(
        setup=SimpleNamespace(
            settings=SimpleNamespace(checkpoint_every=600.0, allow_nan=False),
            total_steps=12,
            schedule=SimpleNamespace(phase=lambda epoch, losses: None),
        ),
        offer=offer,
        end=lambda step, state: ended.append(step),
        checkpoints=SimpleNamespace(),
    )
    trainer: Any = SimpleNamespace(
        seconds=1.0,
        n_members=1,
        steps_per_epoch=4,
        member=lambda state, index: state,
        is_compiled=lambda position, phase: True,
        train=lambda state, epoch, position, seconds, phase: (state, 4, [True]),
    )
    run = PopulationRun([recorder], trainer)
    monkeypatch.setattr(run, "_start", lambda *, resume: (None, 0))
    monkeypatch.setattr(run, "_report", lambda *_: None)
    monkeypatch.setattr(run, "_finish_epoch", lambda reporter, state, *_: state)
    reporter: Any = SimpleNamespace(begins_at=lambda *_: None, waiting=lambda *_: None)
    run.train(reporter, interruption, resume=False)
    assert ended == saved == [8]
