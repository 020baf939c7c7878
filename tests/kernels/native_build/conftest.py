"""A small library to build, where to, and with what."""

from pathlib import Path

import pytest
from builds import Compiler


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
