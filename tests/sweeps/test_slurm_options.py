"""What jobs ask for, from the section sbatch."""

from pathlib import Path

import pytest

from sparsemlp.errors import InputError
from sparsemlp.sweeps.marked_yaml import Problems, Scalar
from sparsemlp.sweeps.slurm_options import SlurmOptions, parse_sbatch, parse_time


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("90:30", 91),
        ("4:00:00", 240),
        ("0:00:59", 1),
        ("2-0", 2880),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("1-00:00:01", 1441),
    ],
)
def test_times_are_read_in_every_form_of_slurm(text, minutes):
    assert parse_time(text) == minutes


@pytest.mark.parametrize("text", ["", "4h", "0", "0:00:00", "1:2:3:4", "-5", "soon"])
def test_what_is_no_time_is_named(text):
    with pytest.raises(InputError, match=r"sbatch\.time is"):
        parse_time(text)


def parsed(**section: str | None) -> tuple[SlurmOptions, list[str]]:
    problems = Problems(Path("grid.yaml"))
    lines = {
        key.replace("__", "-"): Scalar(line, text)
        for line, (key, text) in enumerate(section.items(), start=1)
    }
    return parse_sbatch(lines, problems), [problem.text for problem in problems]


def test_the_section_of_the_thesis_is_understood():
    options, problems = parsed(
        partition="gpu",
        gpus="1",
        cpus__per__task="4",
        mem="16G",
        export="ALL",
        time="4:00:00",
        chdir="/a b",
        exclusive="yes",
        comment="yes",
    )
    assert problems == []
    assert (options.minutes, options.cpus_per_task) == (240, 4)
    assert options.more == {
        "partition": "gpu",
        "gpus": "1",
        "mem": "16G",
        "export": "ALL",
        "chdir": "/a b",
        "exclusive": True,
        "comment": "yes",
    }


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("array", "1-3", "is set by the launcher"),
        ("clusters", "big", "export SLURM_CLUSTERS, which sbatch and squeue obey alike"),
        ("job_name", "x", "meta.prefix names the jobs"),
        ("parition", "gpu", "unknown key sbatch.parition: did you mean partition?"),
        ("wait", "1", "unknown key sbatch.wait: a job here can use no such option"),
        ("partition", None, "has no value"),
        ("comment", "a\nrm -rf /", "control character"),
        ("cpus-per-task", "0", "not a positive integer"),
        ("cpus-per-task", "two", "not a positive integer"),
        ("exclusive", "False", "leave out what a job should not ask for"),
        ("oversubscribe", "no", "leave out what a job should not ask for"),
    ],
)
def test_what_slurm_could_not_use_is_a_problem(key, text, told):
    _, problems = parsed(**{key: text})
    assert len(problems) == 1
    assert told in problems[0]


def test_a_job_has_time_between_its_start_and_the_announced_end():
    assert parsed(time="5")[1] == []
    _, (told,) = parsed(time="0:02:00")
    assert told.startswith("sbatch.time is '0:02:00': a job is told to save 120 s before its end")


def test_an_option_that_is_written_twice_is_told():
    _, (told,) = parsed(cpus_per_task="8", cpus__per__task="4")
    assert told == "sbatch.cpus-per-task and sbatch.cpus_per_task are the same option: keep one"
