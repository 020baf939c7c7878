"""Worker processes make what one process would, and neither outlive nor disturb their parent."""

import collections
import contextlib
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sparsemlp.data.imagenet import workers
from sparsemlp.data.imagenet.batch_plan import BatchPlan
from sparsemlp.data.imagenet.folder import find_images
from sparsemlp.data.imagenet.loading import Chunk, Loader
from sparsemlp.data.imagenet.workers import leave_signals_to_parent, load_ahead, require_grain
from sparsemlp.errors import InputError, WorkerError

LONGEST_WAIT_S = 120.0


@pytest.fixture
def loader(image_folder: Path) -> Loader:
    source = find_images(image_folder / "train")
    return Loader(source, BatchPlan(len(source), 4, seed=0), 16)


@contextlib.contextmanager
def chunks_of_workers(loader: Loader, n_workers: int) -> Iterator[Iterator[Chunk]]:
    """The chunks from the third on, taken in a thread as a pipeline does."""
    chunks = load_ahead(loader, 2, n_workers=n_workers, n_ahead=1)
    with ThreadPoolExecutor(1, initializer=leave_signals_to_parent) as thread:
        try:
            yield iter(lambda: thread.submit(next, chunks).result(), None)
        finally:
            thread.submit(chunks.close).result()


def assert_same(actual: Chunk, expected: Chunk) -> None:
    np.testing.assert_array_equal(actual.images, expected.images)
    np.testing.assert_array_equal(actual.labels, expected.labels)
    assert actual.unreadable == expected.unreadable


def test_workers_make_the_chunks_of_one_process_in_order_and_end(loader: Loader):
    before = set(multiprocessing.active_children())
    with chunks_of_workers(loader, 2) as chunks:
        for number in range(2, 5):
            assert_same(next(chunks), loader[number])
        children = set(multiprocessing.active_children()) - before
        assert len(children) == 2
        for child in children:
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(child.pid or 0, number)
        for number in range(5, 12):
            assert_same(next(chunks), loader[number])
        assert all(child.is_alive() for child in children)
    assert not any(child.is_alive() for child in children)


def test_little_shared_memory_does_and_a_killed_worker_is_one_line(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers, "_has_shared_memory", lambda n_bytes: False)
    before = set(multiprocessing.active_children())
    with chunks_of_workers(loader, 1) as chunks:
        for number in range(2, 5):
            assert_same(next(chunks), loader[number])
        (child,) = set(multiprocessing.active_children()) - before
        os.kill(child.pid or 0, signal.SIGKILL)
        with pytest.raises(
            WorkerError, match="was killed by SIGKILL, often for want of m"
        ) as found:
            collections.deque(itertools.islice(chunks, 10))
    assert "\n" not in str(found.value)


class Broken:
    """A source that makes its readers fail in another way than a damaged file does."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def read(self, index: int) -> tuple[bytes, int]:
        raise OSError(f"image {index}")

    def name(self, index: int) -> str:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (KeyError("a\nb"), WorkerError, r"failed \(KeyError: 'a\\nb'\)"),
        (RuntimeError("two\nlines"), WorkerError, r"failed \(RuntimeError: two lines\)"),
        (InputError("a rule"), InputError, "^a rule$"),
    ],
)
def test_a_failure_reaches_the_caller_in_one_line(
    error: Exception, kind: type[Exception], message: str
):
    with pytest.raises(kind, match=message) as found:
        next(load_ahead(Loader(Broken(error), BatchPlan(4, 4), 16), 0, n_workers=0, n_ahead=1))
    assert "\n" not in str(found.value)


def test_without_grain_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(InputError, match=r"pip install 'sparsemlp\[imagenet\]'"):
        require_grain()


PROGRAM = textwrap.dedent(
    """
    import multiprocessing, signal, sys
    from sparsemlp.data.imagenet import open_image_set, training_pipeline

    if __name__ == "__main__":
        # A shell that starts its tests in the background lets them ignore ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        images = open_image_set(sys.argv[1]).train
        try:
            with training_pipeline(
                images, batch_size=4, image_size=16, seed=0, n_workers=1
            ) as batches:
                for step, batch in enumerate(batches):
                    if step == 0:
                        assert multiprocessing.active_children()
                        print("started", flush=True)
        except KeyboardInterrupt:
            print("interrupted")
    """
)


def ended_by(program: subprocess.Popen[str], number: signal.Signals) -> tuple[str, str]:
    """Output and errors of a program that is sent a signal.

    A terminal sends ctrl-C to the whole group; a kill hits one process.
    """
    if number == signal.SIGINT:
        os.killpg(program.pid, number)
    else:
        os.kill(program.pid, number)
    try:
        # The worker holds both pipes too: they end when it has ended.
        return program.communicate(timeout=LONGEST_WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        raise


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent_in_silence(
    image_folder: Path, tmp_path: Path, number: signal.Signals
):
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, tmp_path / "program.py", image_folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
        out, err = ended_by(program, number)
    said = "interrupted\n" if number == signal.SIGINT else ""
    assert (out, err) == (said, "")
    assert program.returncode == (0 if number == signal.SIGINT else -number)


def test_shared_memory_is_asked_for_as_much_as_all_workers_fill(loader, monkeypatch):
    asked = []
    monkeypatch.setattr(workers, "_has_shared_memory", lambda n: asked.append(n) or True)
    with chunks_of_workers(loader, 2) as chunks:
        next(chunks)
    # Of each worker a chunk is ready, one in the making and one on its way: 4 rows of 16x16 pixels.
    assert asked == [2 * 3 * 4 * 3 * 16**2]


def test_free_shared_memory_is_enough_or_not(monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    assert workers._has_shared_memory(99)
    assert not workers._has_shared_memory(101)
    monkeypatch.setattr(workers, "_SHARED_MEMORY", tmp_path / "none")
    assert workers._has_shared_memory(101)
