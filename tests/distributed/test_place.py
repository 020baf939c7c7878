"""Flags or SLURM say which process of how many this one is; nothing says that it is alone."""

from typing import Any

import pytest

from sparsemlp.distributed.place import Place, place_of
from sparsemlp.errors import InputError

SLURM = {"SLURM_JOB_ID": "70001", "SLURM_STEP_ID": "2", "SLURM_PROCID": "3"}


def test_without_flags_a_process_is_alone():
    assert place_of(None, None, None, {}) is None
    assert place_of("node:6000", 1, 0, {}) is None


def test_flags_say_the_place_whatever_slurm_says():
    environment = SLURM | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node1"}
    assert place_of("node:6000", 2, 1, environment) == Place("node:6000", 2, 1)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("node1,node7", "node1"),
        ("node[001-004,9]", "node001"),
        ("node[7,9],other", "node7"),
        ("gpu-a[10-12]", "gpu-a10"),
        ("n[01-02]-ib,other", "n01-ib"),
        ("rack[0-1]n[2,4-7]", "rack0n2"),
    ],
)
def test_the_tasks_of_a_slurm_step_meet_on_its_first_node(nodes, host):
    environment = SLURM | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": nodes}
    place = place_of(None, None, None, environment)
    assert place == Place(f"{host}:{61440 + 70003 % 4096}", 4, 3)


@pytest.mark.parametrize("tasks", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_NTASKS": "4"}])
def test_a_slurm_step_of_one_task_or_a_batch_script_is_alone(tasks):
    assert place_of(None, None, None, SLURM | {"SLURM_JOB_NODELIST": "node1"} | tasks) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("node:6000", None, None), "go together: give all three"),
        (("node:6000", 2, None), "go together: give all three"),
        ((None, None, 0), "go together: give all three"),
        (("node:6000", 2, 2), "--process=2 is outside 0 to 1, as --processes=2 says"),
        (("node:6000", 2, -1), "--process=-1 is outside 0 to 1"),
        (("node:6000", 0, 0), "--processes=0 is too small"),
        (("node", 2, 0), "--coordinator=node is no HOST:PORT"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        place_of(flags[0], flags[1], flags[2], {})
