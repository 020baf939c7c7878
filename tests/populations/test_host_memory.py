"""A job may use the least of what the computer has and its groups allow."""

import pytest

from sparsemlp.populations.host_memory import host_memory_bytes

SMALL = 2**20


def test_without_groups_it_is_that_of_the_computer(tmp_path):
    assert 2**28 < host_memory_bytes(tmp_path / "none", tmp_path) < 2**44


@pytest.mark.parametrize(
    ("line", "folder", "name"),
    [
        ("0::/slurm/job_1/step_0", "slurm/job_1", "memory.max"),
        ("0::/", "", "memory.max"),
        ("4:memory:/job/1", "memory/job/1", "memory.limit_in_bytes"),
        ("4:cpu,memory:/../outside", "memory", "memory.limit_in_bytes"),
    ],
)
def test_the_least_limit_of_the_groups_counts(tmp_path, line, folder, name):
    membership, groups = tmp_path / "cgroup", tmp_path / "groups"
    membership.write_text(f"9:name=systemd:/\n{line}\n")
    (groups / folder).mkdir(parents=True)
    (groups / folder / name).write_text(f"{SMALL}\n")
    assert host_memory_bytes(membership, groups) == SMALL
    (groups / folder / name).write_text("max\n")
    assert host_memory_bytes(membership, groups) == host_memory_bytes(tmp_path / "none", tmp_path)
