"""The native library is loaded once, says why it cannot be, and measures the processor."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from pallas_kernels.cpu import library
from pallas_kernels.cpu.build import BuildError


def test_without_the_library_a_call_says_why(monkeypatch):
    monkeypatch.setattr(library, "load_library", lambda: BuildError("no compiler"))
    with pytest.raises(BuildError, match="no compiler"):
        library.call("sparsemlp_nothing", [(2,)], [jnp.ones(2)], {})


def test_a_library_that_cannot_be_built_or_loaded_is_the_reason(monkeypatch, tmp_path):
    def fail(source: Path) -> Path:
        assert source == library.SOURCE
        raise BuildError("no compiler")

    monkeypatch.setattr(library, "build_library", fail)
    failed = library.load_library.__wrapped__()
    assert isinstance(failed, BuildError)
    assert str(failed) == "no compiler"
    broken = tmp_path / "kernels.so"
    broken.write_text("no library")
    monkeypatch.setattr(library, "build_library", lambda source: broken)
    failed = library.load_library.__wrapped__()
    assert isinstance(failed, BuildError)
    assert "the built kernels do not load" in str(failed)
    assert f"remove {broken} if it is damaged" in str(failed)


def test_the_peak_is_a_rate_that_processors_have():
    assert 1e8 < library.peak_flops() < 1e15


def test_a_kernel_that_is_not_there_is_refused_by_name():
    with pytest.raises(Exception, match="sparsemlp_nothing"):
        library.call("sparsemlp_nothing", [(2,)], [jnp.ones(2)], {})[0].block_until_ready()
