"""The table and the picture of scaling: whole, of one account, and refused in one line."""

import csv
from pathlib import Path
from typing import Any

import costs as program
import pytest
from cost_tables.scaling_costs import COLUMNS, summary, write_scaling
from cost_tables.scaling_options import Scaling

from sparsemlp import InputError
from sparsemlp.cost_models.costs import KINDS, Shapes
from sparsemlp.cost_models.hardware import DEVICES, LINKS
from sparsemlp.cost_models.scaling import Cluster
from sparsemlp.cost_models.scaling_points import VARIANTS, scaling_points, strong

SMALL: dict[str, Any] = {"model": "resmlp_cifar10", "devices": (1, 8, 1024)}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_has_a_row_for_each_variant_and_its_columns_agree(tmp_path, capsys):
    write_scaling(Scaling(out=tmp_path / "a" / "b", **SMALL))
    rows = read(tmp_path / "a" / "b" / "scaling.csv")
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == 2 * len(VARIANTS) * 3
    for row in rows:
        parts = [float(row[f"{p}_seconds"]) for p in ("compute", "memory", "exchange")]
        assert float(row["step_seconds"]) == max(parts)
        assert float(row["serial_step_seconds"]) == pytest.approx(sum(parts))
        images = int(row["devices"]) * int(row["images_per_device"])
        assert float(row["images_per_second"]) == pytest.approx(images / max(parts))
        alone = row["devices"] == "1"
        assert (int(row["exchanged_bytes"]) == 0) == (parts[2] == 0) == alone
    assert (tmp_path / "a" / "b" / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a" / "b" / "scaling.svg").read_text()
    said = capsys.readouterr().out
    assert "nothing measured" in said
    assert "NVIDIA H100 SXM, data sheet" in said
    assert "strong scaling, 4096 images a step" in said


def test_the_summary_says_where_masks_pay_and_what_bounds_the_step():
    shapes = Shapes(224, 14, 3, 384, 12, 4, 1000)
    masking = dict.fromkeys(KINDS, ((32, 32), 0.8))
    cluster = Cluster(DEVICES["h100"], "float32", LINKS["nvlink4"], LINKS["infiniband_ndr"])
    counts = tuple(2**n for n in range(11))
    points = scaling_points(shapes, masking, cluster, counts, strong(4096))
    sentences = summary(points)
    assert len(sentences) == len(VARIANTS)
    dense, masked = sentences[0], sentences[list(VARIANTS).index("masked")]
    # In float32, without tensor cores, the arithmetic of the dense model takes longest.
    assert dense == "dense model: bound by compute from 1 on."
    assert "1.1x or more over dense on 1 to 1024 devices" in masked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": ()}, "--devices must be numbers of devices"),
        ({"devices": (2, 1)}, "the smallest first"),
        ({"devices": (0, 1)}, "cannot be shared out among 0 devices"),
        ({"devices": (1, 12), "batch_size": 24}, "12 devices do not fill hosts of 8"),
        ({"batch_size": 100}, "a batch of 100 cannot be shared out among 8 devices"),
        ({"images_per_device": 0}, "0 images a device"),
        ({"line_bytes": 0}, "--line-bytes=0"),
        (
            {"config": "ResMLP5 @ XPatch = masked 0.5 (2, 2);", "ratio": 0.5},
            "--config and --ratio exclude each other",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_bad_input_is_named_and_nothing_is_written(changes: dict[str, Any], message, tmp_path):
    with pytest.raises(InputError, match=message):
        write_scaling(Scaling(out=tmp_path / "out", **(SMALL | changes)))
    assert not list(tmp_path.rglob("*.*"))


def test_the_program_takes_scaling_as_its_first_word(tmp_path, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(program, "write_scaling", asked.append)
    monkeypatch.setattr(program, "count_costs", asked.append)
    words = ["scaling", f"--out={tmp_path}", "--devices", "1", "2", "--device=a100"]
    assert program.main(words) == program.main([f"--out={tmp_path}"]) == 0
    assert asked[0] == Scaling(out=tmp_path, devices=(1, 2), device="a100")
    assert asked[1] == program.Costs(out=tmp_path)


def test_an_error_is_one_line_and_exit_code_2(tmp_path, capsys):
    words = ["scaling", f"--out={tmp_path}", "--devices", "1", "12", "--batch-size=24"]
    assert program.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 12 devices do not fill hosts of 8")
    assert error.count("\n") == 1
