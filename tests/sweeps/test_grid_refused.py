"""Values that are refused for their form, and what is told beside them."""

import pytest
import tiny
from test_grid_check import FILE, TINY

from sparsemlp.sweeps.grid_check import check_points
from sparsemlp.sweeps.grid_file import parse_grid_file
from sparsemlp.sweeps.marked_yaml import Problems

data = tiny.data


@pytest.mark.parametrize(
    ("hp", "fixed"), [("  block: [!own 8x8]\n", ""), ("  seed: [0]\n", "  block: !own 8x8\n")]
)
def test_the_default_of_an_option_whose_values_are_refused_is_not_complained_of(data, hp, fixed):
    """Its blocks do not divide the model."""
    problems = Problems(FILE)
    text = f"hp:\n  ratio: [0.5]\n{hp}fixed:\n{fixed}{TINY}  batch_size: 8\n  dataset: {data}\n"
    file = parse_grid_file(FILE, text, problems)
    check_points(file.points, file.stated, problems)
    (problem,) = problems
    assert "the tag !own is not allowed" in problem.text


@pytest.mark.parametrize(
    ("hp", "fixed", "said"),
    [
        ("  block: [7x7]\n", "  block: !own 8x8\n", "block 7x7 does not divide"),
        ("  block: [!own 8x8]\n", "  block: 7x7\n", "block 7x7 does not divide"),
        (
            "  model_config: ['ResMLP1 @ XChannel = masked 0.5 (7, 7);']\n",
            "  block: !own 8x8\n",
            "block 7x7 does not divide",
        ),
    ],
)
def test_a_value_that_is_refused_hides_no_complaint_about_another_one(data, hp, fixed, said):
    problems = Problems(FILE)
    text = f"hp:\n{hp}fixed:\n{fixed}  batch_size: 8\n  dataset: {data}\n"
    text += "" if "model_config" in hp else "  ratio: 0.5\n"
    file = parse_grid_file(FILE, text, problems)
    check_points(file.points, file.stated, problems)
    told = [problem.text for problem in problems]
    assert any("the tag !own is not allowed" in text for text in told)
    assert any(said in text for text in told)


@pytest.mark.parametrize(
    ("hp", "fixed", "said"),
    [
        ("  backward: [strait_through]\n", "  dropped_decay: 2e-4\n", "backward 'strait_through'"),
        ("  ratio_schedule: [qubic]\n  ramp_epochs: [2]\n", "", "ratio schedule 'qubic'"),
        ("  model: [resnet]\n  width: [16]\n", "", "--model=resnet is unknown"),
        ("  backward: [maskd]\n  score: [gradient]\n", "", "backward 'maskd'"),
    ],
)
def test_a_value_that_is_unknown_has_no_complaints_about_its_default(
    data, hp, fixed, said, unchecked
):
    """The options beside it are right with what was meant."""
    problems = Problems(FILE)
    text = f"hp:\n  ratio: [0.5]\n{hp}fixed:\n{fixed}  epochs: 20\n  dataset: {data}\n"
    file = parse_grid_file(FILE, text, problems)
    check_points(file.points, file.stated, problems)
    (problem,) = problems
    assert said in problem.text
