"""Errors that a user can mend are one line and a code."""

import warnings

import pytest

from sparsemlp.errors import DeviceLostError, InputError, NotFiniteError, SaveError
from sparsemlp.exit_codes import exit_code, tell


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("x is bad"), 2, "error: x is bad"),
        (SaveError("disk full"), 2, "error: disk full"),
        (NotFiniteError("NaN"), 3, "stopped: NaN"),
        (DeviceLostError("no answer: again"), 4, "stopped: no answer: again"),
        (KeyboardInterrupt(), 130, "stopped at once; go on so"),
    ],
)
def test_an_error_is_one_line_and_its_code(capsys, error, code, line):
    assert exit_code(lambda: fail(error), stopped="go on so") == code
    assert capsys.readouterr().err == f"{line}\n"


def test_what_is_no_fault_of_the_user_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: 1 // 0, stopped="")


def test_the_code_of_the_program_is_returned_and_warnings_are_one_line(capsys):
    def program() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("look out", stacklevel=1)
        return 7

    assert exit_code(program, stopped="") == 7
    assert capsys.readouterr().err == "warning: look out\n"


class Gone:
    """A standard error that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_line_that_nobody_can_read_ends_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", Gone())

    def program() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("look out", stacklevel=1)
        tell("nobody hears this")
        return 7

    assert exit_code(program) == 7
    assert exit_code(lambda: fail(SaveError("disk full"))) == 2
