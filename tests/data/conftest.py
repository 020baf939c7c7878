"""A small CIFAR-10 in the official binary layout, and a server for it on this machine."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparsemlp.data.download import RemoteFile
from sparsemlp.data.prepare import prepare_cifar10

LABEL_NAMES = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"
PER_BATCH = 7
N_TEST = 11


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def archive_bytes(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def server(server_folder: Path) -> Iterator[str]:
    """The address of a server on this machine that hands out `server_folder`."""
    handler = partial(_QuietHandler, directory=str(server_folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http, pytest.MonkeyPatch.context() as m:
        m.setenv("no_proxy", "127.0.0.1")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def publish(server: str, server_folder: Path) -> Callable[[bytes | dict[str, bytes]], RemoteFile]:
    """Serves a file, or an archive of the given members, under an address of its own."""

    def publish(content: bytes | dict[str, bytes]) -> RemoteFile:
        data = archive_bytes(content) if isinstance(content, dict) else content
        sha256 = hashlib.sha256(data).hexdigest()
        (server_folder / f"{sha256}.tar.gz").write_bytes(data)
        return RemoteFile(f"{server}/{sha256}.tar.gz", sha256)

    return publish


@pytest.fixture(scope="session")
def cifar(publish: Callable[[bytes], RemoteFile]) -> SimpleNamespace:
    """Images, labels, and the archive (`remote`, its `members` and `content`) that holds them."""
    rng = np.random.default_rng(0)
    n_train = 5 * PER_BATCH
    images = rng.integers(0, 256, (n_train + N_TEST, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, n_train + N_TEST, dtype=np.uint8)
    planar = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    records = np.concatenate([labels[:, None], planar], axis=1)
    members = {"batches.meta.txt": LABEL_NAMES.encode()}
    for number in range(5):
        batch = records[number * PER_BATCH : (number + 1) * PER_BATCH]
        members[f"data_batch_{number + 1}.bin"] = batch.tobytes()
    members["test_batch.bin"] = records[n_train:].tobytes()
    archive = archive_bytes(members)
    return SimpleNamespace(
        images={"train": images[:n_train], "test": images[n_train:]},
        labels={"train": labels[:n_train], "test": labels[n_train:]},
        members=members,
        content=archive,
        remote=publish(archive),
    )


@pytest.fixture(scope="session")
def prepared(cifar: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TFDS folder that was prepared from the archive; read it only."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_cifar10(folder, cifar.remote)
    return folder


@pytest.fixture
def no_network() -> RemoteFile:
    """A file at an address where nobody listens."""
    return RemoteFile("http://127.0.0.1:9/cifar.tar.gz", "0" * 64)
