"""The processes of a run: joining them, what they agree on, and how they end together.

Every process runs the same program on its own devices; JAX makes one mesh of all of them. Process 0
alone reads and writes the folder of the run. Whatever depends on a clock, a signal or a file is
agreed on here, so that all processes make the same steps. With one process everything here is
trivial, and nothing is started.
"""

import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax

from sparsemlp.distributed.lifeline import DIED, Lifeline, LostError, end_now
from sparsemlp.distributed.place import Place
from sparsemlp.distributed.relay import relay
from sparsemlp.distributed.rendezvous import is_local, meet, split_address
from sparsemlp.errors import DeviceLostError, InputError, SaveError, WorkerError

_HEARTBEAT_SECONDS = 50
"""JAX's own heartbeats, should the lifeline fail: still within a minute."""

_SHUTDOWN_SECONDS = 20

_VERDICT_SECONDS = 5.0
"""How soon a lost process is known by its closed connection: an error before may be due to it."""

_lifeline: Lifeline | None = None
_failed = False


def join(place: Place | None, timeout: float) -> None:
    """Joins the other processes, before JAX is used for the first time.

    Args:
      place: of this process; None to stay alone.
      timeout: how long to wait for the others, in seconds.

    Raises:
      InputError: they do not come, or do not fit each other.
    """
    global _lifeline
    if place is None:
        return
    # Opened before JAX's connections, so that a killed process closes these first.
    links = meet(place.coordinator, place.count, place.index, timeout)
    _lifeline = Lifeline(place.index, links)
    _keep_output_to_python()
    host, _ = split_address(place.coordinator)
    port = shared(lambda: _free_port(host))
    bracketed = f"[{host}]" if ":" in host else host
    address = f"127.0.0.1:{relay(host, port)}" if place.index else f"{bracketed}:{port}"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
    try:
        jax.distributed.initialize(
            address,
            place.count,
            place.index,
            cluster_detection_method="deactivate",
            coordinator_bind_address=f"{bracketed if is_local(host) else '[::]'}:{port}",
            initialization_timeout=max(1, int(timeout)),
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"JAX cannot connect the processes at {host}:{port}: {reason}") from error


def _keep_output_to_python() -> None:
    """Keeps what C++ prints off the standard output: gloo says each connection that it makes."""
    sys.stdout.flush()
    sys.stdout = open(os.dup(1), "w", buffering=1, encoding=sys.stdout.encoding)  # noqa: SIM115
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host if is_local(host) else "", 0))
        return probe.getsockname()[1]


def count() -> int:
    """How many processes there are."""
    return 1 if _lifeline is None else _lifeline.count


def index() -> int:
    """Which of them this one is, from 0."""
    return 0 if _lifeline is None else _lifeline.index


def is_first() -> bool:
    """Whether this is the process that reads and writes the folder of the run."""
    return index() == 0


def gather(value: Any) -> list[Any]:
    """The values of all processes in their order; all of them call this, in the same order.

    Args:
      value: anything that JSON can hold; tuples become lists where there are several processes.
    """
    return [value] if _lifeline is None else _lifeline.gather(value)


def shared[T](function: Callable[[], T]) -> T:
    """What a function returns on process 0, which alone calls it; an error there ends all."""
    return gather(function() if is_first() else None)[0]


def agree(n_steps: int, signal: int | None) -> tuple[int, int | None]:
    """What all processes do next: one exchange for each chunk of steps, so that they stay together.

    Args:
      n_steps: how many steps this process would make, by its own clock.
      signal: number of the signal that this process got, or None.

    Returns:
      The steps that process 0 wants, and the signal of the first process that got one.
    """
    if _lifeline is None:
        return n_steps, signal
    found = _lifeline.gather([n_steps, signal])
    return found[0][0], next((number for _, number in found if number is not None), None)


def wait_for_all() -> None:
    """Waits until all processes are here; gloo gives up a process that is 30 s late.

    To be called wherever the time is not the same on all of them, as after a compilation.
    """
    gather(None)


def require_alike(what: Mapping[str, Any]) -> None:
    """Raises InputError on every process unless all of them have the same values, JSON each."""
    if _lifeline is None:
        return
    first, *others = _lifeline.gather(dict(what))
    for process, other in enumerate(others, start=1):
        for name, value in first.items():
            if other.get(name) != value:
                raise InputError(
                    f"{name} is {other.get(name)} on process {process} and {value} on process 0: "
                    "all processes of a run need the same options and data"
                )


def in_turn[T](function: Callable[[], T]) -> T:
    """Calls a function on process 0, then on the others, which find what it has prepared."""
    if not is_first():
        gather(None)
    result = function()
    if is_first():
        gather(None)
    return result


def guarded(program: Callable[[], int], together: tuple[type[BaseException], ...] = ()) -> int:
    """Runs a program; if it raises on one process, all of them end.

    Args:
      program: returns its exit code.
      together: the errors that all processes raise at the same step.
    """
    global _failed
    try:
        return program()
    except together:
        raise
    except BaseException as error:
        if _lifeline is not None:
            _failed = True
            _give_up(_lifeline, error)
        raise


def _give_up(lifeline: Lifeline, error: BaseException) -> None:
    """Tells the other processes; ends this one as well after an error that nobody catches."""
    where = f"process {lifeline.index}"
    if isinstance(error, LostError):
        time.sleep(60)  # the listening thread is ending this process
    if isinstance(error, InputError | SaveError):
        lifeline.fail(f"error: {where}: {error}", 2)
    elif isinstance(error, WorkerError):
        lifeline.fail(f"stopped: {where}: {error}; go on with --resume", DIED)
    elif isinstance(error, DeviceLostError):
        lifeline.fail(f"stopped: {where}: {error}", DIED)
    elif isinstance(error, KeyboardInterrupt):
        lifeline.fail(f"stopped at once, as {where} was", 130)
    elif isinstance(error, SystemExit | BrokenPipeError):
        lifeline.fail(f"error: {where} ended early", 1)
    else:
        time.sleep(_VERDICT_SECONDS)  # a lost process ends this one in the meantime
        reason = (str(error).splitlines() or [""])[0]
        lifeline.fail(f"error: {where} failed: {type(error).__name__}: {reason}", DIED)
        traceback.print_exception(error)
        _flush()
        end_now(f"error: {where} failed", 1)


def leave(code: int) -> int:
    """Ends the connections to the other processes, if there are any.

    After an error of this process alone it ends at once: JAX would wait for the others.

    Args:
      code: the exit code.

    Returns:
      The exit code.
    """
    global _lifeline
    if _lifeline is None:
        return code
    if _failed:
        _flush()
        os._exit(code)
    with contextlib.suppress(LostError, RuntimeError):
        _lifeline.gather(None)
        jax.distributed.shutdown()
    _lifeline.leave()
    _lifeline = None
    return code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
