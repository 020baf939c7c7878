"""What never ends or breaks the device is written down, and named with the way on."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from tuning import watch
from tuning.watch import (
    STUCK,
    AtWork,
    WorkLostError,
    ended_by_sigterm,
    guard_for,
    reason_of,
    require_device,
)

DIES = """
import os, pathlib, sys, time
from tuning.watch import AtWork, guard_for
write_down = lambda name, reason: print(f"{name}: {reason}", flush=True)
at_work = AtWork(pathlib.Path(sys.argv[1]))
guard = guard_for(write_down, at_work, "point", is_trial=False, seconds=float(sys.argv[2]))
with guard("quick"):
    pass
with guard(sys.argv[3]):
    os.abort() if sys.argv[4:] else time.sleep(600)
"""


def die(*words: object) -> "subprocess.CompletedProcess[str]":
    path = [*sys.path, str(Path(watch.__file__).parents[1])]
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path = {path}\n{DIES}", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_work_that_takes_too_long_ends_the_process_and_is_written_down(tmp_path):
    began = time.monotonic()
    done = die(tmp_path / "at_work", 0.2, "endless")
    assert time.monotonic() - began < 300
    assert done.returncode == STUCK
    assert done.stdout == "endless: took longer than 0.2 s\n"
    assert done.stderr.startswith("error: endless took longer than 0.2 s: give the same command")
    assert AtWork(tmp_path / "at_work").left() is None


def test_a_process_that_died_once_may_have_been_killed_and_blames_nothing(tmp_path):
    def dies(name: str) -> tuple[str, str] | None:
        AtWork(tmp_path / "at_work").begin("point", name)
        return AtWork(tmp_path / "at_work").died_again()

    assert AtWork(tmp_path / "at_work").died_again() is None
    assert [dies("first"), dies("second"), dies("second")] == [None, None, ("point", "second")]
    assert [dies("second"), dies("second")] == [None, ("point", "second")]
    assert not list(tmp_path.iterdir())


def test_sigterm_ends_a_program_as_ctrl_c_does():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_work_that_aborts_its_process_is_known_to_the_next_one_once(tmp_path):
    at_work = AtWork(tmp_path / "at_work")
    done = die(tmp_path / "at_work", 60, "endless", "abort")
    assert done.returncode == -signal.SIGABRT
    assert not done.stdout
    assert at_work.left() == ("point", "endless")
    assert at_work.left() is None


def test_a_process_that_died_as_it_began_names_nothing(tmp_path):
    (tmp_path / "at_work").write_text("")
    assert AtWork(tmp_path / "at_work").left() is None
    assert not (tmp_path / "at_work").exists()


def test_work_in_time_is_let_be(tmp_path):
    told, at_work = [], AtWork(tmp_path / "at_work")
    guard = guard_for(lambda *given: told.append(given), at_work, "point", is_trial=False)
    with pytest.raises(ValueError, match="own"), guard("work"):
        raise ValueError("own")
    assert not told
    assert at_work.left() is None


def test_a_device_that_answers_is_not_lost():
    require_device("work", ValueError("out of shared memory"))


def test_a_device_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch):
    def silent(_: object) -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(jax, "block_until_ready", silent)
    with pytest.raises(
        WorkLostError, match=r"after work \(ValueError: first second\).*again"
    ) as raised:
        require_device("work", ValueError("first\nsecond"))
    assert (raised.value.name, raised.value.reason) == ("work", "ValueError: first second")


def test_an_error_without_words_is_a_line_too():
    assert reason_of(ValueError()) == "ValueError: "
