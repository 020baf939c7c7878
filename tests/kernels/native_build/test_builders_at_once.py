"""The native library is built once per machine, by whoever comes first, and never found broken."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from builds import HALF, needs_compiler, start, value, wait_for

from pallas_kernels.cpu import build
from pallas_kernels.cpu.build import build_library


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
