"""Problems that the tuner measures."""

from pathlib import Path

from tuning.tasks import Task, at_work_of

from pallas_kernels import SparseLayer

LAYER = SparseLayer((64, 128), (32, 16), 3, -1, "bfloat16")


def test_what_is_measured_is_said_in_a_few_words():
    assert str(Task("mosaic", "product", LAYER, 8192)) == "mosaic product (64, 128) 32x16"


def test_what_a_worker_has_at_work_is_not_what_another_has(tmp_path: Path):
    path = tmp_path / "table.json"
    at_work_of(path, 0).begin("problem", "rows 32")
    assert at_work_of(path, None).left() is None
    assert at_work_of(path, 1).left() is None
    assert at_work_of(path, 0).left() == ("problem", "rows 32")
