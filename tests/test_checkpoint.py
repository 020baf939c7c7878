"""Checkpoints give back the bits that were saved, or say that they cannot."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from sparsemlp.checkpoint import Checkpoints
from sparsemlp.errors import InputError, SaveError
from sparsemlp.files import Record


class _Moments(NamedTuple):
    mean: dict[str, jax.Array]
    n_steps: jax.Array


def _state(step: int) -> dict[str, Any]:
    """Returns a state of every dtype and container in use, different at every step."""
    bits = np.random.default_rng(step).integers(0, 2**32, (37, 53), dtype=np.uint32)
    return {
        "params": {"layer.0": {"kernel": jnp.array(bits.view(np.float32))}},
        "moments": (_Moments({"m/n": jnp.full((3, 5), step, jnp.bfloat16)}, jnp.int32(step)), ()),
        "list": [jnp.array(bits[0]), jnp.array(bits[1] % 2 == 0), jnp.array(step % 2 == 0)],
        "none": None,
        "empty": jnp.zeros((0, 4), jnp.float32),
        "rng": jax.random.key_data(jax.random.key(step)),
    }


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _assert_same_bits(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.dtype, a.shape, a.weak_type) == (e.dtype, e.shape, False)
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes()


def _names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with intact checkpoints of the steps 1 and 2."""
    with Checkpoints(tmp_path / "two") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, _state(step), {"step": step})
    return tmp_path / "two"


@pytest.mark.parametrize("like", [_state, lambda step: _abstract(_state(step))])
def test_restores_the_exact_state(tmp_path: Path, like: Callable[[int], Any]) -> None:
    metadata: Record = {"loss": 0.1 + 0.2, "deep": {"2": [None, True, "x"], "10": -0.0}}
    with Checkpoints(tmp_path / "made" / "here") as checkpoints:
        checkpoints.save(7, _state(7), metadata, score=0.5)
        assert checkpoints.steps() == [7]
    with Checkpoints(tmp_path / "made" / "here") as checkpoints:
        restored = checkpoints.restore(like(0))
    assert (restored.step, restored.metadata) == (7, metadata)
    _assert_same_bits(restored.state, _state(7))
    assert all(leaf.committed for leaf in jax.tree.leaves(restored.state))
    assert {d for leaf in jax.tree.leaves(restored.state) for d in leaf.devices()} == (
        jnp.zeros(()).devices()
    )


def test_orbax_alone_reads_the_state(two: Path) -> None:
    with warnings.catch_warnings(action="ignore"), ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(two / "2" / "state")
    expected = _state(2)["params"]["layer.0"]["kernel"]
    assert np.asarray(state["params/layer.0/kernel"]).tobytes() == np.asarray(expected).tobytes()


def test_keeps_the_last_two_and_the_best(tmp_path: Path) -> None:
    scores = [0.1, None, 0.7, 0.3, float("nan"), 0.7, 0.2, None, float("inf"), 0.9, 0.1, 0.2]
    state = {"x": jnp.ones(3)}
    best, best_score = 0, float("-inf")
    with Checkpoints(tmp_path) as checkpoints:
        for step, score in enumerate(scores, start=1):
            checkpoints.save(step, state, {}, score)
            if score is not None and score >= best_score:
                best, best_score = step, score
            expected = {best, step - 1, step} - {0}
            assert checkpoints.steps() == sorted(expected)
            assert _names(tmp_path) == {str(s) for s in expected}


def test_a_step_saved_again_replaces_itself_and_later_ones_go(two: Path) -> None:
    with Checkpoints(two) as checkpoints:
        checkpoints.save(2, _state(12), {"again": True})
        restored = checkpoints.restore(_state(0))
        assert (restored.step, restored.metadata) == (2, {"again": True})
        _assert_same_bits(restored.state, _state(12))
        assert _names(two) == {"1", "2"}
        checkpoints.save(1, _state(11), {})
        assert _names(two) == {"1"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rng": jnp.zeros((3,), jnp.uint32)}, r"leaf rng is uint32\[2\] .* and uint32\[3\] "),
        ({"rng": jnp.zeros((2,), jnp.int32)}, r"leaf rng is uint32\[2\] .* and int32\[2\] "),
        ({"list": []}, r"leaf list/0 is uint32\[53\] .* and absent "),
        ({"none": jnp.zeros(())}, r"leaf none is absent .* and float32\[\] "),
        ({"empty": jnp.zeros((4, 0))}, r"leaf empty is float32\[0, 4\] .* and float32\[4, 0\] "),
    ],
)
def test_another_structure_is_an_input_error(
    two: Path, change: dict[str, Any], message: str
) -> None:
    with Checkpoints(two) as checkpoints, pytest.raises(InputError, match=message):
        checkpoints.restore(_state(0) | change)


def test_two_leaves_of_one_name_are_an_input_error(tmp_path: Path) -> None:
    state = {"a/b": jnp.zeros(1), "a": {"b": jnp.ones(1)}}
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(InputError, match="called a/b"):
        checkpoints.save(1, state, {})


def _restore_damaged(directory: Path, newest: int = 2) -> int:
    """Returns the step restored; its bits must be right, and a skip must be told in one line."""
    with Checkpoints(directory) as checkpoints, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        restored = checkpoints.restore(_state(0))
    _assert_same_bits(restored.state, _state(restored.step))
    assert restored.metadata == {"step": restored.step}
    told = [str(warning.message) for warning in caught]
    assert len(told) == (restored.step != newest)
    assert all(f"damaged checkpoint {directory / str(newest)} skipped: " in t for t in told)
    assert not any("\n" in t for t in told)
    return restored.step


def test_no_damage_to_any_file_changes_what_is_restored(two: Path) -> None:
    """Files that only describe may be harmless to damage; those that hold arrays never are."""
    outcomes: dict[str, list[int]] = {}
    for file in sorted(file for file in (two / "2").rglob("*") if file.is_file()):
        content = file.read_bytes()
        middle = len(content) // 2
        flipped = bytes([*content[:middle], content[middle] ^ 1, *content[middle + 1 :]])
        for damaged in (flipped, content[:middle], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            outcomes.setdefault(file.name, []).append(_restore_damaged(two))
            file.write_bytes(content)
    assert outcomes["metadata"] == [1, 1, 1]
    assert sum(steps.count(1) for steps in outcomes.values()) >= 12
    assert _restore_damaged(two) == 2


def test_flipped_bytes_of_arrays_are_seen(two: Path) -> None:
    """Nearly all of the largest file are the arrays' bytes, which orbax reads without a check."""
    file = max((two / "2" / "state").rglob("*"), key=lambda f: f.is_file() and f.stat().st_size)
    content = file.read_bytes()
    steps = []
    for at in range(100, len(content), len(content) // 12):
        file.write_bytes(bytes([*content[:at], content[at] ^ 16, *content[at + 1 :]]))
        steps.append(_restore_damaged(two))
    assert steps.count(1) >= len(steps) - 2


def test_changed_metadata_is_seen(two: Path) -> None:
    file = two / "2" / "manifest" / "metadata"
    manifest = json.loads(file.read_text())
    manifest["metadata"]["step"] = 3
    file.write_text(json.dumps(manifest))
    assert _restore_damaged(two) == 1


def test_a_half_written_checkpoint_is_passed_over(two: Path) -> None:
    (two / "3").mkdir()
    shutil.copytree(two / "2", two / ".saving" / "4.orbax-checkpoint-tmp")
    with Checkpoints(two) as checkpoints:
        with pytest.warns(UserWarning, match=r"two/3 skipped: unreadable manifest"):
            assert checkpoints.restore(_state(0)).step == 2
        checkpoints.save(4, _state(4), {"step": 4})
    assert _names(two) == {"2", "4"}
    assert _restore_damaged(two, newest=4) == 4


def test_no_intact_checkpoint_is_an_input_error(two: Path, tmp_path: Path) -> None:
    for manifest in two.glob("*/manifest"):
        shutil.rmtree(manifest)
    with (
        Checkpoints(two) as checkpoints,
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(InputError, match=r"no intact checkpoint in .*two \(2 damaged\)"),
    ):
        checkpoints.restore(_state(0))
    with (
        Checkpoints(tmp_path / "absent") as checkpoints,
        pytest.raises(InputError, match=r"no intact checkpoint in .*absent \(0 damaged\)"),
    ):
        checkpoints.restore(_state(0))
    assert not (tmp_path / "absent").exists()


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
                checkpoints.save(step, _state(step), {})
                timer.join()
            assert checkpoints.restore(_state(0)).step == 2
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
from sparsemlp.checkpoint import Checkpoints
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
    assert _names(tmp_path) == {"1", "3"}


def test_a_file_in_the_way_is_a_save_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Checkpoints(tmp_path / "file") as checkpoints, pytest.raises(SaveError, match="step 1"):
        checkpoints.save(1, _state(1), {})


# Forks before JAX has threads; each fork kills itself at one file operation of its later saves.
_KILLED = """
import os, pathlib, signal, sys
import jax.numpy as jnp
from sparsemlp.checkpoint import Checkpoints

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


def test_a_kill_at_any_moment_leaves_the_newest_complete_state(tmp_path: Path) -> None:
    """Another process reads all the while and never sees less than what was already saved."""
    like = {str(i): jnp.zeros((64, 64), jnp.int32) for i in range(4)}

    def newest(directory: Path) -> int:
        with Checkpoints(directory) as checkpoints:
            restored = checkpoints.restore(like)
        value = restored.metadata["value"]
        assert isinstance(value, int)
        assert restored.step == restored.metadata["step"] == [1, 2, 2, 3, 4][value]
        _assert_same_bits(restored.state, {n: jnp.full_like(x, value) for n, x in like.items()})
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
        assert len(_names(directory)) == 2
        assert all(name.isdigit() for name in _names(directory))
