"""Lines where nobody watches, a bar where somebody does."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from sparsemlp.runs.progress import Reporter

RECORD = {
    "epoch": 3,
    "loss": 1.23456,
    "train_top1": 0.5,
    "test_top1": 0.4321,
    "test_top5": 0.875,
    "density": 0.2,
    "changed_blocks": 0.125,
    "images_per_second": 12345.6,
}


def report(console: Console, rate: float | None = 5000.0) -> None:
    with Reporter(200, console) as reporter:
        reporter.say("[bold]data[/bold] in runs/x[1]")
        reporter.waiting("compiling")
        reporter.steps(done=800, total=78200, epoch=3, loss=1.5, top1=0.25, rate=rate)
        reporter.epoch(RECORD)
        reporter.epoch(RECORD | {"epoch": 200})


def test_a_line_of_means_says_of_how_many_runs(file):
    with Reporter(200, Console(file=file, force_terminal=False)) as reporter:
        reporter.epoch(RECORD, 4)
    assert file.getvalue().endswith("images/s  (means of 4 runs)\n")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture
def file() -> io.StringIO:
    return io.StringIO()


def test_without_a_terminal_there_is_one_plain_line_an_epoch(file):
    report(Console(file=file, force_terminal=False, width=20))
    said, third, last = file.getvalue().splitlines()
    assert said == "[bold]data[/bold] in runs/x[1]"
    assert third.split() == [
        "epoch",
        "3/200",
        "loss",
        "1.2346",
        "train",
        "50.00%",
        "test",
        "43.21%",
        "top5",
        "87.50%",
        "density",
        "0.200",
        "changed",
        "0.125",
        "12,346",
        "images/s",
    ]
    assert last.startswith("epoch 200/200 ")
    assert third.index("loss") == last.index("loss")
    assert "\x1b" not in file.getvalue()


def test_on_a_terminal_a_bar_shows_where_the_run_is(file):
    report(Console(file=file, force_terminal=True, width=200, color_system=None))
    shown = plain(file.getvalue())
    assert re.search(r"epoch 3/200 .*loss 1\.5000  train 25\.0%  5,000 images/s", shown)
    assert shown.count("epoch   3/200  loss 1.2346") == 1
    assert "\x1b[?25h" in file.getvalue(), "the cursor is shown again at the end"


def test_a_speed_that_is_not_known_yet_is_not_shown(file):
    report(Console(file=file, force_terminal=True, width=200, color_system=None), rate=None)
    assert "train 25.0%" in plain(file.getvalue())
    assert "5,000 images/s" not in file.getvalue()


def test_time_left_is_shown_once_steps_were_made(file):
    console = Console(file=file, force_terminal=True, width=200, color_system=None)
    with Reporter(1, console) as reporter:
        for done in range(1, 50):
            reporter.steps(done=done, total=100, epoch=1, loss=1.0, top1=0.5, rate=1.0)
    assert re.search(r"\d:\d\d:\d\d", plain(file.getvalue()))


@pytest.mark.parametrize("terminal", [True, False])
def test_numbers_that_are_not_finite_can_be_shown(file, terminal):
    nan = float("nan")
    with Reporter(1, Console(file=file, force_terminal=terminal, width=200)) as reporter:
        reporter.steps(done=1, total=2, epoch=1, loss=nan, top1=0.0, rate=1.0)
        reporter.epoch(RECORD | {"loss": nan, "dropped_norm": float("inf")})
    assert "loss nan" in plain(file.getvalue())


def test_an_error_leaves_the_terminal_in_order(file):
    console = Console(file=file, force_terminal=True, width=80)
    with pytest.raises(ZeroDivisionError), Reporter(1, console):
        raise ZeroDivisionError
    assert "\x1b[?25h" in file.getvalue()


TALK = """
import os
from sparsemlp.runs.progress import Reporter

with Reporter(200) as reporter:
    reporter.say("first")
    {goes_away}
    for _ in range(3):
        reporter.waiting("evaluating")
        reporter.say("nobody hears this")
os.write({told}, b"done")
"""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_whoever_reads_may_go_away(is_terminal):
    """A pipe that is closed, or a terminal: an error of its own, and a bar that moves."""
    reader, writer = os.openpty() if is_terminal else os.pipe()
    told, tell = os.pipe()
    # The process closes its copy of the reading end, which is the last one then.
    code = TALK.format(goes_away=f"os.close({reader})", told=tell)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=writer,
        stderr=subprocess.PIPE,
        pass_fds=(reader, tell),
        start_new_session=True,
    )
    os.close(tell)
    os.close(writer)
    os.close(reader)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, b"")
    assert os.read(told, 10) == b"done"
    os.close(told)
