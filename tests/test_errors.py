"""What errors say."""

import errno
import os

import pytest

from sparsemlp.errors import InputError, in_a_line, refusal, require_known


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EDQUOT, "make room there"),
        (errno.EACCES, "make it writable"),
        (errno.EROFS, "make it writable"),
        (errno.EIO, "see to that"),
    ],
)
def test_a_refused_write_names_the_way_out_that_its_reason_has(code, way_out):
    assert refusal(OSError(code, os.strerror(code))) == f"{os.strerror(code)}; {way_out}"


def test_a_refusal_without_a_code_says_what_it_says():
    assert refusal(OSError("the lake is closed")) == "the lake is closed; see to that"


def test_an_error_is_one_line_whatever_it_says():
    assert in_a_line(ValueError("one\n  two")) == "one two"
    assert in_a_line(MemoryError()) == "MemoryError"


def test_what_is_known_comes_back_and_the_rest_is_named():
    assert require_known("--score=l2", "l2", ("l1", "l2")) == "l2"
    with pytest.raises(InputError, match=r"^--score=l3 is unknown: choose one of l1, l2$"):
        require_known("--score=l3", "l3", ("l1", "l2"))
