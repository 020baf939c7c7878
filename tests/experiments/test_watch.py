"""What never ends or breaks the device is written down, and named with the way on."""

import subprocess
import sys
import time

import jax
import pytest
import watch
from watch import STUCK, DeviceLostError, guard_for, reason_of, require_device

HANGS = """
import time
from watch import guard_for
guard = guard_for(0.2, lambda name, reason: print(f"{name}: {reason}", flush=True))
with guard("quick"):
    pass
with guard("endless"):
    time.sleep(600)
"""


def test_work_that_takes_too_long_ends_the_process_and_is_written_down():
    path = [*sys.path, str(watch.__file__).rpartition("/")[0]]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path = {path}\n{HANGS}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - began < 300
    assert done.returncode == STUCK
    assert done.stdout == "endless: took longer than 0.2 s\n"
    assert done.stderr.startswith("error: endless took longer than 0.2 s: give the same command")


def test_work_in_time_is_let_be():
    told = []
    guard = guard_for(60.0, lambda *given: told.append(given))
    with pytest.raises(ValueError, match="own"), guard("work"):
        raise ValueError("own")
    assert not told


def test_a_device_that_answers_is_not_lost():
    require_device("work", ValueError("out of shared memory"))


def test_a_device_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch):
    def silent(_: object) -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(jax, "block_until_ready", silent)
    with pytest.raises(DeviceLostError, match=r"after work \(ValueError: first\).*again") as raised:
        require_device("work", ValueError("first\nsecond"))
    assert (raised.value.name, raised.value.reason) == ("work", "ValueError: first")


def test_an_error_without_words_is_a_line_too():
    assert reason_of(ValueError()) == "ValueError: "
