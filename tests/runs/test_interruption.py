"""The first signal is noted, the second one acts."""

import signal
import subprocess
import sys

import pytest

from sparsemlp.runs.interruption import Interruption, deferred_signals, noted_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def test_without_a_signal_nothing_is_noted():
    with deferred_signals() as interruption:
        assert interruption.signal is None
        assert interruption.name == ""


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_program_goes_on(number):
    with deferred_signals() as interruption:
        signal.raise_signal(number)
        assert interruption.signal == number
        assert interruption.name == number.name


@pytest.mark.parametrize("first", SIGNALS)
def test_the_second_signal_acts_at_once(first):
    with deferred_signals() as interruption:
        signal.raise_signal(first)
        assert interruption.signal == first
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


BOTH_AT_ONCE = """
import signal
from sparsemlp.runs.interruption import deferred_signals

both = (signal.SIGINT, signal.SIGTERM)
with deferred_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    for number in both:
        signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
    print("still there")
"""


def test_of_two_signals_at_once_the_second_acts():
    done = subprocess.run(
        [sys.executable, "-c", BOTH_AT_ONCE], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "SIGINT: finishing the steps under way, then saving; a second signal stops at once"
    ]


@pytest.mark.parametrize("raised", [None, *SIGNALS])
def test_afterwards_signals_do_what_they_did_before(raised):
    heard = []
    before = {n: signal.signal(n, lambda number, _: heard.append(number)) for n in SIGNALS}
    try:
        with deferred_signals():
            if raised is not None:
                signal.raise_signal(raised)
        assert heard == []
        for number in SIGNALS:
            signal.raise_signal(number)
        assert heard == list(SIGNALS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_error_passes_through_and_handlers_are_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), deferred_signals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_name_for_every_signal():
    interruption = Interruption()
    interruption.signal = 15
    assert interruption.name == "SIGTERM"


def test_noted_signals_never_act_and_are_all_remembered():
    with noted_signals(signal.SIGTERM, signal.SIGUSR2) as interruption:
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM):
            signal.raise_signal(number)
        assert interruption.signal == signal.SIGTERM
        assert interruption.heard == {signal.SIGTERM, signal.SIGUSR2}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_where_nobody_reads_what_is_said_of_it(monkeypatch, number):
    """Ctrl-C under `2>&1 | tee log` reaches tee too, which may be gone before."""

    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    with deferred_signals() as interruption:
        signal.raise_signal(number)
        assert interruption.signal == number
