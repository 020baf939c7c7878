"""Worker processes that load the chunks of a loader ahead of time, through grain.

Chunks come in order, whichever worker loaded them. Workers leave signals to their parent and end
with it, even if it is killed.
"""

import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Generator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from sparsemlp.data.imagenet.loading import Chunk, Loader
from sparsemlp.errors import InputError, WorkerError, in_a_line

SIGNALS = {signal.SIGINT, signal.SIGTERM}
"""Signals that a shell or a scheduler sends to all processes, though they are for the parent."""
_SHARED_MEMORY = Path("/dev/shm")


def require_grain() -> Any:
    """The module `grain`.

    Raises:
      InputError: It is not installed.
    """
    try:
        import grain
        from absl import flags
    except ImportError as error:
        raise InputError(
            "large image sets are read through the package grain, which is not installed: "
            "pip install 'sparsemlp[imagenet]'"
        ) from error
    # Grain reads its flags through absl, which refuses in programs that parse theirs otherwise.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    return grain


def leave_signals_to_parent() -> None:
    """Blocks `SIGNALS` in this thread, and in all threads and processes that it will start."""
    # Python unblocks them again in the thread that starts its tracker of shared memory.
    _start_tracker()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _start_tracker() -> None:
    """Starts Python's tracker of shared memory, which cleans up after a process that is killed.

    It shall not tell of it: the line that says why the process ended would be followed by two on
    semaphores. It takes its filters from those of this interpreter.
    """
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


def load_ahead(
    loader: Loader, first: int, *, n_workers: int, n_ahead: int
) -> Generator[Chunk, None, None]:
    """Yields the chunks of a loader from one on, for ever.

    To be called and closed in a thread that has left its signals to the parent.

    Args:
      loader: What makes the chunks.
      first: Number of the first chunk.
      n_workers: Worker processes; 0 loads in this one, and not ahead.
      n_ahead: Chunks that each worker keeps ready.

    Raises:
      InputError: Raised by the loader.
      WorkerError: A worker died, or failed otherwise.
    """
    grain = require_grain()
    chunks = grain.MapDataset.source(loader)[first:].to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )
    chunk_bytes = 3 * loader.image_size**2 * -(-loader.plan.n_rows(0) // loader.plan.n_chunks(0))
    # Each worker has a chunk in the making and one on its way, beside those that are ready.
    if not _has_shared_memory((n_ahead + 2) * n_workers * chunk_bytes):
        options = grain.experimental.DatasetOptions(min_shm_size=2 * chunk_bytes)
        chunks = grain.experimental.WithOptionsIterDataset(chunks, options)
    iterator = iter(
        chunks.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=n_workers, per_worker_buffer_size=n_ahead),
            worker_init_fn=start_worker,
        )
    )
    try:
        yield from iterator
    except MemoryError:
        raise
    except InputError as error:
        raise InputError(str(error)) from error  # Without the notes that grain adds.
    except Exception as error:
        raise WorkerError(_failure(error)) from error
    finally:
        iterator.close()


def start_worker(index: int, n_workers: int) -> None:
    """Makes a process a worker: quiet, deaf to `SIGNALS`, and gone when its parent is."""
    del index, n_workers
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # Pillow warns of every odd EXIF entry.
    if (parent := multiprocessing.parent_process()) is not None:

        def end_with_parent() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()


def _has_shared_memory(n_bytes: int) -> bool:
    """Whether so much fits into shared memory; in a container that is often 64 MB."""
    return not _SHARED_MEMORY.is_dir() or shutil.disk_usage(_SHARED_MEMORY).free > n_bytes


def _failure(error: Exception) -> str:
    if died := re.search(r"terminated unexpectedly with exit code (-?\d+)", str(error)):
        code = int(died[1])
        if code < 0:
            name = signal.Signals(-code).name
            memory = ", often for want of memory" if -code == signal.SIGKILL else ""
            how = f"was killed by {name}{memory}"
        else:
            how = f"ended with exit code {code}"
        return f"a worker process of the input pipeline {how}: continue, perhaps with fewer workers"
    reason = f"{type(error).__name__}: {in_a_line(error)}"
    return f"a worker process of the input pipeline failed ({reason})"
