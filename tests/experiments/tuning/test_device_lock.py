"""The lock keeps others out until its holder is done with the device, or dead."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from tuning import device_lock as tuning_device_lock
from tuning.device_lock import device_lock, file_lock, unlocked

HOLDS = """
import pathlib, sys, time
from tuning.device_lock import file_lock
with file_lock(pathlib.Path(sys.argv[1]))():
    print("held", flush=True)
    time.sleep(600)
"""


def is_free(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_it_is_held_inside_and_free_after_also_after_an_error(tmp_path: Path):
    path = tmp_path / "lock"
    lock = file_lock(path)

    def fails() -> None:
        with lock():
            assert not is_free(path)
            raise ValueError("own")

    for _ in range(2):
        with pytest.raises(ValueError, match="own"):
            fails()
        assert is_free(path)


def test_a_process_that_is_killed_lets_go(tmp_path: Path):
    path = tmp_path / "lock"
    folder = str(Path(tuning_device_lock.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {folder!r})\n{HOLDS}"
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not is_free(path)
        holder.kill()
        holder.wait()
    with file_lock(path)():
        pass


def test_a_trial_takes_no_lock_and_all_measurements_the_same():
    assert device_lock(is_trial=True) is unlocked
    with unlocked(), unlocked():
        pass
    assert device_lock() is not unlocked
