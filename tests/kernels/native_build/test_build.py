"""The native library is built once for all that it depends on, and kept where it is found again."""

import os
import time

import pytest
from builds import COMPILER, HALF, needs_compiler, value

from pallas_kernels.cpu import build
from pallas_kernels.cpu.build import BuildError, build_library


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


def test_cxx_that_is_no_command_is_an_error_that_names_it(source, cache, monkeypatch):
    monkeypatch.setenv("CXX", 'g++ "-O2')
    with pytest.raises(BuildError, match=r'CXX=g\+\+ "-O2 is no command \(No closing quotation\)'):
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
