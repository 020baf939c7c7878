"""Programs that need a process of their own, with other devices or fewer CPUs than this one."""

import os
import subprocess
import sys


def run_in_child(
    module: str, function: str, *, n_devices: int = 1, n_cpus: int | None = None
) -> str:
    """What a function of a test module prints in another process.

    Args:
      module: the name of the module, which this process can import.
      function: the name of the function, which takes no arguments.
      n_devices: how many devices of a CPU the other process has.
      n_cpus: how many of this machine's CPUs it may use; by default all that this one may.

    Raises:
      AssertionError: the other process failed, with all that it printed.
    """
    few = "" if n_cpus is None else f"sorted(os.sched_getaffinity(0))[:{n_cpus}]"
    program = f"import os; {few and f'os.sched_setaffinity(0, {few}); '}"
    devices = f"--xla_force_host_platform_device_count={n_devices}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{program}import {module} as m; m.{function}()"],
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {devices}",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        | ({} if n_cpus is None else {"NPROC": str(n_cpus)}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
