"""Connections between the processes of a run: values that all must know, and who has died.

Process 0 has a TCP connection to each other process. JSON lines go over it: values to be gathered,
heartbeats, and the last words of a process that fails. The system closes the connections of a
process that ends, so that the others know at once; one that is silent for `SILENCE_SECONDS`, since
its machine is lost, counts as dead.

JAX's own heartbeats are not enough: with JAX 0.11 and 0.12 a process that misses a peer aborts with
a C++ stack trace, and nothing says what to do. Collectives of a lost peer may fail or wait forever,
so a thread of its own listens here and ends the process whatever it waits for.
"""

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

SILENCE_SECONDS = 30.0
"""After so long without a heartbeat a process is given up."""

_BEAT_SECONDS = 5.0
_FAREWELL_SECONDS = 3.0
"""How long process 0 waits for the others to end before it does when the run fails."""

DIED = 4
"""The exit code of a process whose run lost another process."""


class LostError(RuntimeError):
    """The run has failed, and this process is about to be ended with it."""


class Link:
    """A connection to another process, over which JSON objects go one a line.

    Attributes:
      peer: index of the other process.

    Args:
      connection: the connected socket.
      peer: index of the other process.
    """

    def __init__(self, connection: socket.socket, peer: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self._socket = connection
        self.wait_at_most(SILENCE_SECONDS)
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def wait_at_most(self, seconds: float) -> None:
        """Gives the other process so long to answer or to take what is sent."""
        self._socket.settimeout(seconds)

    def send(self, **message: Any) -> None:
        """Sends one object.

        Raises:
          OSError: the other process is gone.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)

    def receive(self) -> dict[str, Any]:
        """The next object.

        Raises:
          OSError: the other process is gone, or silent for too long.
          ValueError: it sent something else.
        """
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection was closed")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"{message!r} is no JSON object")
        return message

    def is_ended(self) -> bool:
        """Whether the other process has closed it, as the system does for one that died."""
        before = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._socket.settimeout(before)

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()


class Lifeline:
    """One process among those of a run.

    Args:
      index: which one, from 0.
      links: its connections: of process 0 to all others in their order, of others to process 0.
      end: ends this process with a line and an exit code; called in another thread.
    """

    def __init__(
        self, index: int, links: Sequence[Link], end: Callable[[str, int], object] | None = None
    ) -> None:
        self.index = index
        self.count = len(links) + 1
        self._links = list(links)
        self._end = end_now if end is None else end
        self._inbox: dict[int, queue.SimpleQueue[Any]] = {
            link.peer: queue.SimpleQueue() for link in links
        }
        self._gone = {link.peer: threading.Event() for link in links}
        self._leaving = threading.Event()
        self._first = threading.Lock()
        for link in links:
            threading.Thread(target=self._listen, args=(link,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in their order; all of them call this, in the same order.

        Args:
          value: anything that JSON can hold.

        Raises:
          LostError: a process is gone, and this one is being ended.
        """
        if self.index:
            self._send(self._links[0], value)
            return self._value(self._links[0])
        values = [value, *(self._value(link) for link in self._links)]
        for link in self._links:
            self._send(link, values)
        return values

    def fail(self, line: str, code: int) -> None:
        """Ends all other processes; the caller ends this one.

        Args:
          line: what they print.
          code: what they exit with.
        """
        if self._first.acquire(blocking=False):
            self._tell(line, code)

    def leave(self) -> None:
        """Ends the connections of a run that is over on all processes."""
        self._leaving.set()
        for link in self._links:
            with contextlib.suppress(OSError):
                link.send(left=True)
        for link in self._links:
            self._gone[link.peer].wait(_FAREWELL_SECONDS)
            link.close()

    def _send(self, link: Link, value: Any) -> None:
        try:
            link.send(value=value)
        except OSError as error:
            self._value(link)
            raise LostError(f"process {link.peer} is gone") from error

    def _value(self, link: Link) -> Any:
        value = self._inbox[link.peer].get()
        if isinstance(value, LostError):
            raise value
        return value

    def _listen(self, link: Link) -> None:
        line, code = f"error: process {link.peer} died", DIED
        line += "; a run that had begun goes on from its last checkpoint with --resume"
        try:
            while True:
                message = link.receive()
                if "value" in message:
                    self._inbox[link.peer].put(message["value"])
                elif "failed" in message:
                    line, code = message["failed"]
                    break
                elif "left" in message:
                    return
        except (OSError, ValueError):
            if self._leaving.is_set():
                return
        finally:
            self._gone[link.peer].set()
        self._fail_all(line, code)

    def _fail_all(self, line: str, code: int) -> None:
        if self._first.acquire(blocking=False):
            self._tell(line, code)
            self._end(line, code)
        for inbox in self._inbox.values():
            inbox.put(LostError(line))

    def _tell(self, line: str, code: int) -> None:
        """Tells the others, and lets them end first: JAX aborts them when process 0 is gone."""
        left = [link for link in self._links if not self._gone[link.peer].is_set()]
        for link in left:
            with contextlib.suppress(OSError):
                link.send(failed=[line, code])
        deadline = time.monotonic() + _FAREWELL_SECONDS
        for link in left if self.index == 0 else ():
            self._gone[link.peer].wait(deadline - time.monotonic())

    def _beat(self) -> None:
        while not self._leaving.wait(_BEAT_SECONDS):
            for link in self._links:
                with contextlib.suppress(OSError):
                    link.send(beat=True)


def end_now(line: str, code: int) -> NoReturn:
    """Ends this process from any thread, whatever its others wait for."""
    if sys.stderr.isatty():
        line = "\r\x1b[?25h" + line  # a progress bar had hidden the cursor
    os.write(2, line.encode(errors="replace") + b"\n")
    os._exit(code)
