"""How the processes of a run find each other: process 0 listens, the others come to it."""

import contextlib
import re
import socket
import time

from sparsemlp.distributed.lifeline import SILENCE_SECONDS, Link
from sparsemlp.errors import InputError

_GREETING_SECONDS = 5.0
_LOCAL = ("localhost", "127.0.0.1", "::1")


def meet(coordinator: str, count: int, index: int, timeout: float) -> list[Link]:
    """Connects process 0 with each other process.

    Args:
      coordinator: HOST:PORT, where process 0 listens.
      count: how many processes there are, at least 2.
      index: which of them this one is.
      timeout: how long to wait for the others, in seconds.

    Returns:
      The connections of process 0 to all others in their order; that of another one to process 0.

    Raises:
      InputError: the address is wrong, processes are missing, or they do not fit each other.
    """
    host, port = split_address(coordinator)
    deadline = time.monotonic() + timeout
    if index:
        return [_come(coordinator, (host, port), count, index, deadline, timeout)]
    return _receive_all(coordinator, (host, port), count, deadline, timeout)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 address stands in brackets.

    Raises:
      InputError: it is no such thing.
    """
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):(\d+)", address)
    if found is None or not 0 < int(found[2]) < 2**16:
        raise InputError(
            f"--coordinator={address} is no HOST:PORT: give the machine of process 0 and a free "
            "port of it, as node01:6000"
        )
    return found[1].strip("[]"), int(found[2])


def is_local(host: str) -> bool:
    """Whether a host names this machine for itself alone."""
    return host in _LOCAL


def _listener(host: str, port: int) -> socket.socket:
    if is_local(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    # A machine's own name may stand for 127.0.1.1 there, so the address itself is of no use.
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _receive_all(
    coordinator: str, address: tuple[str, int], count: int, deadline: float, timeout: float
) -> list[Link]:
    try:
        listener = _listener(*address)
    except OSError as error:
        raise InputError(
            f"process 0 cannot listen at --coordinator={coordinator}: {error.strerror or error}; "
            "choose a free port of its machine"
        ) from error
    links: dict[int, Link] = {}
    with listener:
        # Who came may have died while the others were waited for.
        while missing := [str(i) for i in range(1, count) if not _is_here(links, i)]:
            if (left := deadline - time.monotonic()) <= 0:
                _refuse(
                    links,
                    f"of --processes={count} did not come to {coordinator} within {timeout:g} s: "
                    f"process {', '.join(missing)}; start every one with the same --coordinator "
                    "and --processes",
                )
            listener.settimeout(left)
            with contextlib.suppress(TimeoutError):
                _greet(listener.accept()[0], links, count)
    for link in links.values():
        link.send(welcome=count)
    return [links[i] for i in sorted(links)]


def _greet(connection: socket.socket, links: dict[int, Link], count: int) -> None:
    """Adds a process that came; a stranger, who says something else, is sent away."""
    link = Link(connection, 0)
    try:
        link.wait_at_most(_GREETING_SECONDS)
        message = link.receive()
        link.peer, their_count = int(message["process"]), int(message["processes"])
        link.wait_at_most(SILENCE_SECONDS)
    except (OSError, ValueError, KeyError, TypeError):
        link.close()
        return
    if their_count != count:
        error = f"process 0 has --processes={count}, process {link.peer} has {their_count}"
        _refuse(links | {count: link}, f"{error}: give all of them the same")
    if _is_here(links, link.peer):
        _refuse(
            links | {count: link},
            f"two processes have --process={link.peer}: give each another, from 0 to {count - 1}",
        )
    if link.peer in links:  # it died meanwhile, and was started again
        links[link.peer].close()
    links[link.peer] = link


def _is_here(links: dict[int, Link], index: int) -> bool:
    return index in links and not links[index].is_ended()


def _refuse(links: dict[int, Link], reason: str) -> None:
    for link in links.values():
        with contextlib.suppress(OSError):
            link.send(refused=reason)
        link.close()
    raise InputError(reason)


def _come(
    coordinator: str,
    address: tuple[str, int],
    count: int,
    index: int,
    deadline: float,
    timeout: float,
) -> Link:
    while True:
        try:
            connection = socket.create_connection(address, timeout=_GREETING_SECONDS)
        except socket.gaierror as error:
            raise InputError(
                f"--coordinator={coordinator}: {error.strerror}; give the machine of process 0"
            ) from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise InputError(
                    f"no process 0 at --coordinator={coordinator} within {timeout:g} s "
                    f"({error.strerror or error}): start it there, or mend the address"
                ) from error
            time.sleep(0.1)
            continue
        link = Link(connection, 0)
        link.wait_at_most(max(1.0, deadline - time.monotonic()) + _GREETING_SECONDS)
        try:
            link.send(process=index, processes=count)
            message = link.receive()
        except TimeoutError as error:
            link.close()
            raise InputError(
                f"process 0 at --coordinator={coordinator} did not begin within {timeout:g} s: "
                "others of the run are missing, which its output names, or another program "
                "listens there"
            ) from error
        except (OSError, ValueError) as error:
            link.close()
            raise InputError(
                f"whoever listens at --coordinator={coordinator} is no process 0 of this run, or "
                "ended: look at its output, or choose another port"
            ) from error
        if "refused" in message:
            link.close()
            raise InputError(str(message["refused"]))
        link.wait_at_most(SILENCE_SECONDS)
        return link
