"""`~` stands for a home folder, or for nothing, which is said."""

from pathlib import Path

import pytest

from sparsemlp.errors import InputError
from sparsemlp.paths import at_home, is_npz


def test_a_home_folder_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert at_home(Path("~/runs")) == Path("/somewhere/runs")
    assert at_home(Path("runs/~")) == Path("runs/~")


def test_the_home_of_nobody_is_an_error():
    with pytest.raises(InputError, match="~nobody-of-that-name is nobody's home folder here"):
        at_home(Path("~nobody-of-that-name/runs"))


def test_a_file_of_arrays_may_have_its_name_in_capitals():
    assert is_npz("images.npz")
    assert is_npz("IMAGES.NPZ")
    assert not is_npz("npz")
