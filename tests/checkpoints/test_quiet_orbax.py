"""Orbax is silent only while it works, and its errors fit in a line."""

import errno
import logging
import os
import sys
import warnings

import pytest

from sparsemlp.checkpoints.quiet_orbax import quiet_orbax, reason


def test_logs_and_warnings_are_off_inside_and_as_before_afterwards():
    logger, hook = logging.getLogger("absl"), sys.unraisablehook
    before = logger.disabled
    with quiet_orbax():
        assert logger.disabled
        warnings.warn("nobody hears this", stacklevel=1)
    assert (logger.disabled, sys.unraisablehook) == (before, hook)
    with pytest.raises(KeyError), quiet_orbax():
        raise KeyError
    assert (logger.disabled, sys.unraisablehook) == (before, hook)


def test_a_reason_is_one_line_in_the_words_of_the_system_where_it_can_be():
    full = os.strerror(errno.ENOSPC)
    assert reason(OSError(errno.ENOSPC, full)) == full
    wrapped = ValueError(f"Error writing x [os_error_code='{errno.ENOSPC}'] at\nmany\nlines")
    assert reason(wrapped) == full
    assert reason(ValueError("first\nsecond")) == "first"
    assert reason(ValueError()) == "ValueError"


def test_who_ends_the_process_at_once_hears_nothing_of_what_was_under_way(monkeypatch):
    logger = logging.getLogger("absl")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", False)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(KeyboardInterrupt), quiet_orbax():
        raise KeyboardInterrupt
    assert logger.disabled
