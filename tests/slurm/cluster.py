"""A SLURM of one node on this machine: its own configuration, key and ports in one folder.

No service of the system is touched. Everything it started ends with it, jobs included. It needs
Debian's packages `slurm-wlm` and `munge`, and works as root or as a user.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
JobRequeue=1
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """The programs of SLURM and munge that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Starts the cluster and waits until its node takes jobs.

    Args:
      folder: an empty folder with a short path; configuration, state and logs go there.

    Yields:
      The environment for programs that use it.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            host=host,
            folder=folder,
            user=getpass.getuser(),
            cores=len(os.sched_getaffinity(0)),
            controller_port=_free_port(),
            node_port=_free_port(),
        )
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
    }
    environment |= {"SLURM_CONF": str(configuration), "PATH": _PATH}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munged += [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
    munged += [f"--socket={folder}/munge.socket"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_daemon(munged, environment, folder / "munged.out"))
        _wait(lambda: (folder / "munge.socket").exists(), "munged", folder)
        controller = _daemon(["slurmctld", "-D"], environment, folder / "slurmctld.out")
        stack.enter_context(controller)
        node = _daemon(["slurmd", "-D", "-N", host], environment, folder / "slurmd.out")
        stack.enter_context(node)
        _wait(lambda: "idle" in _said(["sinfo", "-h", "-o", "%T"], environment), "slurmd", folder)
        try:
            yield environment
        finally:
            _said(["scancel", "--me"], environment)
            _said(["scancel", "--me", "--signal=KILL", "--full"], environment)
            with contextlib.suppress(TimeoutError):
                _wait(lambda: not _said(["squeue", "-h"], environment), "the jobs", folder)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def _daemon(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _said(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def _wait(condition: Callable[[], object], what: str, folder: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"-- {log.name}\n{log.read_text(errors='replace')[-2000:]}"
                for log in sorted([*folder.glob("*.out"), *folder.glob("*.log")])
            )
            raise TimeoutError(f"{what} did not get ready in {seconds:.0f} s\n{logs}")
        time.sleep(0.2)
