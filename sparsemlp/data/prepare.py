"""Preparing CIFAR-10 for TFDS from the official binary archive, without TensorFlow."""

import contextlib
import io
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from rich.console import Console
from rich.progress import Progress, TaskID

from sparsemlp.data.cifar10 import IMAGE_SIZE, N_CLASSES, VERSION, is_prepared, prepared_folder
from sparsemlp.data.download import RemoteFile, download, has_content
from sparsemlp.errors import InputError, refusal

OFFICIAL_ARCHIVE = RemoteFile(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_FOLDER = "cifar-10-batches-bin"
_LABEL_NAMES = f"{_FOLDER}/batches.meta.txt"
_BATCHES = {
    "train": [f"{_FOLDER}/data_batch_{number}.bin" for number in range(1, 6)],
    "test": [f"{_FOLDER}/test_batch.bin"],
}
_RECORD_BYTES = 1 + 3 * IMAGE_SIZE * IMAGE_SIZE


@dataclass(frozen=True)
class _Archive:
    """The content of the binary archive.

    Attributes:
      label_names: The ten names, in the order of the labels.
      records: For `train` and `test`, uint8 [n, 1 + 3072]: the label, then 1024 red, 1024 green
        and 1024 blue values, row by row.
    """

    label_names: list[str]
    records: dict[str, UInt8[np.ndarray, "_ bytes"]]


def archive_path(data_dir: Path, archive: RemoteFile = OFFICIAL_ARCHIVE) -> Path:
    """Where the downloaded archive lies, and where one that was brought by hand is found."""
    return data_dir / "downloads" / archive.filename


def prepare_cifar10(data_dir: Path, archive: RemoteFile = OFFICIAL_ARCHIVE) -> None:
    """Writes CIFAR-10 into a TFDS `data_dir` as TFDS itself would, with PNG images.

    `tfds.data_source("cifar10", data_dir=data_dir)` reads the result. The archive stays in
    `data_dir/downloads`, as with TFDS; one that is there already is used if its checksum is right.
    An interruption at any point leaves nothing that counts as prepared.

    Args:
      data_dir: An existing folder.
      archive: The archive in the official binary layout.

    Raises:
      InputError: The download fails, the archive is damaged, or `data_dir` cannot be written.
    """
    path = archive_path(data_dir, archive)
    console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
    try:
        path.parent.mkdir(exist_ok=True)
        if not has_content(path, archive.sha256):
            console.print(f"Downloading {archive.url} to {path.parent}", markup=False)
            download(archive, path)
        content = _read_archive(path)
        console.print(f"Preparing CIFAR-10 in {prepared_folder(data_dir)}", markup=False)
        _write(data_dir, content, console)
    except OSError as error:
        if is_prepared(data_dir):  # Another process was faster: TFDS cannot rename over its work.
            return
        raise InputError(
            f"CIFAR-10 cannot be prepared in {data_dir}: {refusal(error)} or pass another "
            "--data-dir"
        ) from error


def _write(data_dir: Path, content: _Archive, console: Console) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.image_classification import Cifar10

    n_images = sum(map(len, content.records.values()))
    progress = Progress(
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )

    class FromArchive(Cifar10, skip_registration=True):
        """TFDS' own CIFAR-10, fed with encoded images because encoding needs TensorFlow there."""

        name = "cifar10"

        def _split_generators(self, dl_manager: object) -> dict[Any, Any]:
            del dl_manager
            features: Any = self.info.features
            features["label"].names = content.label_names
            task = progress.add_task("preparing CIFAR-10", total=n_images)
            return {
                split: _examples(split, records, progress, task)
                for split, records in content.records.items()
            }

    builder = FromArchive(data_dir=data_dir, version=VERSION, file_format="array_record")
    quiet = io.StringIO()  # TFDS prints, and draws bars of its own.
    with progress, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )


def _examples(
    split: str, records: UInt8[np.ndarray, "n bytes"], progress: Progress, task: TaskID
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields keys and examples exactly as TFDS does, so that it shuffles them the same way."""
    for index, record in enumerate(records):
        planes = record[1:].reshape(3, IMAGE_SIZE, IMAGE_SIZE)
        example = {
            "id": f"{split}_{index:05d}",
            "image": _png(planes.transpose(1, 2, 0)),
            "label": int(record[0]),
        }
        progress.advance(task)
        yield index, example


def _png(image: UInt8[np.ndarray, "height width 3"]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def _read_archive(path: Path) -> _Archive:
    try:
        files = _read_members(path, {_LABEL_NAMES, *_BATCHES["train"], *_BATCHES["test"]})
        names = [name for name in files[_LABEL_NAMES].decode().split("\n") if name]
        if len(names) != N_CLASSES:
            raise ValueError(f"{_LABEL_NAMES} holds {len(names)} names, not {N_CLASSES}")
        records = {
            split: np.concatenate([_batch(name, files[name]) for name in batches])
            for split, batches in _BATCHES.items()
        }
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        raise InputError(
            f"{path} is no intact CIFAR-10 archive in the binary layout ({error}): "
            "delete it to download it anew"
        ) from error
    return _Archive(names, records)


def _read_members(path: Path, names: set[str]) -> dict[str, bytes]:
    files = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if member.name in names and (file := archive.extractfile(member)):
                files[member.name] = file.read()
    if missing := names - files.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    return files


def _batch(name: str, data: bytes) -> UInt8[np.ndarray, "n bytes"]:
    if not data or len(data) % _RECORD_BYTES:
        raise ValueError(f"{name} has {len(data)} bytes, not a multiple of {_RECORD_BYTES}")
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD_BYTES)
    if (largest := records[:, 0].max()) >= N_CLASSES:
        raise ValueError(f"{name} holds the label {largest}, outside 0..{N_CLASSES - 1}")
    return records
