"""Builds the native library of engine `cpu` at its first use, once per machine.

The library is made for this very processor, so it is never shipped. It is kept in a cache folder
under a name that stands for all it depends on; without such a folder it lives as long as the
process.
"""

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from jax import ffi

if sys.platform != "win32":
    import fcntl

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread")
NATIVE_FLAGS = (("-march=native",), ("-mcpu=native",), ())
"""Ways to ask for this very processor; the first that the compiler accepts is taken."""
TIMEOUT_S = 900.0
"""What takes half a minute by itself takes minutes where many share the cores."""
_PROBE_S = 60.0
MAX_AGE_S = 30 * 24 * 3600.0
WAY_OUT = (
    "install g++ (`apt install g++`, `dnf install gcc-c++`, or on macOS `xcode-select --install`),"
    " or use another engine"
)
_one_thread = threading.Lock()


class BuildError(RuntimeError):
    """The native library cannot be built here; says what failed and the way out."""


def cache_folder() -> Path:
    """`$SPARSEMLP_CACHE_DIR`, else `$XDG_CACHE_HOME/sparsemlp`, else `~/.cache/sparsemlp`.

    Raises:
      FileNotFoundError: if it lies in a home folder and there is none.
    """
    try:
        if own := os.environ.get("SPARSEMLP_CACHE_DIR"):
            return Path(own).expanduser()
        shared = os.environ.get("XDG_CACHE_HOME")
        return (Path(shared) if shared else Path.home() / ".cache") / "sparsemlp"
    except RuntimeError as error:
        raise FileNotFoundError("no home folder; set SPARSEMLP_CACHE_DIR") from error


def build_library(
    source: Path, *, cache_dir: Path | None = None, extra_flags: Sequence[str] = ()
) -> Path:
    """The library built from `source`, compiled now if the cache folder does not have it.

    Any number of threads and processes may call this at once; one of them compiles. A cache folder
    that cannot be written, or that another user could have written, is replaced by a temporary one.

    Args:
      source: the one file that is compiled; every file of its folder is part of the cache's key.
      cache_dir: instead of `cache_folder()`.
      extra_flags: given to the compiler after `FLAGS`.

    Returns:
      The absolute path of the library; a temporary one is removed when the process ends.

    Raises:
      BuildError: if there is no compiler, or if it fails.
    """
    recipe = _Recipe(source.absolute(), *_find_compiler(), (*FLAGS, *extra_flags))
    name = f"kernels-{recipe.key()}.so"
    with _one_thread:
        try:
            return _cached(recipe, cache_dir or cache_folder(), name)
        except OSError as error:
            return _compiled(recipe, name, f"in every run: {error}")


@dataclasses.dataclass(frozen=True)
class _Recipe:
    source: Path
    compiler: tuple[str, ...]
    version: str
    flags: tuple[str, ...]

    def key(self) -> str:
        """20 hex digits that stand for everything the library depends on."""
        folder = self.source.parent
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents = [(str(path.relative_to(folder)), path.read_bytes()) for path in files]
        tools = (self.compiler, self.version, self.flags, NATIVE_FLAGS, metadata.version("jaxlib"))
        machine = (sys.platform, platform.machine(), platform.libc_ver(), _processor())
        everything = repr((self.source.name, contents, tools, machine))
        return hashlib.sha256(everything.encode()).hexdigest()[:20]

    def compile(self, library: Path) -> None:
        native = next(flags for flags in NATIVE_FLAGS if self._accepts(flags))
        paths = ("-isystem", ffi.include_dir(), "-o", str(library), str(self.source))
        failed = f"{self.compiler[0]} failed on {self.source.name}"
        way_out = "set CXX to another C++17 compiler, or use another engine"
        try:
            done = _run((*self.compiler, *native, *self.flags, *paths), TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{failed}: not done after {TIMEOUT_S:g} s; {way_out}") from error
        if done.returncode or not library.exists():
            said = "\n".join(done.stderr.splitlines()[-20:])
            raise BuildError(f"{failed} with exit code {done.returncode}; {way_out}:\n{said}")

    def _accepts(self, flags: tuple[str, ...]) -> bool:
        probe = ("-x", "c++", "-fsyntax-only", os.devnull)
        return not flags or _output((*self.compiler, *flags, *probe)) is not None


def _find_compiler() -> tuple[tuple[str, ...], str]:
    """The command of the first compiler that runs, and what it says of its version."""
    told = os.environ.get("CXX", "")
    try:
        wanted = shlex.split(told)
    except ValueError as error:
        raise BuildError(f"CXX={told} is no command ({error}); correct it, {WAY_OUT}") from error
    for name, *options in [wanted] if wanted else [[name] for name in COMPILERS]:
        command = (os.path.abspath(shutil.which(name) or os.devnull), *options)
        if version := _output((*command, "--version")):
            return command, version
    if wanted:
        raise BuildError(f"CXX={shlex.join(wanted)} does not run; correct it, {WAY_OUT}")
    raise BuildError(f"no C++ compiler of {', '.join(COMPILERS)} runs here; {WAY_OUT}")


def _run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        timeout=seconds,
        check=False,
    )


def _output(command: Sequence[str]) -> str | None:
    """What `command` prints to its standard output; None if it fails."""
    try:
        done = _run(command, min(TIMEOUT_S, _PROBE_S))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def _processor() -> str:
    """Model and features of the processor, the same at every call on one machine."""
    with contextlib.suppress(OSError):
        described = r"^(?:vendor_id|cpu family|model|model name|flags|Features|isa|CPU \w+)\s*:.*"
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        return "\n".join(sorted(set(re.findall(described, text, re.MULTILINE))))
    return _output(("sysctl", "machdep.cpu.brand_string", "hw.optional")) or platform.processor()


def _cached(recipe: _Recipe, folder: Path, name: str) -> Path:
    """The library in `folder`, put there if need be; OSError if the folder is of no use."""
    library = folder.absolute() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(folder)
    if not library.exists():
        with _locked(folder / "kernels.lock"):
            if not library.exists():
                _publish(_compiled(recipe, name, "once per machine"), library)
                _remove_old(folder)
    _check_owner(library)
    with contextlib.suppress(OSError):
        os.utime(library)
    return library


def _compiled(recipe: _Recipe, name: str, how_often: str) -> Path:
    """The library in this process's temporary folder."""
    try:
        library = _temporary_folder() / name
    except OSError as error:
        raise BuildError(f"{error}; set TMPDIR to a folder that can be written") from error
    if not library.exists():
        compiler = Path(recipe.compiler[0]).name
        message = f"building the CPU kernels with {compiler} (half a minute or so, {how_often}) ..."
        print(message, file=sys.stderr)
        unfinished = library.with_suffix(".unfinished")
        recipe.compile(unfinished)
        unfinished.replace(library)
    return library


@functools.cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="sparsemlp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _check_owner(path: Path) -> None:
    """PermissionError if another user may have written `path`, whose code would run as us."""
    if sys.platform != "win32":
        status = path.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"other users can write {path}")


def _publish(built: Path, library: Path) -> None:
    """Copies `built` so that `library` is there whole or not at all, even if power fails."""
    handle, unfinished = tempfile.mkstemp(prefix="kernels-", suffix=".tmp", dir=library.parent)
    try:
        with open(handle, "wb") as file:
            file.write(built.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, library)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _remove_old(folder: Path) -> None:
    for path in folder.glob("kernels-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > MAX_AGE_S:
                path.unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process in at a time; after the time of a whole build, it lets in all the same."""
    with open(path, "a") as file:
        end = time.monotonic() + TIMEOUT_S
        while sys.platform != "win32" and time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
                continue
            except OSError:
                pass  # a file system without locks: at worst two processes compile
            break
        yield
