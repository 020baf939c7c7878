"""The native library is built once per machine, by whoever comes first, and never found broken."""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from jax import ffi

from pallas_kernels.cpu import build
from pallas_kernels.cpu.build import BuildError, build_library, cache_folder

COMPILER = next(filter(None, map(shutil.which, build.COMPILERS)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

BUILD = f"""
import importlib.util, sys, types
from pathlib import Path
sys.modules["jax"] = types.SimpleNamespace(
    ffi=types.SimpleNamespace(include_dir=lambda: {ffi.include_dir()!r})
)
spec = importlib.util.spec_from_file_location("build", {build.__file__!r})
sys.modules["build"] = build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
build_library = build.build_library
"""
"""How a process of its own begins: it needs nothing of JAX, which takes seconds, but a folder."""

HALF = 'for word; do case $word in */kernels-*) echo half > "$word";; esac; done'
"""What a compiler does that ends before its time."""


class Compiler:
    """The system's compiler as a script that counts its compilations, set as CXX.

    It says `version`, refuses the flags in `refused`, and runs `before` ahead of a compilation.
    """

    def __init__(self, folder: Path):
        self.log, self.path = folder / "compilations", folder / "counting-c++"
        self.log.touch()
        self.say()

    def say(self, version: str = "1.0", refused: str = "@none@", before: str = "true") -> None:
        script = f"""#!/bin/sh
case "$*" in --version) echo {version}; exit;; *{refused}*) exit 1;; esac
case "$*" in *-shared*) echo "$*" >> {self.log}; {before};; esac
exec {COMPILER} "$@"
"""
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def compilations(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "home" / "cache"


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> Compiler:
    compiler = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler.path))
    return compiler


@pytest.fixture
def source(tmp_path) -> Path:
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "value.h").write_text("#define VALUE 42\n")
    main = folder / "main.cc"
    main.write_text('#include "value.h"\nextern "C" int value() { return VALUE; }\n')
    return main


def value(library: Path) -> int:
    return ctypes.CDLL(str(library)).value()


def start(source: Path, cache: Path, before: str = "", **environment: str) -> subprocess.Popen[str]:
    """A process that builds, and says where the library is and what it computes."""
    program = (
        f"{BUILD}{before}\nimport ctypes\n"
        f"path = build_library(Path({str(source)!r}), cache_dir=Path({str(cache)!r}))\n"
        "print(path, ctypes.CDLL(str(path)).value())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def assert_temporary(library: Path, cache: Path) -> None:
    assert value(library) == 42
    assert library.is_relative_to(tempfile.gettempdir())
    assert not library.is_relative_to(cache)


@needs_compiler
def test_a_library_is_built_once_and_said_to_be_built_once(source, cache, compiler, capsys):
    first = build_library(source, cache_dir=cache)
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "building the CPU kernels with counting-c++" in said.err
    assert not said.out
    os.utime(first, (0, 0))
    assert build_library(source, cache_dir=cache) == first
    assert capsys.readouterr() == ("", "")
    assert len(compiler.compilations) == 1
    assert first.parent == cache
    assert first.stat().st_mtime > time.time() - 60, "a use is not noted"
    assert value(first) == 42


@needs_compiler
def test_the_system_compiler_is_found_and_finds_the_headers_of_xla(source, cache, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    source.write_text('#include "xla/ffi/api/c_api.h"\n' + source.read_text())
    assert value(build_library(source, cache_dir=cache)) == 42


@needs_compiler
def test_a_change_of_anything_that_a_library_depends_on_builds_another(
    source, cache, compiler, monkeypatch
):
    header = source.parent / "value.h"
    changes = {
        "the source": lambda: source.write_text(source.read_text() + "\n"),
        "a header": lambda: header.write_text("#define VALUE 43\n"),
        "a new file": lambda: (source.parent / "more.h").touch(),
        "a file's name": lambda: (source.parent / "more.h").rename(source.parent / "n.h"),
        "the compiler's version": lambda: compiler.say(version="1.1"),
        "the compiler's options": lambda: monkeypatch.setenv("CXX", f"{compiler.path} -g0"),
        "the processor": lambda: monkeypatch.setattr(build, "_processor", lambda: "another"),
        "jaxlib": lambda: monkeypatch.setattr(build.metadata, "version", lambda _: "9.9.9"),
    }
    libraries = [build_library(source, cache_dir=cache)]
    for what, change in changes.items():
        change()
        libraries.append(build_library(source, cache_dir=cache))
        assert libraries[-1] not in libraries[:-1], what
    libraries.append(build_library(source, cache_dir=cache, extra_flags=["-DMORE"]))
    assert len(set(libraries)) == len(compiler.compilations) == 10
    assert "-DMORE" in compiler.compilations[-1]
    assert (value(libraries[0]), value(libraries[-1])) == (42, 43)


def test_the_processor_is_described_the_same_at_every_call():
    assert build._processor() == build._processor() != ""


@needs_compiler
@pytest.mark.parametrize(
    ("refused", "taken"),
    [("@none@", "-march=native"), ("-march=", "-mcpu=native"), ("-m[ac][rp]", None)],
)
def test_the_compiler_is_asked_for_this_processor_in_the_way_it_knows(
    source, cache, compiler, refused, taken
):
    compiler.say(refused=refused)
    # Not every real compiler knows -mcpu: the script stands for one that does.
    script = compiler.path.read_text()
    only_probe = 'case "$*" in *-fsyntax-only*) exit 0;; esac\nexec'
    script = script.replace("exec", only_probe).replace('"$@"', "$(echo $* | sed s/-mcpu=native//)")
    compiler.path.write_text(script)
    assert value(build_library(source, cache_dir=cache)) == 42
    (compilation,) = compiler.compilations
    assert [word for word in compilation.split() if word.endswith("=native")] == (
        [taken] if taken else []
    )


@needs_compiler
def test_processes_that_start_at_once_compile_once(source, cache, compiler):
    compiler.say(before="sleep 0.5")
    go = source.parent.parent / "go"
    ready = [source.parent.parent / f"ready{i}" for i in range(4)]
    processes = [
        start(
            source,
            cache,
            f"import time; Path({str(mark)!r}).touch()\n"
            f"while not Path({str(go)!r}).exists(): time.sleep(0.01)",
        )
        for mark in ready
    ]
    wait_for(lambda: all(mark.exists() for mark in ready), "the processes to start")
    go.touch()
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert len({out for out, _ in said}) == 1
    assert said[0][0].split() == [str(next(cache.glob("*.so"))), "42"]
    assert len(compiler.compilations) == 1
    assert sum("building" in err for _, err in said) == 1


@needs_compiler
@pytest.mark.parametrize("folder", ["cache", "/dev/null/cache"])
def test_threads_that_start_at_once_compile_once(source, tmp_path, compiler, folder):
    compiler.say(before="sleep 0.2")
    libraries: list[Path] = []

    def build_one() -> None:
        libraries.append(build_library(source, cache_dir=tmp_path / folder))

    threads = [threading.Thread(target=build_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(libraries) == 4
    assert len(set(libraries)) == len(compiler.compilations) == 1


@needs_compiler
def test_a_killed_builder_leaves_neither_its_lock_nor_half_a_library(source, cache, compiler):
    temporary = source.parent.parent / "tmp"
    temporary.mkdir()
    compiler.say(before=f"{HALF}; echo $$ >> {temporary}/pid; exec sleep 100")
    builder = start(source, cache, TMPDIR=str(temporary))
    wait_for((temporary / "pid").exists, "the compiler to start")
    builder.kill()
    builder.communicate()
    compiler.say()
    began = time.monotonic()
    try:
        library = build_library(source, cache_dir=cache)
    finally:
        os.kill(int((temporary / "pid").read_text()), signal.SIGKILL)
    assert time.monotonic() - began < 30, "the lock was still held"
    assert library.parent == cache
    assert value(library) == 42
    assert len(compiler.compilations) == 2


@needs_compiler
def test_a_lock_that_is_never_released_holds_nobody_for_ever(source, cache, compiler, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(build, "TIMEOUT_S", 2.0)
    cache.mkdir(parents=True)
    with open(cache / "kernels.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        release = threading.Timer(30, fcntl.flock, (other.fileno(), fcntl.LOCK_UN))
        release.start()
        began = time.monotonic()
        assert build_library(source, cache_dir=cache).parent == cache
        release.cancel()
    assert time.monotonic() - began < 25


@needs_compiler
def test_a_library_that_the_disk_cannot_hold_is_used_from_a_temporary_folder(
    source, cache, compiler, monkeypatch
):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert_temporary(build_library(source, cache_dir=cache), cache)
        assert [path.name for path in cache.iterdir()] == ["kernels.lock"]
    assert build_library(source, cache_dir=cache).parent == cache
    assert len(compiler.compilations) == 1


@needs_compiler
def test_a_cache_folder_that_cannot_be_made_is_replaced_and_said_to_be(
    source, tmp_path, compiler, capsys
):
    (tmp_path / "file").touch()
    library = build_library(source, cache_dir=tmp_path / "file" / "cache")
    assert_temporary(library, tmp_path / "file")
    assert f"in every run: [Errno {errno.ENOTDIR}]" in capsys.readouterr().err
    assert build_library(source, cache_dir=tmp_path / "file" / "cache") == library
    assert len(compiler.compilations) == 1


@needs_compiler
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that root cannot write")
def test_a_cache_folder_that_cannot_be_written_is_replaced(source, compiler):
    assert_temporary(build_library(source, cache_dir=Path("/proc/self")), Path("/proc/self"))


@needs_compiler
def test_a_temporary_library_is_removed_when_the_process_ends(source, tmp_path, compiler):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    builder = start(source, Path("/dev/null/cache"), TMPDIR=str(temporary))
    out, err = builder.communicate(timeout=60)
    assert builder.returncode == 0, err
    assert out.startswith(str(temporary))
    assert list(temporary.iterdir()) == []


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without users")
def test_nothing_is_loaded_that_another_user_could_have_written(
    source, cache, compiler, monkeypatch
):
    planted = build_library(source, cache_dir=cache)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: planted.stat().st_uid + 1)
        assert_temporary(build_library(source, cache_dir=cache), cache)
    for path in (cache, planted):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        assert_temporary(build_library(source, cache_dir=cache), cache)
        path.chmod(mode)
    assert build_library(source, cache_dir=cache) == planted


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root gives files away")
def test_a_planted_library_in_a_folder_of_our_own_is_not_loaded(source, cache, compiler):
    planted = build_library(source, cache_dir=cache)
    os.chown(planted, 12345, -1)
    assert_temporary(build_library(source, cache_dir=cache), cache)


@needs_compiler
def test_a_build_removes_what_nobody_used_for_a_month(source, cache, compiler):
    cache.mkdir(parents=True)
    ages = {"kernels-old.so": 31, "kernels-old.tmp": 31, "kernels-new.so": 29, "other.so": 99}
    for name, days in ages.items():
        then = time.time() - days * 24 * 3600
        (cache / name).touch()
        os.utime(cache / name, (then, then))
    library = build_library(source, cache_dir=cache)
    assert {path.name for path in cache.iterdir()} == {
        library.name,
        "kernels-new.so",
        "kernels.lock",
        "other.so",
    }


def test_no_compiler_is_an_error_that_names_a_package(source, cache, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler.*apt install g\+\+.*another engine"):
        build_library(source, cache_dir=cache)


@needs_compiler
def test_a_compiler_that_does_not_run_is_passed_over(source, cache, tmp_path, monkeypatch):
    """On macOS without its tools c++ is there, and only asks to install them."""
    monkeypatch.delenv("CXX", raising=False)
    stub = tmp_path / build.COMPILERS[0]
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(build, "COMPILERS", (stub.name, str(COMPILER)))
    assert value(build_library(source, cache_dir=cache)) == 42


@pytest.mark.parametrize("name", ["no-such-c++", "/no/such/c++ -g"])
def test_cxx_that_is_no_program_is_an_error_that_names_it(source, cache, monkeypatch, name):
    monkeypatch.setenv("CXX", name)
    with pytest.raises(BuildError, match=rf"CXX={name}".replace("+", r"\+")):
        build_library(source, cache_dir=cache)


@needs_compiler
def test_a_broken_source_is_an_error_with_the_last_words_of_the_compiler(source, cache, compiler):
    source.write_text("int main() { return undeclared_name; }\n" + "#warning noise\n" * 100)
    with pytest.raises(BuildError, match=r"main\.cc with exit code 1; .*another engine") as caught:
        build_library(source, cache_dir=cache)
    assert str(compiler.path) in str(caught.value)
    assert 1 < len(str(caught.value).splitlines()) <= 21
    source.write_text("int main() { return undeclared_name; }\n")
    with pytest.raises(BuildError, match="undeclared_name"):
        build_library(source, cache_dir=cache)
    assert not list(cache.glob("*.so"))


@needs_compiler
def test_a_compiler_that_does_not_end_is_an_error_and_no_library(
    source, cache, compiler, monkeypatch
):
    compiler.say(before=f"{HALF}; exec sleep 100")
    with monkeypatch.context() as patch:
        patch.setattr(build, "TIMEOUT_S", 0.5)
        with pytest.raises(BuildError, match=r"main\.cc: not done after 0\.5 s"):
            build_library(source, cache_dir=cache)
    compiler.say()
    assert value(build_library(source, cache_dir=cache)) == 42


def test_without_any_folder_to_write_the_error_says_what_to_set(
    source, cache, compiler, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/tmp")
    build._temporary_folder.cache_clear()
    with pytest.raises(BuildError, match="set TMPDIR"):
        build_library(source, cache_dir=cache)


def test_the_cache_folder_is_the_first_that_the_environment_names(tmp_path, monkeypatch):
    for name in ("SPARSEMLP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sparsemlp"
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder() == Path("/shared/sparsemlp")
    monkeypatch.setenv("SPARSEMLP_CACHE_DIR", "~/own")
    assert cache_folder() == tmp_path / "own"


@needs_compiler
def test_a_user_without_a_home_builds_in_a_temporary_folder(source, compiler, monkeypatch, capsys):
    monkeypatch.setenv("SPARSEMLP_CACHE_DIR", "~nobody-of-this-name/cache")
    library = build_library(source)
    assert_temporary(library, Path("~nobody-of-this-name"))
    assert "no home folder; set SPARSEMLP_CACHE_DIR" in capsys.readouterr().err
