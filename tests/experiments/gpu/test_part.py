"""A part that fails leaves the line that says why."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu import part
from gpu.part import error_line, run_part

EXPERIMENTS = part.HERE
FILTERED = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory

The above exception was the direct cause of the following exception:
--------------------
For simplicity, JAX has removed its internal frames from the traceback.
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FILTERED, "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory"),
        ("warning: slow\nerror: --engine=x is unknown\n", "error: --engine=x is unknown"),
        ("Segmentation fault\n", "Segmentation fault"),
        ("ValueError: a\nstopped: no answer: again\n", "stopped: no answer: again"),
        ("KeyError: 'a'\nValueError: b", "ValueError: b"),
        ("", ""),
    ],
)
def test_the_line_that_names_the_error_is_found(text: str, line: str):
    assert error_line(text) == line


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(part, "HERE", tmp_path)
    return tmp_path / "part_of_it.py"


def test_a_part_is_told_its_options_and_whether_it_is_a_trial(script: Path):
    script.write_text("import sys; sys.exit(sys.argv[1:] != ['--a', '--smoke'])")
    log = script.with_name("log.txt")
    assert run_part(script.stem, ["--a"], 60, log, is_trial=True) == ""
    assert run_part(script.stem, ["--a"], 60, log, is_trial=False) == "exit 1"


def test_all_that_a_part_prints_is_kept_and_it_has_its_variables(script: Path):
    script.write_text("import os, sys; print(os.environ['A']); sys.exit('Error: b')")
    log = script.parent / "logs" / "log.txt"
    assert run_part(script.stem, [], 60, log, is_trial=False, variables={"A": "a"}) == "Error: b"
    assert sorted(log.read_text().split("\n")) == ["", "Error: b", "a"]


def test_a_part_that_fails_says_why(script: Path):
    script.write_text("raise ValueError('no room')")
    log = script.with_name("log.txt")
    assert run_part(script.stem, [], 60, log, is_trial=False) == "ValueError: no room"


def test_a_part_that_does_not_end_is_stopped(script: Path):
    script.write_text("import time; time.sleep(600)")
    log = script.with_name("log.txt")
    assert run_part(script.stem, [], 0.5, log, is_trial=False) == "took longer than 0 s"


def test_all_parts_end_where_something_goes_wrong_and_none_begins_after(script: Path):
    script.write_text("import time; time.sleep(600)")
    logs = [script.with_name(f"{name}.txt") for name in "ab"]
    began, found = time.monotonic(), []

    def interrupted() -> None:
        with concurrent.futures.ThreadPoolExecutor(2) as pool, part.ending_parts():
            found.extend(
                pool.submit(run_part, script.stem, [], 600, log, is_trial=False) for log in logs
            )
            while not all(log.exists() for log in logs):
                time.sleep(0.05)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 300
    for each in found:
        with pytest.raises(part.PartEndedError):
            each.result()
    with pytest.raises(part.PartEndedError):
        run_part(script.stem, [], 600, logs[0], is_trial=False)
    script.write_text("pass")
    with part.ending_parts():
        assert run_part(script.stem, [], 60, logs[0], is_trial=False) == ""


KILLED = """
import os, pathlib, signal, sys, threading, time
from gpu import part
part.HERE = pathlib.Path(sys.argv[1])
def kill():
    while not (part.HERE / "began").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill).start()
part.run_part("part_of_it", [], 60, part.HERE / "log.txt", is_trial=False)
"""


def test_a_part_ends_with_the_program_that_began_it(script: Path):
    """However that ended: a part that goes on would take the device from the next."""
    script.write_text(
        "import os, pathlib, time\n"
        "path = pathlib.Path(__file__).parent / 'pid'\n"
        "path.write_text(str(os.getpid()))\n"
        "path.rename(path.with_name('began'))\n"
        "time.sleep(600)\n"
    )
    paths = os.pathsep.join([str(EXPERIMENTS), str(EXPERIMENTS.parent)])
    command = [sys.executable, "-c", KILLED, str(script.parent)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    pid = int(script.with_name("began").read_text())
    deadline = time.monotonic() + 30
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not lives(pid)


def lives(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
