"""All processes hear the same values, and every loss of one ends all others with the same words."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparsemlp.distributed import lifeline
from sparsemlp.distributed.lifeline import DIED, Lifeline, Link, LostError


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


class Team:
    """Three processes of a run, as threads see them; ends are noted instead of made."""

    def __init__(self) -> None:
        pairs = [connected() for _ in range(2)]
        links = [Link(ours, i) for i, (ours, _) in enumerate(pairs, start=1)]
        others = [Link(theirs, 0) for _, theirs in pairs]
        self.ends: list[queue.Queue[tuple[str, int]]] = [queue.Queue() for _ in range(3)]
        self.links = [links, *([link] for link in others)]
        self.members = [
            Lifeline(i, own, lambda line, code, i=i: self.ends[i].put((line, code)))
            for i, own in enumerate(self.links)
        ]

    def at_once(self, act: Callable[[Lifeline], Any]) -> list[Any]:
        """What each member gets, all acting at the same time."""
        found: list[Any] = [None] * 3

        def note(i: int) -> None:
            found[i] = act(self.members[i])

        threads = [threading.Thread(target=note, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return found

    def die(self, index: int) -> None:
        """Closes the connections of a member, as the system does when it is killed."""
        self.members[index]._leaving.set()
        for link in self.links[index]:
            link.close()

    def end_of(self, index: int) -> tuple[str, int]:
        return self.ends[index].get(timeout=20)


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    monkeypatch.setattr(lifeline, "_FAREWELL_SECONDS", 0.2)
    made = Team()
    yield made
    for member in made.members:
        with contextlib.suppress(OSError):
            member.leave()


def test_all_get_the_values_of_all_in_their_order(team):
    for attempt in range(20):
        values = [[attempt, None], "a\nline", {"nan": [1.5]}]
        found = team.at_once(lambda member, values=values: member.gather(values[member.index]))
        assert found == [values] * 3


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_closed_connection_ends_all_others_and_names_the_dead(team, dead):
    team.die(dead)
    for other in {0, 1, 2} - {dead}:
        line, code = team.end_of(other)
        assert code == DIED
        assert f"process {dead} died" in line
        assert "--resume" in line


def test_a_silent_process_is_given_up(monkeypatch):
    """Its machine is lost, so that nobody closes its connections."""
    monkeypatch.setattr(lifeline, "SILENCE_SECONDS", 0.3)
    ours, theirs = connected()
    ends: queue.Queue[tuple[str, int]] = queue.Queue()
    Lifeline(1, [Link(ours, 0)], lambda *end: ends.put(end))
    with theirs:
        assert ends.get(timeout=20)[1] == DIED


def test_heartbeats_keep_processes_that_have_nothing_to_say(monkeypatch):
    monkeypatch.setattr(lifeline, "SILENCE_SECONDS", 1.5)
    monkeypatch.setattr(lifeline, "_BEAT_SECONDS", 0.1)
    team = Team()
    with pytest.raises(queue.Empty):
        team.ends[0].get(timeout=2.5)
    assert team.at_once(lambda member: member.gather(1)) == [[1, 1, 1]] * 3
    team.at_once(lambda member: member.leave())


@pytest.mark.parametrize("failing", [0, 1])
def test_the_last_words_of_a_process_reach_all_others(team, failing):
    team.members[failing].fail("error: no such thing", 2)
    team.die(failing)
    for other in {0, 1, 2} - {failing}:
        assert team.end_of(other) == ("error: no such thing", 2)
    assert team.ends[failing].empty()


def test_whoever_waits_for_a_dead_process_is_released(team):
    released: queue.Queue[str] = queue.Queue()

    def wait() -> None:
        try:
            team.members[2].gather("value")
        except LostError as error:
            released.put(str(error))

    threading.Thread(target=wait, daemon=True).start()
    team.die(1)
    assert "process 1 died" in released.get(timeout=20)


def test_leaving_is_no_death(team):
    team.at_once(lambda member: (member.gather(None), member.leave()))
    with pytest.raises(queue.Empty):
        team.ends[0].get(timeout=0.3)
    assert all(end.empty() for end in team.ends)


def test_process_0_lets_the_others_end_first():
    """What JAX has of the others aborts when process 0 is gone."""
    ours, theirs = connected()
    member, other = Lifeline(0, [Link(ours, 1)], lambda *_: None), Link(theirs, 0)
    failing = threading.Thread(target=member.fail, args=("error: x", 2))
    failing.start()
    assert other.receive() == {"failed": ["error: x", 2]}
    failing.join(0.3)
    assert failing.is_alive()
    other.close()
    failing.join(20)
    assert not failing.is_alive()


def test_who_leaves_waits_for_the_others():
    ours, theirs = connected()
    member, other = Lifeline(0, [Link(ours, 1)], lambda *_: None), Link(theirs, 0)
    leaving = threading.Thread(target=member.leave)
    leaving.start()
    assert other.receive() == {"left": True}
    leaving.join(0.3)
    assert leaving.is_alive()
    other.send(left=True)
    leaving.join(20)
    assert not leaving.is_alive()
    other.close()


def test_a_value_that_cannot_be_sent_any_more_tells_who_failed_first(team):
    team.members[0].fail("error: no such thing", 2)
    team.die(0)
    assert team.end_of(1) == ("error: no such thing", 2)

    def gather_on() -> None:
        for _ in range(100):
            team.members[1].gather("x" * 10**6)

    with pytest.raises(LostError, match="no such thing"):
        gather_on()
