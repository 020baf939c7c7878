"""The memory that this process may use: the computer's, or less where a job has a share of it."""

import contextlib
import os
from pathlib import Path

_MEMBERSHIP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def host_memory_bytes(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int:
    """Bytes of memory, within the limits of the control groups that Linux has put the process in.

    Args:
      membership: lists the groups of the process, as `cgroups(7)` says.
      groups: where they are mounted.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = membership.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        for folder in (group, *(above for above in group.parents if above.is_relative_to(top))):
            # There is no number where nothing is limited.
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits)
