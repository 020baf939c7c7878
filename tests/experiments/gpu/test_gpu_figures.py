"""The roofline shows measured products under a measured roof, and no trial."""

import json
from pathlib import Path

import numpy as np
import pytest
from gpu import figures as gpu_figures
from test_gpu_report import write_results

from sparsemlp import InputError
from sparsemlp.runs.history import History


def test_every_product_is_a_point_and_the_roof_is_the_measured_one(tmp_path: Path):
    folder = write_results(tmp_path)
    device = json.loads((folder / "device.json").read_text())
    figure = gpu_figures.roofline(device, History(folder / "products.jsonl").read(), "bfloat16")
    (axes,) = figure.axes
    *products, roof = axes.lines
    for line in products:
        assert np.asarray(line.get_xydata()).tolist() == [[30.0, 12.5]]
    assert len(products) == 2
    x, y = np.asarray(roof.get_xdata()), np.asarray(roof.get_ydata())
    assert max(y) == pytest.approx(400)
    assert y[0] == pytest.approx(2 * x[0])


def test_a_picture_is_drawn(tmp_path: Path):
    gpu_figures.draw_roofline(write_results(tmp_path), tmp_path / "roof.png")
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")


def test_a_trial_and_a_dtype_that_nobody_measured_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no product in 'float32'"):
        gpu_figures.draw_roofline(write_results(tmp_path), tmp_path / "roof.png", "float32")
    products = History(tmp_path / "products.jsonl")
    products.append(products.read()[0] | {"key": "broken", "phases": {}})
    point = products.read()[0]["point"] | {"dtype": "float32"}
    products.append(products.read()[0] | {"key": "wide", "point": point, "phases": {}})
    with pytest.raises(InputError, match="no product in 'float32' has a time"):
        gpu_figures.draw_roofline(tmp_path, tmp_path / "roof.png", "float32")
    device = tmp_path / "device.json"
    device.write_text(json.dumps(json.loads(device.read_text()) | {"measured": False}))
    with pytest.raises(InputError, match="no measurement"):
        gpu_figures.draw_roofline(tmp_path, tmp_path / "trial.png")
    assert not (tmp_path / "trial.png").exists()
