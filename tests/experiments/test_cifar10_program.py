"""The program as a process: killed, told to stop, and resumed, it ends as one never disturbed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

PROGRAM = Path(__file__).parents[2] / "experiments" / "cifar10.py"
OPTIONS = {"epochs": 20, "mask_start_epoch": 0, "checkpoint_every": 0.0}


def run_until(n_lines: int, number: int, arguments: list[str], out: Path, env: dict[str, str]):
    """Starts the program, sends it a signal after so many epochs, and returns how it ended."""
    with subprocess.Popen(
        [sys.executable, PROGRAM, *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < deadline:
                if len(tiny.records(out)) >= n_lines:
                    process.send_signal(number)
                    break
                time.sleep(0.01)
            said, complained = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, said, complained


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_run_killed_and_stopped_again_and_again_ends_as_one_never_disturbed(tmp_path: Path):
    """SIGKILL, SIGTERM and SIGINT, each followed by a new process that goes on."""
    data = tiny.write_npz(tmp_path / "tiny.npz")
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    assert tiny.start(data, undisturbed, **OPTIONS) == 0
    env = os.environ | {
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "PYTHONPATH": str(PROGRAM.parents[1]),
    }
    first = [*tiny.flags(**(tiny.RUN | OPTIONS)), f"--dataset={data}", f"--out={out}"]
    again = [f"--resume={out}"]

    code, _, _ = run_until(2, signal.SIGKILL, first, out, env)
    assert code == -signal.SIGKILL
    for n_lines, number, expected in ((5, signal.SIGTERM, 143), (8, signal.SIGINT, 130)):
        code, said, complained = run_until(n_lines, number, again, out, env)
        assert code == expected
        (answer,) = complained.splitlines()
        assert answer.startswith(signal.Signals(number).name)
        told = said.splitlines()[-2:]
        assert "interrupted by " + signal.Signals(number).name in told[0]
        assert told[1].split()[-2:] == ["--resume", str(out)]
        assert not (out / "summary.json").exists()
    assert 8 <= len(tiny.records(out)) < 20
    assert tiny.resume(out) == 0
    tiny.assert_same_outcome(out, undisturbed)
