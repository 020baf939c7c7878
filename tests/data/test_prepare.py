"""What is prepared here is what unmodified TFDS reads, or it does not count."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from sparsemlp.data import prepare
from sparsemlp.data.cifar10 import is_prepared, read_cifar10
from sparsemlp.data.download import RemoteFile
from sparsemlp.data.prepare import OFFICIAL_ARCHIVE, archive_path, prepare_cifar10
from sparsemlp.errors import InputError


def test_the_official_archive_is_the_one_that_tfds_registers():
    registered = tfds.builder_cls("cifar10").url_infos
    assert registered is not None
    assert registered[OFFICIAL_ARCHIVE.url].checksum == OFFICIAL_ARCHIVE.sha256


def test_unmodified_tfds_reads_what_was_prepared(prepared: Path, cifar: SimpleNamespace):
    code = (
        "import sys, numpy, tensorflow_datasets as tfds\n"
        "source = tfds.data_source('cifar10', data_dir=sys.argv[1])\n"
        "for split in ('train', 'test'):\n"
        "    examples = sorted(source[split], key=lambda example: example['id'])\n"
        "    numpy.savez(sys.argv[2] + split, **{key: [e[key] for e in examples]\n"
        "                for key in ('id', 'image', 'label')})\n"
        "assert 'tensorflow' not in sys.modules"
    )
    target = prepared.parent / "read_"
    subprocess.run([sys.executable, "-c", code, str(prepared), str(target)], check=True)
    for split in ("train", "test"):
        read = np.load(f"{target}{split}.npz")
        np.testing.assert_array_equal(read["image"], cifar.images[split])
        np.testing.assert_array_equal(read["label"], cifar.labels[split])
        assert read["id"][3] == f"{split}_00003".encode()


def test_the_label_names_are_kept(prepared: Path):
    features: Any = tfds.builder("cifar10", data_dir=prepared).info.features
    assert features["label"].names[9] == "truck"


def test_the_order_does_not_depend_on_the_machine(
    prepared: Path, cifar: SimpleNamespace, tmp_path: Path
):
    prepare_cifar10(tmp_path, cifar.remote)
    np.testing.assert_array_equal(
        read_cifar10(tmp_path).train_images, read_cifar10(prepared).train_images
    )


def test_standard_output_stays_clean(
    cifar: SimpleNamespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    prepare_cifar10(tmp_path, cifar.remote)
    output = capfd.readouterr()
    assert output.out == ""
    assert [line.split()[0] for line in output.err.splitlines()] == ["Downloading", "Preparing"]


def test_an_archive_brought_by_hand_needs_no_network(cifar: SimpleNamespace, tmp_path: Path):
    unreachable = RemoteFile("http://127.0.0.1:9/cifar.tar.gz", cifar.remote.sha256)
    path = archive_path(tmp_path, unreachable)
    path.parent.mkdir()
    path.write_bytes(cifar.content)
    prepare_cifar10(tmp_path, unreachable)
    assert is_prepared(tmp_path)


def test_a_damaged_archive_brought_by_hand_is_downloaded_anew(
    cifar: SimpleNamespace, tmp_path: Path
):
    path = archive_path(tmp_path, cifar.remote)
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    prepare_cifar10(tmp_path, cifar.remote)
    assert is_prepared(tmp_path)


def test_an_interrupted_preparation_does_not_count_and_can_be_repeated(
    cifar: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    encode = prepare._png
    left = iter(range(20))

    def interrupted(image: np.ndarray) -> bytes:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return encode(image)

    with monkeypatch.context() as patched:
        patched.setattr(prepare, "_png", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare_cifar10(tmp_path, cifar.remote)
    assert not is_prepared(tmp_path)
    prepare_cifar10(tmp_path, cifar.remote)
    assert len(read_cifar10(tmp_path).train_images) == len(cifar.images["train"])


def test_a_full_disk_is_an_input_error(
    cifar: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(image: np.ndarray) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare, "_png", full)
    with pytest.raises(InputError, match=r"No space left on device.*make room"):
        prepare_cifar10(tmp_path, cifar.remote)
    assert not is_prepared(tmp_path)


def test_a_process_that_comes_second_uses_the_work_of_the_first(
    cifar: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    encode = prepare._png

    def overtaken(image: np.ndarray) -> bytes:
        monkeypatch.setattr(prepare, "_png", encode)
        prepare_cifar10(tmp_path, cifar.remote)
        return encode(image)

    monkeypatch.setattr(prepare, "_png", overtaken)
    prepare_cifar10(tmp_path, cifar.remote)
    assert len(read_cifar10(tmp_path).train_images) == len(cifar.images["train"])


BROKEN = {
    "batch missing": ({"data_batch_3.bin": None}, "lacks .*data_batch_3.bin"),
    "batch cut": ({"test_batch.bin": bytes(3000)}, "3000 bytes, not a multiple of 3073"),
    "batch empty": ({"test_batch.bin": b""}, "0 bytes, not a multiple of 3073"),
    "label 10": ({"test_batch.bin": b"\x0a" + bytes(3072)}, "label 10"),
    "nine names": ({"batches.meta.txt": b"a\nb\nc\nd\ne\nf\ng\nh\ni\n"}, "9 names"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_an_archive_of_another_layout_is_an_input_error(
    cifar: SimpleNamespace,
    publish: Callable[[dict[str, bytes]], RemoteFile],
    tmp_path: Path,
    changes: dict[str, bytes | None],
    message: str,
):
    members = {name: data for name, data in (cifar.members | changes).items() if data is not None}
    with pytest.raises(InputError, match=message) as raised:
        prepare_cifar10(tmp_path, publish(members))
    assert "\n" not in str(raised.value)
    assert not is_prepared(tmp_path)


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_archive_is_an_input_error(
    cifar: SimpleNamespace,
    publish: Callable[[bytes], RemoteFile],
    tmp_path: Path,
    kept: float,
):
    truncated = publish(cifar.content[: int(kept * len(cifar.content))])
    with pytest.raises(InputError, match="no intact CIFAR-10 archive"):
        prepare_cifar10(tmp_path, truncated)
    assert not is_prepared(tmp_path)
