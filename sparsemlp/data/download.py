"""Fetching one file over HTTP: is it there, and bring it here, checked and whole or not at all."""

import contextlib
import hashlib
import http.client
import queue
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sparsemlp.errors import InputError, in_a_line

_CHUNK_BYTES = 1 << 18
_STALL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """A file on the network and what it must contain.

    Attributes:
      url: Where it is.
      sha256: The hexadecimal SHA-256 of its content.
    """

    url: str
    sha256: str

    @property
    def filename(self) -> str:
        """The last part of the URL."""
        return self.url.rsplit("/", 1)[-1]


def why_unreachable(url: str, timeout_s: float) -> str | None:
    """Asks the server for a file's header, and waits no longer than told.

    The question is put in a thread of its own, because a name server that does not answer blocks
    beyond every timeout of a connection.

    Args:
      url: The file.
      timeout_s: The longest time until this function returns, in seconds.

    Returns:
      None if the file is there, otherwise the reason in a few words.
    """
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    silence = f"no answer within {timeout_s:g} s"

    def ask() -> None:
        try:
            with _open(urllib.request.Request(url, method="HEAD"), timeout_s):
                answers.put(None)
        except (OSError, ValueError, http.client.HTTPException) as error:
            answers.put(silence if _is_timeout(error) else _reason(error))

    threading.Thread(target=ask, name="sparsemlp-probe", daemon=True).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        return silence


def has_content(path: Path, sha256: str) -> bool:
    """Whether `path` is a file with this hexadecimal SHA-256."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def download(file: RemoteFile, path: Path) -> None:
    """Downloads a file to `path`, which comes into being complete and checked or not at all.

    Progress is shown on standard error.

    Args:
      file: What to download.
      path: Where to; its folder must exist, an older file is replaced.

    Raises:
      InputError: The server cannot be reached or breaks off, the content is not the expected
        one, or the folder cannot be written.
    """
    way_out = f"try again, or bring {file.filename} to {path} yourself"
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    digest = hashlib.sha256()
    try:
        with part.open("xb") as target, contextlib.closing(_chunks(file.url)) as chunks:
            for chunk in chunks:
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise InputError(
                f"{file.url} has the SHA-256 {digest.hexdigest()}, must be {file.sha256}: "
                f"the download is damaged or another file, {way_out}"
            )
        part.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"{file.url} cannot be downloaded to {path.parent} ({_reason(error)}): {way_out}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _chunks(url: str) -> Generator[bytes]:
    console = Console(file=sys.stderr)
    with _open(urllib.request.Request(url), _STALL_TIMEOUT_S) as response:
        n_bytes = response.length
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(
            *columns,
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as progress:
            task = progress.add_task("downloading", total=n_bytes)
            n_read = 0
            while chunk := response.read(_CHUNK_BYTES):
                n_read += len(chunk)
                progress.update(task, completed=n_read)
                yield chunk
        if n_bytes is not None and n_read != n_bytes:
            raise http.client.IncompleteRead(b"", n_bytes - n_read)


@contextlib.contextmanager
def _open(request: urllib.request.Request, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    """Opens a URL; a refusal of the server holds a connection, which is closed here."""
    try:
        response = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    with response:
        yield response


def _is_timeout(error: Exception) -> bool:
    """Whether a connection gave up waiting: urllib wraps that while it connects, not afterwards."""
    return isinstance(getattr(error, "reason", error), TimeoutError)


def _reason(error: Exception) -> str:
    match error:
        case urllib.error.HTTPError():
            return f"HTTP {error.code} {error.reason}"
        case http.client.IncompleteRead():
            return f"the connection ended {error.expected} bytes early"
        case urllib.error.URLError():
            return str(error.reason)
        case _:
            return in_a_line(error)
