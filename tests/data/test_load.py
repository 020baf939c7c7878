"""Which data set a name gives, when `auto` falls back, and what is refused."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tensorflow_datasets.core import constants

from sparsemlp.data import load_dataset
from sparsemlp.data.cifar10 import is_prepared
from sparsemlp.data.download import RemoteFile
from sparsemlp.errors import InputError


@pytest.mark.parametrize("name", ["auto", "cifar10"])
def test_what_is_prepared_needs_no_network(name: str, prepared: Path, no_network: RemoteFile):
    dataset = load_dataset(name, prepared, archive=no_network)
    assert dataset.name == "cifar10"
    assert dataset.notice is None


@pytest.mark.parametrize("name", ["auto", "cifar10"])
def test_what_is_downloadable_is_prepared(name: str, tmp_path: Path, cifar: SimpleNamespace):
    dataset = load_dataset(name, tmp_path, archive=cifar.remote)
    assert is_prepared(tmp_path)
    assert dataset.name == "cifar10"
    assert dataset.notice is None


def test_auto_falls_back_to_digits_and_says_so(tmp_path: Path, no_network: RemoteFile):
    dataset = load_dataset("auto", tmp_path, archive=no_network)
    assert dataset.name == "digits"
    assert dataset.notice is not None
    assert "\n" not in dataset.notice
    for part in (str(tmp_path), "refused", "digits", "--dataset=cifar10"):
        assert part in dataset.notice


def test_auto_waits_no_longer_than_told(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        silent = RemoteFile(f"http://127.0.0.1:{listening.getsockname()[1]}/a", "0" * 64)
        dataset = load_dataset("auto", tmp_path, archive=silent, network_timeout_s=0.2)
    assert dataset.name == "digits"
    assert dataset.notice is not None
    assert "no answer within 0.2 s" in dataset.notice


def test_a_named_data_set_never_falls_back(tmp_path: Path, no_network: RemoteFile):
    with pytest.raises(InputError, match=r"refused.*--data-dir=DIR.*--dataset=digits") as raised:
        load_dataset("cifar10", tmp_path, archive=no_network)
    assert "\n" not in str(raised.value)


def test_auto_does_not_hide_that_a_preparation_failed(
    tmp_path: Path, publish: Callable[[dict[str, bytes]], RemoteFile]
):
    with pytest.raises(InputError, match="no intact CIFAR-10 archive"):
        load_dataset("auto", tmp_path, archive=publish({"data_batch_1.bin": b""}))


def test_auto_does_not_hide_that_prepared_files_are_damaged(tmp_path: Path, cifar: SimpleNamespace):
    load_dataset("cifar10", tmp_path, archive=cifar.remote)
    for records in tmp_path.rglob("*.array_record*"):
        records.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_dataset("auto", tmp_path, archive=cifar.remote)


def test_the_default_folder_is_made(
    tmp_path: Path, cifar: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    default = tmp_path / "home" / "tensorflow_datasets"
    monkeypatch.setattr(constants, "DATA_DIR", str(default))
    load_dataset("cifar10", archive=cifar.remote)
    assert is_prepared(default)


def test_the_default_folder_is_not_made_for_nothing(
    tmp_path: Path, no_network: RemoteFile, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "DATA_DIR", str(tmp_path / "tensorflow_datasets"))
    assert load_dataset("auto", archive=no_network).name == "digits"
    assert list(tmp_path.iterdir()) == []


def test_a_default_folder_that_cannot_be_made_is_a_reason(
    tmp_path: Path, cifar: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "DATA_DIR", str(tmp_path / "file" / "data"))
    assert "cannot be made" in (load_dataset("auto", archive=cifar.remote).notice or "")
    with pytest.raises(InputError, match="cannot be made"):
        load_dataset("cifar10", archive=cifar.remote)


@pytest.mark.parametrize("name", ["auto", "cifar10", "digits"])
def test_an_explicit_folder_must_exist(name: str, tmp_path: Path, cifar: SimpleNamespace):
    with pytest.raises(InputError, match=r"does not exist.*--data-dir"):
        load_dataset(name, tmp_path / "none", archive=cifar.remote)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        load_dataset(name, tmp_path / "file", archive=cifar.remote)


def test_a_folder_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def access(path: object, mode: int) -> bool:
        return not mode & os.R_OK

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(InputError, match="is not readable"):
        load_dataset("cifar10", tmp_path)


def test_a_folder_that_cannot_be_written_is_a_reason(
    tmp_path: Path, cifar: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    def access(path: object, mode: int) -> bool:
        return not mode & os.W_OK

    monkeypatch.setattr(os, "access", access)
    dataset = load_dataset("auto", tmp_path, archive=cifar.remote)
    assert "is not writable" in (dataset.notice or "")


@pytest.mark.parametrize("name", ["", "cifar", "CIFAR10", "imagenet", "digits.npy"])
def test_an_unknown_name_lists_the_choices(name: str):
    with pytest.raises(InputError, match=r"auto, cifar10, digits.*\.npz") as raised:
        load_dataset(name)
    assert repr(name) in str(raised.value)


def test_a_name_that_ends_in_npz_is_a_file(tmp_path: Path):
    images, labels = np.zeros((2, 3, 3), np.uint8), np.arange(2)
    np.savez(
        tmp_path / "two.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    assert load_dataset(str(tmp_path / "two.npz")).name == "two"
    with pytest.raises(InputError, match="is not a file"):
        load_dataset("missing.npz")


def test_the_home_folder_of_a_file_is_found(tmp_path, monkeypatch):
    made = {"images": np.zeros((2, 4, 4, 1), np.uint8), "labels": np.arange(2)}
    arrays = {f"{split}_{kind}": a for split in ("train", "test") for kind, a in made.items()}
    np.savez(tmp_path / "shapes.npz", **arrays)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_dataset("~/shapes.npz").name == "shapes"
