"""Several devices give the numbers of one; batches and devices that do not fit are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from sparsemlp.distributed.parallel import data_mesh, own_copy, replicate, replicate_first, usable
from sparsemlp.errors import InputError

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("engine", "backward", "parts"),
    [
        pytest.param("cpu", "masked", 1, marks=pytest.mark.thorough),
        pytest.param("cpu", "masked", 2, marks=pytest.mark.slow),
        pytest.param("reference", "straight_through", 2, marks=pytest.mark.slow),
        pytest.param("reference", "masked", 1, marks=pytest.mark.slow),
    ],
)
def test_four_devices_give_the_losses_of_one_over_20_steps(engine, backward, parts):
    """The last batch of an epoch, 4 of 44 images, is shared out as well; masks are the same.

    So it is if each device computes its images in parts, one after another.
    """
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    }
    done = subprocess.run(
        [sys.executable, HERE / "on_devices.py", engine, backward, str(parts)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 4
    one, four = found["one"], found["all"]
    assert one["kept"] == four["kept"]
    # Each step adds a few roundings to weights of order 1, which the loss sees in first order.
    tolerance = 20 * 64 * np.finfo(np.float32).eps
    np.testing.assert_allclose(four["losses"], one["losses"], rtol=tolerance)
    np.testing.assert_allclose(four["test_loss"], one["test_loss"], rtol=tolerance)
    assert len(set(one["losses"])) == 20


def test_one_device_needs_no_mesh_and_runs_the_program_that_it_always_did():
    assert data_mesh(1, 7) is None
    assert len(jax.devices()) > 1 or data_mesh(None, 7) is None
    assert usable(None, 8) is None
    assert replicate("anything", None) == "anything"


def test_one_process_has_all_arrays_already():
    tree = {"a": jnp.arange(3), "b": jnp.float32(-0.0)}
    assert replicate_first(tree, None) is tree
    assert all(own_copy(tree)[name] is tree[name] for name in tree)


@pytest.mark.parametrize("n_devices", [0, -1, 1000])
def test_devices_that_are_not_there_are_refused(n_devices):
    with pytest.raises(InputError, match=f"--devices={n_devices}: JAX sees .*choose from 1 to"):
        data_mesh(n_devices, 8)


def write_larger(path: Path) -> Path:
    """The tiny data set with images of 16x16 pixels, which resnet9 takes."""
    images = {
        name: array.repeat(2, axis=1).repeat(2, axis=2)
        for name, array in tiny.arrays().items()
        if name.endswith("images")
    }
    return tiny.write_npz(path, **images)


def test_resnet9_is_refused_on_several_devices_by_name(monkeypatch, tmp_path, capsys):
    data = write_larger(tmp_path / "tiny.npz")
    monkeypatch.setattr(
        "sparsemlp.configuration.program.data_mesh", lambda devices, batch: "a mesh"
    )
    flags = tiny.flags(model="resnet9", devices=2, epochs=1, batch_size=8, width=4)
    assert tiny.command(*flags, f"--dataset={data}", f"--out={tmp_path / 'run'}") == 2
    assert "--devices=2: resnet9 normalises by the statistics" in capsys.readouterr().err


def test_resnet9_is_refused_in_several_processes_by_name(monkeypatch, tmp_path, capsys):
    data = write_larger(tmp_path / "tiny.npz")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    flags = tiny.flags(model="resnet9", epochs=1, batch_size=8, width=4)
    assert tiny.command(*flags, f"--dataset={data}", f"--out={tmp_path / 'run'}") == 2
    assert "train it in one process, without --processes" in capsys.readouterr().err


def test_processes_with_different_numbers_of_devices_are_refused(monkeypatch):
    unlike = [SimpleNamespace(process_index=index) for index in (0, 1, 1, 1)]
    monkeypatch.setattr(jax, "devices", lambda: unlike)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="process 0 has 1, process 1 has 3: let those with more"):
        data_mesh(None, 8)


def test_several_processes_train_on_all_of_their_devices(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="--devices=1000: 2 processes train on all of their"):
        data_mesh(1000, 8)
