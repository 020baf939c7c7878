"""One line a run and the time left, or bars for somebody who watches."""

import io
import re

import pytest
from rich.console import Console

from sparsemlp.sweeps.sweep_progress import SweepReporter, in_words


def sweep(file: io.StringIO, *, terminal: bool) -> str:
    """Two of three runs of ten epochs each."""
    console = Console(file=file, force_terminal=terminal, width=200, color_system=None)
    with SweepReporter(3, 1, 20, console) as reporter:
        for name in ("first", "second"):
            reporter.begin(name, 10)
            for done in range(1, 101):
                reporter.steps(done=done, total=100, epoch=1, loss=1.0, top1=0.5, rate=None)
            reporter.end(name, "test top-1 50%")
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())


def test_without_a_terminal_a_run_is_a_line_at_each_end():
    said = sweep(io.StringIO(), terminal=False).splitlines()
    assert [line.split(",")[0] for line in said] == [
        "[2/3] first",
        "[2/3] first: test top-1 50%",
        "[3/3] second",
        "[3/3] second: test top-1 50%",
    ]
    assert re.search(r", \d+ (s|min) left$", said[1])
    assert "left" not in said[3]


def test_on_a_terminal_a_bar_shows_the_run_of_all():
    shown = sweep(io.StringIO(), terminal=True)
    assert re.search(r"run 3/3 .* second", shown)


def test_the_time_left_is_that_of_the_epochs_left_at_the_pace_so_far(monkeypatch):
    now = 0.0
    monkeypatch.setattr("sparsemlp.sweeps.sweep_progress.time.monotonic", lambda: now)
    file = io.StringIO()
    with SweepReporter(2, 0, 200, Console(file=file, force_terminal=False)) as reporter:
        reporter.begin("resumed", 100)
        reporter.begins_at(501, 1000)
        now = 60.0 * 49.9
        reporter.steps(done=1000, total=1000, epoch=100, loss=1.0, top1=0.5, rate=None)
        reporter.end("resumed", "done")
    # 49.9 epochs took as many minutes, and 100 are left: those before the resume cost nothing.
    assert "1 h 40 min left" in file.getvalue()


@pytest.mark.parametrize("n_epochs", [1, 2])
def test_an_epoch_that_is_one_call_counts_whole(monkeypatch, n_epochs):
    now = 0.0
    monkeypatch.setattr("sparsemlp.sweeps.sweep_progress.time.monotonic", lambda: now)
    file = io.StringIO()
    with SweepReporter(10, 0, 10 * n_epochs, Console(file=file, force_terminal=False)) as reporter:
        reporter.begin("run", n_epochs)
        reporter.begins_at(0, n_epochs)
        for epoch in range(1, n_epochs + 1):
            now += 600.0 / n_epochs
            reporter.steps(done=epoch, total=n_epochs, epoch=epoch, loss=1.0, top1=0.5, rate=None)
        reporter.end("run", "done")
    assert "1 h 30 min left" in file.getvalue()


def test_an_epoch_is_printed_once_a_minute(monkeypatch):
    now = 0.0
    monkeypatch.setattr("sparsemlp.sweeps.sweep_progress.time.monotonic", lambda: now)
    record = dict.fromkeys(
        (
            "loss",
            "train_top1",
            "test_top1",
            "test_top5",
            "density",
            "changed_blocks",
            "images_per_second",
        ),
        0.5,
    )
    file = io.StringIO()
    with SweepReporter(1, 0, 9, Console(file=file, force_terminal=False, width=200)) as reporter:
        reporter.begin("run", 9)
        for epoch in range(1, 10):
            now += 25.0
            reporter.epoch(record | {"epoch": epoch})
    assert re.findall(r"epoch (\d)/9", file.getvalue()) == ["3", "6", "9"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5.0, "5 s"), (600.0, "10 min"), (12e3, "3 h 20 min"), (187_200.0, "2 d 4 h")],
)
def test_durations_are_words(seconds, words):
    assert in_words(seconds) == words


def test_a_second_population_of_a_job_takes_nothing_back(monkeypatch):
    now = 0.0
    monkeypatch.setattr("sparsemlp.sweeps.sweep_progress.time.monotonic", lambda: now)
    file = io.StringIO()
    with SweepReporter(3, 0, 100, Console(file=file, force_terminal=False)) as reporter:
        reporter.begin("two of three", 100)
        for dones in ((10, 100), (1, 50)):
            reporter.begins_at(0, 100)
            for done in dones:
                reporter.steps(done=done, total=100, epoch=done, loss=1.0, top1=0.5, rate=None)
        now = 60.0 * (100 + 50)
        assert reporter._time_left() == ", 50 min left"
