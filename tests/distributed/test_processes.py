"""Several processes give the numbers of one, stop together, and go on as one or several."""

import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import launch
import numpy as np
import on_devices
import pytest
import tiny

from sparsemlp.distributed import processes
from sparsemlp.distributed.lifeline import DIED
from sparsemlp.errors import DeviceLostError, InputError, WorkerError

data = tiny.data

TOLERANCE = 20 * 64 * np.finfo(np.float32).eps
"""As for several devices: roundings of 20 steps, which the loss sees in first order."""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of each process."""
    return launch.environment()


def test_bad_flags_end_the_program_with_one_line(tmp_path, capsys):
    assert tiny.command("--processes=2", f"--out={tmp_path / 'run'}") == 2
    assert capsys.readouterr().err.startswith("error: --coordinator=HOST:PORT, --processes=N")
    assert not (tmp_path / "run").exists()


def test_missing_peers_end_the_program_with_one_line(tmp_path, capsys):
    place = [*launch.join_flags(launch.free_port(), 2, 1), "--join-timeout=0.1"]
    assert tiny.command(*place, f"--out={tmp_path / 'run'}") == 2
    assert capsys.readouterr().err.startswith("error: no process 0 at --coordinator=127.0.0.1:")


def test_one_process_agrees_with_itself():
    assert (processes.count(), processes.index(), processes.is_first()) == (1, 0, True)
    assert processes.gather((1, 2)) == [(1, 2)]
    assert processes.shared(lambda: "value") == "value"
    assert processes.agree(7, None) == (7, None)
    assert processes.agree(7, 15) == (7, 15)
    assert processes.in_turn(lambda: 3) == 3
    processes.require_alike({"anything": 1})
    assert processes.leave(3) == 3


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (WorkerError("a worker was killed"), "a worker was killed; go on with --resume"),
        (DeviceLostError("no answer; resume"), "no answer; resume"),
    ],
)
def test_what_ends_one_process_with_a_line_ends_all_with_it(monkeypatch, unchecked, error, line):
    told = []
    lifeline = SimpleNamespace(index=1, fail=lambda *given: told.append(given))
    monkeypatch.setattr(processes, "_lifeline", lifeline)
    monkeypatch.setattr(processes, "_failed", False)

    def program() -> int:
        raise error

    with pytest.raises(type(error)):
        processes.guarded(program)
    assert told == [(f"stopped: process 1: {line}", DIED)]


class Together:
    """A lifeline on which others say something else."""

    def __init__(self, *others: Any) -> None:
        self.others = others

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


def test_the_first_process_says_the_steps_and_any_process_the_signal(monkeypatch):
    monkeypatch.setattr(processes, "_lifeline", Together([9, None], [2, 15], [2, 2]))
    assert processes.agree(7, None) == (7, 15)
    monkeypatch.setattr(processes, "_lifeline", Together([9, None]))
    assert processes.agree(7, None) == (7, None)


def test_options_that_differ_are_named(monkeypatch):
    monkeypatch.setattr(processes, "_lifeline", Together({"--lr": 0.1, "--seed": 0}))
    processes.require_alike({"--lr": 0.1, "--seed": 0})
    with pytest.raises(InputError, match="--seed is 0 on process 1 and 5 on process 0"):
        processes.require_alike({"--lr": 0.1, "--seed": 5})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "backward"),
    [("cpu", "masked"), ("reference", "masked"), ("reference", "straight_through")],
)
def test_two_processes_give_the_losses_of_one_device_over_20_steps(engine, backward, environment):
    program = (launch.ROOT / "tests" / "on_processes.py").read_text()
    with launch.started(
        [engine, backward],
        environment,
        program=program,
        flags=lambda port, count, index: [f"127.0.0.1:{port}", str(count), str(index)],
    ) as started:
        one = on_devices.losses(1, engine, backward)
        ends = launch.ended(started)
    assert [code for code, _ in ends] == [0, 0], ends
    for _, output in ends:
        found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        assert found["devices"] == 4
        assert found["arrived"]
        assert found["kept"] == one["kept"]
        np.testing.assert_allclose(found["losses"], one["losses"], rtol=TOLERANCE)
        np.testing.assert_allclose(found["test_loss"], one["test_loss"], rtol=TOLERANCE)
        assert len(set(found["losses"])) == 20


def arguments(data: Path, out: Path, **changes: Any) -> list[str]:
    values = tiny.RUN | {"dataset": data, "out": out, "checkpoint_every": 0.0} | changes
    return tiny.flags(**values)


def wait_for_epochs(out: Path, n_epochs: int, started: list[Any], seconds: float = 500) -> None:
    deadline = time.monotonic() + seconds
    while len(tiny.records(out)) < n_epochs:
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in started), launch.ended(started)
        time.sleep(0.05)


def assert_nearly_the_same(actual: Path, expected: Path) -> None:
    """Raises AssertionError unless two runs agree to the rounding of their steps."""
    for one, other in zip(tiny.records(actual), tiny.records(expected), strict=True):
        assert one["step"] == other["step"]
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_signal_to_one_process_ends_both_and_one_device_goes_on(who, data, tmp_path, environment):
    out, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    changes: dict[str, Any] = {"epochs": 60, "budget": "global"}
    with launch.started(arguments(data, out, **changes), environment) as started:
        wait_for_epochs(out, 2, started)
        started[who].send_signal(signal.SIGTERM)
        ends = launch.ended(started)
    assert [code for code, _ in ends] == [128 + signal.SIGTERM] * 2, ends
    assert "interrupted by SIGTERM; all is saved" in ends[0][1]
    assert "interrupted" not in ends[1][1]
    assert tiny.last_state(out).step >= 12
    assert not (out / "summary.json").exists()
    before = tiny.last_state(out).step

    # Two processes go on where they stopped, are stopped again, and one process ends the run.
    with launch.started([f"--resume={out}"], environment) as started:
        wait_for_epochs(out, before // tiny.STEPS_PER_EPOCH + 2, started)
        started[0].send_signal(signal.SIGINT)
        ends = launch.ended(started)
    assert [code for code, _ in ends] == [128 + signal.SIGINT] * 2, ends
    assert tiny.last_state(out).step > before
    assert tiny.resume(out) == 0
    assert tiny.start(data, undisturbed, **changes) == 0
    assert_nearly_the_same(out, undisturbed)


@pytest.mark.slow
def test_what_one_process_began_two_go_on_with(data, tmp_path, environment):
    out, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        tiny.at_step(patch, 8, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.start(data, out) == 128 + signal.SIGTERM
    with launch.started([f"--resume={out}"], environment) as started:
        ends = launch.ended(started)
    assert [code for code, _ in ends] == [0, 0], ends
    assert tiny.start(data, undisturbed) == 0
    assert_nearly_the_same(out, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_killed_process_is_noticed_within_a_minute_and_the_run_goes_on(
    who, data, tmp_path, environment
):
    out = tmp_path / "run"
    with launch.started(arguments(data, out, epochs=1000), environment) as started:
        wait_for_epochs(out, 2, started)
        started[who].kill()
        began = time.monotonic()
        code, output = launch.ended(started, timeout=60)[1 - who]
        assert time.monotonic() - began < 60
    assert code == DIED
    lines = [line for line in output.splitlines() if not line.startswith(("epoch ", "data "))]
    assert lines[-1] == (
        f"error: process {who} died; a run that had begun goes on from its last checkpoint with "
        "--resume"
    )
    assert "Check failure stack trace" not in output
    assert tiny.last_state(out).step >= 6


@pytest.mark.slow
def test_an_error_of_one_process_ends_both(data, tmp_path, environment):
    """Each with its own seed: neither trains, both say why."""
    own = (["--seed=1"], ["--seed=2"])
    out = tmp_path / "run"
    with launch.started(arguments(data, out), environment, own=own) as started:
        ends = launch.ended(started)
    assert [code for code, _ in ends] == [2, 2], ends
    assert all("--seed is 2 on process 1 and 1 on process 0" in output for _, output in ends)


@pytest.mark.slow
def test_an_occupied_folder_ends_both_and_so_do_devices_that_are_left_out(
    data, tmp_path, environment
):
    (tmp_path / "file").touch()
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"out": tmp_path}, f"the run folder {tmp_path} is not empty"),
        ({"devices": 2}, "--devices=2: 2 processes train on all of their 4 devices together"),
    )
    for changes, reason in cases:
        flags = arguments(data, changes.pop("out", tmp_path / "run"), **changes)
        with launch.started(flags, environment) as started:
            ends = launch.ended(started)
        assert [code for code, _ in ends] == [2, 2], ends
        assert all(reason in output for _, output in ends)
