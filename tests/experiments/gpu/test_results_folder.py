"""The folder of a GPU benchmark holds results of one device and of one code."""

import pytest
from gpu import results_folder
from gpu.results_folder import code_digest, open_folder
from tuning import checksum
from tuning.ceilings import Ceilings

from sparsemlp import InputError
from sparsemlp.files import Record, write_json


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """What a new folder says of this machine, in a trial."""
    return open_folder(tmp_path_factory.mktemp("results"), is_trial=True)


def test_a_new_folder_says_that_nothing_was_measured(device):
    assert device["measured"] is False
    assert device["code"] == code_digest()
    assert set(device["ceilings"]) == set(Ceilings._fields)


def test_the_code_has_one_checksum_until_it_changes(monkeypatch, tmp_path):
    assert code_digest() == code_digest()
    before = code_digest()
    (tmp_path / "kernel.py").write_text("x = 1")
    for package in (checksum.pallas_kernels, checksum.sparsemlp):
        with monkeypatch.context() as changed:
            changed.setattr(package, "__file__", str(tmp_path / "kernel.py"))
            assert code_digest() != before


def test_a_damaged_folder_is_told_with_the_way_out(tmp_path):
    (tmp_path / "device.json").write_text("{")
    with pytest.raises(InputError, match=r"device\.json is damaged: .*--out"):
        open_folder(tmp_path, is_trial=True)


def test_results_of_another_device_are_not_mixed(device, tmp_path):
    write_json(tmp_path / "device.json", device | {"device": "abacus"})
    with pytest.raises(InputError, match="abacus"):
        open_folder(tmp_path, is_trial=True)


def test_results_of_other_code_are_not_mixed(device, tmp_path, monkeypatch):
    write_json(tmp_path / "device.json", device)
    assert open_folder(tmp_path, is_trial=True) == device
    monkeypatch.setattr(results_folder, "code_digest", lambda: "of a mended kernel")
    with pytest.raises(InputError, match="this is of a mended kernel"):
        open_folder(tmp_path, is_trial=True)
