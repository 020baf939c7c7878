"""One folder of a checkpoint is read as it was written, or is damaged; its name is free."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.checkpoints.manifest import named_leaves
from sparsemlp.checkpoints.orbax_folder import DamageError, OrbaxFolders, manifest_of
from sparsemlp.errors import InputError

STATE = {"params": {"kernel": jnp.arange(6.0).reshape(2, 3)}, "empty": jnp.zeros((0, 4))}


@pytest.fixture
def folders() -> Iterator[OrbaxFolders]:
    opened = OrbaxFolders()
    yield opened
    opened.close()


def write(folders: OrbaxFolders, folder: Path, score: float | None = 0.5) -> None:
    arrays: dict[str, Any] = {name: np.asarray(a) for name, a in named_leaves(STATE).items()}
    folders.write(folder, arrays, manifest_of(7, arrays, score, {"data": "abc"}))


def test_what_was_written_is_read_whatever_its_name(folders: OrbaxFolders, tmp_path: Path):
    write(folders, tmp_path / "a name")
    state, manifest = folders.read(tmp_path / "a name", STATE)
    assert jax.tree.structure(state) == jax.tree.structure(STATE)
    for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(STATE), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert (manifest["step"], manifest["score"]) == (7, 0.5)
    assert manifest["metadata"] == {"data": "abc"}
    assert manifest == folders.manifest(tmp_path / "a name")


@pytest.mark.parametrize("score", [None, math.nan])
def test_no_number_is_no_score(folders: OrbaxFolders, tmp_path: Path, score: float | None):
    write(folders, tmp_path / "1", score)
    assert folders.manifest(tmp_path / "1")["score"] is None


def test_a_folder_that_is_lost_or_changed_is_damaged(folders: OrbaxFolders, tmp_path: Path):
    with pytest.raises(DamageError, match="unreadable manifest"):
        folders.read(tmp_path / "lost", STATE)
    write(folders, tmp_path / "1")
    (file,) = (p for p in (tmp_path / "1" / "manifest").iterdir() if b'"step"' in p.read_bytes())
    file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 8}))
    with pytest.raises(DamageError, match="does not match its digest"):
        folders.read(tmp_path / "1", STATE)


def test_another_structure_is_no_damage(folders: OrbaxFolders, tmp_path: Path):
    write(folders, tmp_path / "1")
    with pytest.raises(InputError, match="leaf params/bias is absent in the checkpoint"):
        folders.read(tmp_path / "1", STATE | {"params": {"bias": jnp.zeros(3)}})


def test_metadata_that_json_cannot_hold_is_a_mistake_of_the_caller():
    with pytest.raises(TypeError, match="not JSON serializable"):
        manifest_of(0, {}, None, {"data": object()})
