"""Where the native library is kept: in a folder that nobody else writes, or in a temporary one."""

import errno
import os
import tempfile
import time
from pathlib import Path

import pytest
from builds import assert_temporary, needs_compiler, start

from pallas_kernels.cpu import build
from pallas_kernels.cpu.build import BuildError, build_library, cache_folder


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
        for others in (0o002, 0o020):
            path.chmod(mode | others)
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
