"""A run that is trained once for a module, which takes `finished = finished_run.finished`."""

from pathlib import Path

import pytest
import tiny

EVERY_STEP = {"checkpoint_every": 0.0}


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one dense and two masked epochs, never interrupted."""
    out = tmp_path_factory.mktemp("run") / "made" / "here"
    assert tiny.start(data, out, "--tensorboard", **EVERY_STEP) == 0
    return out
