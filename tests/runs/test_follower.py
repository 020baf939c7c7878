"""A process other than the first makes the same records and writes nothing."""

import jax
import pytest
import tiny

from sparsemlp.runs.follower import Follower, Recollection
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.runs.run_setup import set_up
from sparsemlp.schedule import MASKED
from sparsemlp.train.train_state import initial_state
from sparsemlp.train.trainer import Trainer


def test_an_epoch_leaves_its_record_in_memory_and_no_file(tmp_path):
    settings, data = tiny.settings(epochs=2), tiny.dataset()
    folder = RunFolder(tmp_path / "run")
    with Follower(set_up(settings, data), folder, "title") as follower:
        trainer = Trainer(follower.setup.program, data, tiny.BATCH)
        state = initial_state(follower.setup.program)
        assert follower.restore() is None
        follower.describe()
        follower.save_first(state)
        follower.begin(0)
        state, n_steps, _ = trainer.train(state, 0, 0, seconds=0.0, phase=MASKED)
        found = trainer.evaluate(state, MASKED)
        before = jax.device_get(state.totals)
        state, record = follower.finish_epoch(
            state, found, 0, n_steps, density=0.5, seconds=1.0, validation_loss=2.5
        )
        follower.offer(n_steps, state, 1.0, now=True)
        follower.save_waiting()
    assert record["loss"] == pytest.approx(before["loss"] / before["images"])
    assert follower.history.read() == [record]
    assert list(tmp_path.iterdir()) == []


def test_records_are_those_of_the_first_process_and_then_its_own():
    history = Recollection([{"epoch": 1}])
    history.append({"epoch": 2})
    assert history.read() == [{"epoch": 1}, {"epoch": 2}]
