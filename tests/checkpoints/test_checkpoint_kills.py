"""Full disks, kills and signals while a checkpoint is saved lose nothing that was saved before."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from checkpoint_states import assert_same_bits, names, state_of

from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.errors import SaveError


def test_is_silent_and_leaves_no_thread_and_no_handler(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A signal in the middle of a save reaches the handler that the program installed."""
    threads = set(threading.enumerate())
    heard: list[int] = []

    def handler(number: int, _: object) -> None:
        heard.append(number)

    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Checkpoints(tmp_path) as checkpoints:
            for step, number in enumerate(before, start=1):
                timer = threading.Timer(0.02, os.kill, (os.getpid(), number))
                timer.start()
                checkpoints.save(step, state_of(step), {})
                timer.join()
            assert checkpoints.restore(state_of(0)).step == 2
        assert heard == [signal.SIGINT, signal.SIGTERM]
        assert {signal.getsignal(number) for number in before} == {handler}
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - threads
    assert capfd.readouterr() == ("", "")


_CHILD_ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}

_FULL_DISK = """
import pathlib, resource, sys
import jax.numpy as jnp, numpy as np
from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.errors import SaveError

noise = np.random.default_rng(0).normal(size=(8, 100, 100)).astype(np.float32)
state = {str(i): jnp.array(n) for i, n in enumerate(noise)}
checkpoints = Checkpoints(pathlib.Path(sys.argv[1]))
checkpoints.save(1, state, {})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in 20_000, 100:  # an array has 40 kB
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        checkpoints.save(2, state, {})
    except SaveError as error:
        print(error)
    assert checkpoints.restore(state).step == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
checkpoints.save(3, state, {})
print(checkpoints.restore(state).step)
"""


def test_a_refused_write_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the file size fails in the writes where a full disk does."""
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, tmp_path],
        env=_CHILD_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    *refused, last = done.stdout.splitlines()
    message = f"cannot save the checkpoint of step 2 in {tmp_path}: File too large; make room"
    assert len(refused) == 2
    assert all(line.startswith(message) for line in refused)
    assert last == "3"
    assert names(tmp_path) == {"1", "3"}


def test_a_file_in_the_way_is_a_save_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Checkpoints(tmp_path / "file") as checkpoints, pytest.raises(SaveError, match="step 1"):
        checkpoints.save(1, state_of(1), {})


# Forks before JAX has threads; each fork kills itself at one file operation of its later saves.
_KILLED = """
import os, pathlib, signal, sys
import jax.numpy as jnp
from sparsemlp.checkpoints.checkpoint import Checkpoints

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}

def run(directory, moment):
    count = -1
    def kill_at_moment(event, args):
        nonlocal count
        if count >= 0 and event in EVENTS:
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(kill_at_moment)
    checkpoints = Checkpoints(directory)
    for value, step in enumerate([1, 2, 2, 3, 4]):
        if value == 2:
            count = 0
        state = {str(i): jnp.full((64, 64), value, jnp.int32) for i in range(4)}
        checkpoints.save(step, state, {"value": value, "step": step})
        directory.with_suffix(".saved").write_text(str(value))

for moment in map(int, sys.argv[2:]):
    directory = pathlib.Path(sys.argv[1], str(moment))
    if not (child := os.fork()):
        run(directory, moment)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.thorough
def test_a_kill_at_any_moment_leaves_the_newest_complete_state(tmp_path: Path) -> None:
    """Another process reads all the while and never sees less than what was already saved."""
    like = {str(i): jnp.zeros((64, 64), jnp.int32) for i in range(4)}

    def newest(directory: Path) -> int:
        with Checkpoints(directory) as checkpoints:
            restored = checkpoints.restore(like)
        value = restored.metadata["value"]
        assert isinstance(value, int)
        assert restored.step == restored.metadata["step"] == [1, 2, 2, 3, 4][value]
        assert_same_bits(restored.state, {n: jnp.full_like(x, value) for n, x in like.items()})
        return value

    moments = [str(moment) for moment in sorted(random.Random(0).sample(range(1, 160), 6))]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _KILLED, tmp_path, *part],
            env=_CHILD_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for part in (moments[::2], moments[1::2])
    ]
    while any(child.poll() is None for child in children):
        for file in tmp_path.glob("*.saved"):
            if saved := file.read_text():
                assert newest(file.with_suffix("")) >= int(saved)
        time.sleep(0.05)
    codes = [int(code) for child in children for code in child.communicate()[0].split()]
    assert len(codes) == len(moments)
    assert set(codes) <= {-signal.SIGKILL, 0}
    assert codes.count(-signal.SIGKILL) > len(moments) / 2
    for moment in moments:
        directory = tmp_path / moment
        saved = int(directory.with_suffix(".saved").read_text() or 0)
        assert newest(directory) in (saved, saved + 1)
        with Checkpoints(directory) as checkpoints:
            checkpoints.save(5, like, {})
            assert checkpoints.steps()[-1] == 5
        assert len(names(directory)) == 2
        assert all(name.isdigit() for name in names(directory))
