"""Processes find each other whatever comes first; those that do not fit are told why."""

import contextlib
import socket
import threading
import time
from typing import Any

import launch
import pytest
from test_lifeline import connected

from sparsemlp.distributed import rendezvous
from sparsemlp.distributed.lifeline import SILENCE_SECONDS, Link
from sparsemlp.distributed.rendezvous import is_local, meet, split_address
from sparsemlp.errors import InputError


def at_once(places: list[tuple[str, int, int]], timeout: float = 20.0) -> list[Any]:
    """The peers that each place finds, or what it is told."""
    found: list[Any] = [None] * len(places)

    def note(i: int) -> None:
        try:
            links = meet(*places[i], timeout)
            found[i] = links
        except InputError as error:
            found[i] = str(error)

    threads = [threading.Thread(target=note, args=(i,)) for i in reversed(range(len(places)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def close(found: list[Any]) -> None:
    for links in found:
        for link in links if isinstance(links, list) else ():
            link.close()


def connected_to(address: str) -> socket.socket:
    """A connection to whoever listens there within four seconds."""
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(split_address(address), timeout=1)
        time.sleep(0.02)
    raise AssertionError(f"nobody listens at {address}")


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{launch.free_port()}"


def test_process_0_has_a_connection_to_each_other(address):
    found = at_once([(address, 3, i) for i in range(3)])
    assert [[link.peer for link in links] for links in found] == [[1, 2], [0], [0]]
    found[0][1].send(to=2)
    assert found[2][0].receive() == {"to": 2}
    close(found)


def test_a_stranger_is_sent_away(address):
    def disturb() -> None:
        with connected_to(address) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.recv(1)

    stranger = threading.Thread(target=disturb)
    stranger.start()
    first = threading.Thread(target=lambda: found.extend(at_once([(address, 2, 0)])))
    found: list[Any] = []
    first.start()
    stranger.join(20)
    second = at_once([(address, 2, 1)])
    first.join(20)
    assert [len(links) for links in found + second] == [1, 1]
    close(found + second)


def test_counts_that_differ_are_told_to_both(address):
    told = at_once([(address, 2, 0), (address, 3, 1)])
    assert (
        told[0]
        == told[1]
        == ("process 0 has --processes=2, process 1 has 3: give all of them the same")
    )


def test_two_processes_of_one_number_are_told(address):
    told = at_once([(address, 3, 0), (address, 3, 1), (address, 3, 1)])
    assert len(set(told)) == 1
    assert told[0].startswith("two processes have --process=1: give each another")


def test_a_process_that_died_meanwhile_may_be_started_again(address):
    found: dict[int, Any] = {}

    def come(process: int) -> None:
        (found[process],) = at_once([(address, 3, process)])

    first = threading.Thread(target=come, args=(0,))
    first.start()
    for _ in range(2):
        with connected_to(address) as died:
            died.sendall(b'{"process": 1, "processes": 3}\n')
    others = [threading.Thread(target=come, args=(process,)) for process in (1, 2)]
    for thread in others:
        thread.start()
    for thread in [first, *others]:
        thread.join(60)
    assert [[link.peer for link in found[process]] for process in range(3)] == [[1, 2], [0], [0]]
    found[0][0].send(to=1)
    assert found[1][0].receive() == {"to": 1}
    close(list(found.values()))


def test_a_process_that_died_meanwhile_is_missing(address):
    found: list[Any] = []
    first = threading.Thread(target=lambda: found.extend(at_once([(address, 3, 0)], timeout=2.5)))
    first.start()
    with connected_to(address) as died:
        died.sendall(b'{"process": 1, "processes": 3}\n')
    first.join(60)
    assert "process 1, 2;" in found[0]


def test_who_waits_less_long_than_process_0_is_told_that_others_are_missing(address, monkeypatch):
    monkeypatch.setattr(rendezvous, "_GREETING_SECONDS", 0.5)
    first = threading.Thread(target=lambda: found.extend(at_once([(address, 3, 0)], timeout=4.0)))
    found: list[Any] = []
    first.start()
    connected_to(address).close()  # it listens
    (told,) = at_once([(address, 3, 1)], timeout=0.5)
    assert told.startswith(f"process 0 at --coordinator={address} did not begin within 0.5 s: ")
    first.join(60)
    assert "process 1, 2;" in found[0]


def test_missing_processes_are_named_and_those_that_came_are_told(address):
    told = at_once([(address, 4, 0), (address, 4, 2)], timeout=1.0)
    assert told[0] == told[1]
    assert "did not come to 127.0.0.1" in told[0]
    assert "process 1, 3;" in told[0]


def test_nobody_at_the_address(address):
    (told,) = at_once([(address, 2, 1)], timeout=0.3)
    assert told.startswith(f"no process 0 at --coordinator={address} within 0.3 s (")


def test_a_host_that_does_not_exist():
    with pytest.raises(InputError, match=r"--coordinator=nowhere\.invalid:6000: "):
        meet("nowhere.invalid:6000", 2, 1, 5.0)


def test_a_port_that_is_taken(address):
    with (
        socket.create_server(split_address(address)),
        pytest.raises(InputError, match=r"process 0 cannot listen at .*: Address already in use"),
    ):
        meet(address, 2, 0, 5.0)


def test_whoever_listens_there_may_be_another(address):
    with socket.create_server(split_address(address)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"220 ready\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(InputError, match="is no process 0 of this run"):
            meet(address, 2, 1, 5.0)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("node01:6000", ("node01", 6000)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses_are_taken_apart(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "node", "node:", ":1", "a b:1", "n:0", "n:65536", "::1:5"])
def test_no_addresses(address):
    with pytest.raises(InputError, match="is no HOST:PORT: give the machine of process 0"):
        split_address(address)


def test_a_loopback_address_is_for_this_machine_alone():
    assert is_local("localhost")
    assert not is_local("node01")


@pytest.mark.parametrize("said", [b"{}\n", b'{"process": null, "processes": 2}\n'])
def test_a_stranger_that_speaks_json_is_let_go(said):
    links: dict[int, Link] = {}
    ours, theirs = connected()
    with theirs:
        theirs.sendall(said)
        rendezvous._greet(ours, links, 2)
        assert theirs.recv(1) == b""
    assert not links


def test_a_stranger_that_says_nothing_is_let_go_soon(monkeypatch):
    monkeypatch.setattr(rendezvous, "_GREETING_SECONDS", 0.1)
    ours, theirs = connected()
    with theirs:
        theirs.settimeout(10)
        threading.Thread(target=rendezvous._greet, args=(ours, {}, 2), daemon=True).start()
        assert theirs.recv(1) == b""


def test_links_wait_as_long_as_a_sign_of_life_may_take(address):
    found = at_once([(address, 2, process) for process in range(2)])
    assert [links[0]._socket.gettimeout() for links in found] == [SILENCE_SECONDS] * 2
    close(found)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_this_machine_is_local_by_any_name(host):
    assert is_local(host)


def test_processes_meet_at_an_address_of_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    address = f"[::1]:{launch.free_port()}"
    found = at_once([(address, 2, process) for process in range(2)])
    assert [[link.peer for link in links] for links in found] == [[1], [0]]
    close(found)


def test_those_who_came_early_wait_for_one_who_is_late(address, monkeypatch):
    monkeypatch.setattr(rendezvous, "_GREETING_SECONDS", 0.3)
    found: dict[int, Any] = {}

    def come(process: int) -> None:
        (found[process],) = at_once([(address, 3, process)])

    threads = [threading.Thread(target=come, args=(process,)) for process in range(3)]
    for thread in threads[:2]:
        thread.start()
    time.sleep(1.0)
    threads[2].start()
    for thread in threads:
        thread.join(60)
    assert [isinstance(found[process], list) for process in range(3)] == [True] * 3, found
    close(list(found.values()))
