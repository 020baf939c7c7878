"""A grid is the product of its lists, in the order of the file."""

from pathlib import Path

import pytest

from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid_file import GridFile, parse_grid_file
from sparsemlp.sweeps.marked_yaml import Problems

FILE = Path("grid.yaml")


def read(text: str) -> tuple[GridFile, list[str]]:
    problems = Problems(FILE)
    file = parse_grid_file(FILE, text, problems)
    return file, [f"{problem.line}: {problem.text}" for problem in problems]


def values(text: str) -> list[dict[str, object]]:
    file, problems = read(text)
    assert problems == []
    return [{o: choice.value for o, choice in point.choices.items()} for point in file.points]


def test_the_points_are_the_product_of_the_lists_with_what_is_fixed():
    assert values("hp:\n  ratio: [0.5, 0.8]\n  seed: [1, 2]\nfixed:\n  epochs: 3\n") == [
        {"epochs": 3, "ratio": ratio, "seed": seed} for ratio in (0.5, 0.8) for seed in (1, 2)
    ]


def test_several_grids_follow_one_another():
    text = "hp:\n- {ratio: [0]}\n- ratio: [0.8]\n  backward: [masked, dense]\n"
    assert [point.get("backward") for point in values(text)] == [None, "masked", "dense"]


def test_the_form_of_the_thesis_is_read_as_it_is():
    text = """
hp:
  model_config:
    - "'ResMLP5 @ XPatch=masked 0.5 (2, 2); XChannel=masked 0.3 (1, 1);'"
    - '"ResMLP5 @ XPatch = masked 0.8 (4, 4);"'
meta: {run: slurm, gpus: 1, mode: grid, prefix: resmlp, sandbox: /s, script: main.py}
fixed:
  data_dir: /data
  data_set: CIFAR10
  batch_size: 128
  num_classes: 10
  epochs: 200
  image_size: 32
  weight_decay: 1e-4
  lr: 0.01
  warmup_lr: 0.001
  opt: adam
  patch_size: 4
  embedding_dim: 64
  mixup: 0.2
  cutmix: 0.8
  mixup_prob: 1.0
  pretrained_classes: 1000
sbatch: {partition: gpu, gpus: 1, cpus-per-task: 4, mem: 16G, export: ALL, time: 4:00:00, chdir: /}
"""
    first, second = values(text)
    assert first["config"] == "ResMLP5 @ XPatch=masked 0.5 (2, 2); XChannel=masked 0.3 (1, 1);"
    assert second["config"] == "ResMLP5 @ XPatch = masked 0.8 (4, 4);"
    for option, value in (("optimizer", "adam"), ("dim", 64), ("dataset", "cifar10")):
        assert first[option] == value
    file, _ = read(text)
    assert {key: choice.value for key, choice in file.stated.items()} == {
        "num_classes": 10,
        "image_size": 32,
    }
    assert file.meta["run"].text == "slurm"
    assert file.sbatch["time"].text == "4:00:00"


@pytest.mark.parametrize("text", ["hp:\n", "fixed: {}\n", "fixed:\n  seed: 3\n"])
def test_without_lists_there_is_one_run(text):
    assert len(values(text)) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hp:\n  blok: [1]\n", "2: unknown key hp.blok: did you mean block?"),
        ("hp:\n  seed: []\n", "2: hp.seed is an empty list"),
        ("hp: []\n", "1: hp is an empty list"),
        ("hp:\n  seed: []\nfixed:\n  seed: 2\n", "2: hp.seed is an empty list"),
        ("hp:\n  pretrained_classes: [10]\n", "2: hp.pretrained_classes changes nothing"),
        ("hp:\n  seed: [[1]]\n", "2: hp.seed takes a single value, not a list"),
        ("hp:\n  seed: [1]\nfixed:\n  seed: 2\n", "2: hp.seed is also fixed, in line 4"),
        ("hp:\n  dim: [8]\n  embedding_dim: [8]\n", "3: hp.embedding_dim and dim are the same"),
        ("hp:\n  image_size: [32]\n", "2: hp.image_size cannot vary within a grid"),
        ("fixed:\n  opt: sgd\n  optimizer: sgd\n", "3: fixed.optimizer and opt are the same"),
        ("fixed:\n  lr: [1, 2]\n", "2: fixed.lr takes a single value: a list belongs to hp"),
        ("fixed:\n  epochs: x\n", "2: fixed.epochs is 'x', not an integer"),
        ("fixed:\n  num_classes: ten\n", "2: fixed.num_classes"),
        ("hpp: {}\n", "1: unknown section 'hpp': did you mean hp?"),
        ("meta:\n  cluster: x\n", "2: unknown key meta.cluster: choose from run, mode"),
        ("meta: 3\n", "1: meta must be a mapping"),
    ],
)
def test_a_problem_is_told_with_its_line(text, told):
    _, problems = read(text)
    assert len(problems) == 1
    assert problems[0].startswith(told)


def test_all_problems_are_found_at_once():
    _, problems = read("hp:\n  a: [1]\n  seed: [x]\nfixed:\n  b: 1\n  epochs: y\n")
    assert [problem.split(":")[0] for problem in problems] == ["2", "3", "5", "6"]


def test_a_grid_without_end_is_refused_at_once():
    names = ("seed", "epochs", "batch_size", "dim", "depth", "expansion")
    lists = "".join(f"  {name}: {list(range(1, 101))}\n" for name in names)
    file, problems = read(f"hp:\n{lists}")
    assert "1,000,000,000,000 runs" in problems[0]
    assert file.points == []


def test_of_several_grids_the_line_of_the_one_without_end_is_told():
    many = list(range(101))
    _, problems = read(f"hp:\n- seed: [1]\n- seed: {many}\n  dim: {many}\n")
    assert problems == ["3: this grid has 10,201 runs, more than 10,000: split the file"]


def test_an_empty_file_is_refused():
    with pytest.raises(InputError, match=r"grid.yaml is empty"):
        read("# nothing\n")
