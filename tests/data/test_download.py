"""A download is complete and checked or absent, and no network blocks for long."""

import http.server
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsemlp.data.download import RemoteFile, download, has_content, why_unreachable
from sparsemlp.errors import InputError


def test_a_file_that_is_there_is_reachable(cifar: SimpleNamespace):
    assert why_unreachable(cifar.remote.url, 5.0) is None


def test_the_reason_names_what_the_server_said(server: str):
    assert why_unreachable(f"{server}/none", 5.0) == "HTTP 404 File not found"


def test_a_refused_connection_is_a_reason(no_network: RemoteFile):
    assert "refused" in (why_unreachable(no_network.url, 5.0) or "")


def test_a_malformed_address_is_a_reason():
    assert why_unreachable("nowhere", 5.0)


def test_a_silent_server_is_left_in_time():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        start = time.monotonic()
        assert why_unreachable(url, 0.2)
        assert time.monotonic() - start < 30.0


@pytest.mark.parametrize("wrap", [urllib.error.URLError, lambda error: error])
def test_a_connection_that_gives_up_first_says_the_same(
    wrap: Callable[[TimeoutError], OSError], monkeypatch: pytest.MonkeyPatch
):
    def give_up(*_: object, **__: object) -> None:
        raise wrap(TimeoutError("timed out"))

    monkeypatch.setattr(urllib.request, "urlopen", give_up)
    assert why_unreachable("http://example.invalid/", 5.0) == "no answer within 5 s"


def test_a_silent_name_server_is_left_in_time(monkeypatch: pytest.MonkeyPatch):
    answered = threading.Event()

    def never(*_: object, **__: object) -> None:
        answered.wait()
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    start = time.monotonic()
    assert why_unreachable("http://example.invalid/", 0.2) == "no answer within 0.2 s"
    assert time.monotonic() - start < 30.0
    answered.set()


def test_a_download_is_the_file(cifar: SimpleNamespace, tmp_path: Path):
    download(cifar.remote, tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == cifar.content
    assert has_content(tmp_path / "a.tar.gz", cifar.remote.sha256)


def test_a_wrong_checksum_leaves_nothing(cifar: SimpleNamespace, tmp_path: Path):
    with pytest.raises(InputError, match=f"SHA-256 {cifar.remote.sha256}, must be 0000"):
        download(RemoteFile(cifar.remote.url, "0" * 64), tmp_path / "a.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_leaves_the_older_file(cifar: SimpleNamespace, tmp_path: Path):
    (tmp_path / "a.tar.gz").write_bytes(b"older")
    with pytest.raises(InputError, match="SHA-256"):
        download(RemoteFile(cifar.remote.url, "0" * 64), tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == b"older"


def test_a_connection_that_ends_early_leaves_nothing(tmp_path: Path):
    class Breaking(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 400)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Breaking) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        file = RemoteFile(f"http://127.0.0.1:{server.server_port}/a.tar.gz", "0" * 64)
        with pytest.raises(InputError, match="ended 600 bytes early"):
            download(file, tmp_path / "a.tar.gz")
        thread.join()
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_an_input_error(no_network: RemoteFile, tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot be downloaded.*bring cifar\.tar\.gz"):
        download(no_network, tmp_path / "a.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_input_error(cifar: SimpleNamespace, tmp_path: Path):
    with pytest.raises(InputError, match="No such file"):
        download(cifar.remote, tmp_path / "missing" / "a.tar.gz")


def test_what_is_no_web_server_is_told_in_one_line():
    class OfMail(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.wfile.write(b"220 ready\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), OfMail) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert why_unreachable(f"http://127.0.0.1:{server.server_port}/a", 5.0) == "220 ready"
        thread.join()
