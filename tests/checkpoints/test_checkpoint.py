"""Checkpoints give back the bits that were saved, or say that they cannot."""

import errno
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoint_states import abstract, assert_same_bits, names, state_of

from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.errors import InputError, SaveError
from sparsemlp.files import Record


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with intact checkpoints of the steps 1 and 2."""
    with Checkpoints(tmp_path / "two") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state_of(step), {"step": step})
    return tmp_path / "two"


@pytest.mark.parametrize("like", [state_of, lambda step: abstract(state_of(step))])
def test_restores_the_exact_state(tmp_path: Path, like: Callable[[int], Any]) -> None:
    metadata: Record = {"loss": 0.1 + 0.2, "deep": {"2": [None, True, "x"], "10": -0.0}}
    with Checkpoints(tmp_path / "made" / "here") as checkpoints:
        checkpoints.save(7, state_of(7), metadata, score=0.5)
        assert checkpoints.steps() == [7]
    with Checkpoints(tmp_path / "made" / "here") as checkpoints:
        restored = checkpoints.restore(like(0))
    assert (restored.step, restored.metadata) == (7, metadata)
    assert_same_bits(restored.state, state_of(7))
    assert all(leaf.committed for leaf in jax.tree.leaves(restored.state))
    assert {d for leaf in jax.tree.leaves(restored.state) for d in leaf.devices()} == (
        jnp.zeros(()).devices()
    )


def test_orbax_alone_reads_the_state(two: Path) -> None:
    with warnings.catch_warnings(action="ignore"), ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(two / "2" / "state")
    expected = state_of(2)["params"]["layer.0"]["kernel"]
    assert np.asarray(state["params/layer.0/kernel"]).tobytes() == np.asarray(expected).tobytes()


def test_keeps_the_last_two_and_the_best(tmp_path: Path) -> None:
    scores = [0.1, None, 0.7, 0.3, float("nan"), 0.7, 0.2, None, float("inf"), 0.9, 0.1, 0.2]
    state = {"x": jnp.ones(3)}
    best, best_score = 0, float("-inf")
    with Checkpoints(tmp_path) as checkpoints:
        for step, score in enumerate(scores, start=1):
            checkpoints.save(step, state, {}, score)
            if score is not None and score >= best_score:
                best, best_score = step, score
            expected = {best, step - 1, step} - {0}
            assert checkpoints.steps() == sorted(expected)
            assert names(tmp_path) == {str(s) for s in expected}


def test_a_step_saved_again_replaces_itself_and_later_ones_go(two: Path) -> None:
    with Checkpoints(two) as checkpoints:
        checkpoints.save(2, state_of(12), {"again": True})
        restored = checkpoints.restore(state_of(0))
        assert (restored.step, restored.metadata) == (2, {"again": True})
        assert_same_bits(restored.state, state_of(12))
        assert names(two) == {"1", "2"}
        checkpoints.save(1, state_of(11), {})
        assert names(two) == {"1"}


def test_an_old_checkpoint_that_the_disk_does_not_remove_is_told(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if str(target).endswith(".retired"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    with Checkpoints(two) as checkpoints:
        monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(SaveError, match="cannot remove the checkpoints of steps 1 in"):
            checkpoints.save(3, state_of(3), {})
        assert checkpoints.restore(state_of(0)).step == 3


def test_later_checkpoints_are_forgotten_and_others_are_not(two: Path) -> None:
    with Checkpoints(two) as checkpoints:
        checkpoints.forget_after(2)
        assert names(two) == {"1", "2"}
        checkpoints.forget_after(1)
        assert names(two) == {"1"}
        assert checkpoints.restore(state_of(0)).step == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rng": jnp.zeros((3,), jnp.uint32)}, r"leaf rng is uint32\[2\] .* and uint32\[3\] "),
        ({"rng": jnp.zeros((2,), jnp.int32)}, r"leaf rng is uint32\[2\] .* and int32\[2\] "),
        ({"list": []}, r"leaf list/0 is uint32\[53\] .* and absent "),
        ({"none": jnp.zeros(())}, r"leaf none is absent .* and float32\[\] "),
        ({"empty": jnp.zeros((4, 0))}, r"leaf empty is float32\[0, 4\] .* and float32\[4, 0\] "),
    ],
)
def test_another_structure_is_an_input_error(
    two: Path, change: dict[str, Any], message: str
) -> None:
    with Checkpoints(two) as checkpoints, pytest.raises(InputError, match=message):
        checkpoints.restore(state_of(0) | change)


def test_two_leaves_of_one_name_are_an_input_error(tmp_path: Path) -> None:
    state = {"a/b": jnp.zeros(1), "a": {"b": jnp.ones(1)}}
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(InputError, match="called a/b"):
        checkpoints.save(1, state, {})


def _restore_damaged(directory: Path, newest: int = 2) -> int:
    """Returns the step restored; its bits must be right, and a skip must be told in one line."""
    with Checkpoints(directory) as checkpoints, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        restored = checkpoints.restore(state_of(0))
    assert_same_bits(restored.state, state_of(restored.step))
    assert restored.metadata == {"step": restored.step}
    told = [str(warning.message) for warning in caught]
    assert len(told) == (restored.step != newest)
    assert all(f"damaged checkpoint {directory / str(newest)} skipped: " in t for t in told)
    assert not any("\n" in t for t in told)
    return restored.step


@pytest.mark.thorough
def test_no_damage_to_any_file_changes_what_is_restored(two: Path) -> None:
    """Files that only describe may be harmless to damage; those that hold arrays never are."""
    outcomes: dict[str, list[int]] = {}
    for file in sorted(file for file in (two / "2").rglob("*") if file.is_file()):
        content = file.read_bytes()
        middle = len(content) // 2
        flipped = bytes([*content[:middle], content[middle] ^ 1, *content[middle + 1 :]])
        for damaged in (flipped, content[:middle], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            outcomes.setdefault(file.name, []).append(_restore_damaged(two))
            file.write_bytes(content)
    assert outcomes["metadata"] == [1, 1, 1]
    assert sum(steps.count(1) for steps in outcomes.values()) >= 12
    assert _restore_damaged(two) == 2


def test_flipped_bytes_of_arrays_are_seen(two: Path) -> None:
    """Nearly all of the largest file are the arrays' bytes, which orbax reads without a check."""
    file = max((two / "2" / "state").rglob("*"), key=lambda f: f.is_file() and f.stat().st_size)
    content = file.read_bytes()
    steps = []
    for at in range(100, len(content), len(content) // 12):
        file.write_bytes(bytes([*content[:at], content[at] ^ 16, *content[at + 1 :]]))
        steps.append(_restore_damaged(two))
    assert steps.count(1) >= len(steps) - 2


def test_changed_metadata_is_seen(two: Path) -> None:
    file = two / "2" / "manifest" / "metadata"
    manifest = json.loads(file.read_text())
    manifest["metadata"]["step"] = 3
    file.write_text(json.dumps(manifest))
    assert _restore_damaged(two) == 1


def test_a_half_written_checkpoint_is_passed_over(two: Path) -> None:
    (two / "3").mkdir()
    shutil.copytree(two / "2", two / ".saving" / "4.orbax-checkpoint-tmp")
    with Checkpoints(two) as checkpoints:
        with pytest.warns(UserWarning, match=r"two/3 skipped: unreadable manifest"):
            assert checkpoints.restore(state_of(0)).step == 2
        checkpoints.save(4, state_of(4), {"step": 4})
    assert names(two) == {"2", "4"}
    assert _restore_damaged(two, newest=4) == 4


def test_no_intact_checkpoint_is_an_input_error(two: Path, tmp_path: Path) -> None:
    for manifest in two.glob("*/manifest"):
        shutil.rmtree(manifest)
    with (
        Checkpoints(two) as checkpoints,
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(InputError, match=r"no intact checkpoint in .*two \(2 damaged\)"),
    ):
        checkpoints.restore(state_of(0))
    with (
        Checkpoints(tmp_path / "absent") as checkpoints,
        pytest.raises(InputError, match=r"no intact checkpoint in .*absent \(0 damaged\)"),
    ):
        checkpoints.restore(state_of(0))
    assert not (tmp_path / "absent").exists()
