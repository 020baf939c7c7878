"""One process at a time, and a lock ends with its process."""

import subprocess
import sys

import pytest

from sparsemlp.errors import InputError
from sparsemlp.runs.lock import OccupiedError, exclusive


def test_a_second_one_is_refused_with_what_to_do(tmp_path):
    with (
        exclusive(tmp_path, "first"),
        pytest.raises(OccupiedError, match=r"^come later$"),
        exclusive(tmp_path, "come later"),
    ):
        pass
    with exclusive(tmp_path, "free again"):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = (
        "import fcntl, os, signal, sys; file = open(sys.argv[1], 'w'); "
        "fcntl.flock(file, fcntl.LOCK_EX); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / ".lock")], check=False)
    assert done.returncode < 0
    with exclusive(tmp_path, "free"):
        pass


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with (
        pytest.raises(InputError, match=r"absent cannot be written: .*; see to that"),
        exclusive(tmp_path / "absent", ""),
    ):
        pass
