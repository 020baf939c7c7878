"""How many processor cores this process may use."""

import os


def usable_cores() -> int:
    """Cores that this process may run on: on a shared machine mostly fewer than there are.

    As `os.process_cpu_count`, which Python has from 3.13 on.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
