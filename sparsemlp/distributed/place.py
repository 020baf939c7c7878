"""The place of a process among those of its run: by flags, or as a task of a SLURM step."""

import dataclasses
import re
from collections.abc import Mapping

from sparsemlp.distributed.rendezvous import split_address
from sparsemlp.errors import InputError


@dataclasses.dataclass(frozen=True)
class Place:
    """Which process of how many this one is, and where process 0 listens."""

    coordinator: str
    count: int
    index: int


def place_of(
    coordinator: str | None, processes: int | None, process: int | None, environment: Mapping
) -> Place | None:
    """The place of this process by its flags, else by SLURM if its step has several tasks.

    Args:
      coordinator: --coordinator.
      processes: --processes.
      process: --process.
      environment: the environment variables.

    Returns:
      None for a process that trains alone.

    Raises:
      InputError: some of the flags without the others, or a wrong one.
    """
    if (coordinator, processes, process) == (None, None, None):
        return _place_in_slurm(environment)
    if coordinator is None or processes is None or process is None:
        raise InputError(
            "--coordinator=HOST:PORT, --processes=N and --process=I go together: give all three, "
            "or none for one process"
        )
    if processes < 1:
        raise InputError(f"--processes={processes} is too small: it must be at least 1")
    if not 0 <= process < processes:
        raise InputError(
            f"--process={process} is outside 0 to {processes - 1}, as --processes={processes} "
            "says: number them from 0"
        )
    split_address(coordinator)
    return Place(coordinator, processes, process) if processes > 1 else None


def _place_in_slurm(environment: Mapping) -> Place | None:
    """Tasks of one step that `srun` started; a batch script itself is no such task."""
    count = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    if count < 2 or not nodes:
        return None
    number = int(environment["SLURM_JOB_ID"]) + int(environment.get("SLURM_STEP_ID", "0"))
    host = _first_host(nodes)
    return Place(f"{host}:{61440 + number % 4096}", count, int(environment["SLURM_PROCID"]))


def _first_host(nodes: str) -> str:
    """The first of a list of nodes as SLURM writes it, such as `gpu[03-04,07]-ib,login`."""
    own = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", own[0] if own else nodes)
