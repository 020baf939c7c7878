"""`mask_activity.npz` is read as it was written, and shares have outputs on their rows."""

import numpy as np
import pytest

from sparsemlp.errors import InputError
from sparsemlp.runs.mask_activity import MaskActivity, read_mask_activity

COUNTS = {"block_0/XPatch/kernel": np.array([[0, 4, 3], [2, 1, 4]], np.int32)}


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "mask_activity.npz"
    MaskActivity(COUNTS, 4).write(path, "tiny.npz")
    found = read_mask_activity(path)
    assert found.masked_steps == 4
    assert found.counts.keys() == COUNTS.keys()
    for name, count in COUNTS.items():
        np.testing.assert_array_equal(found.counts[name], count)
    with np.load(path) as file:
        assert str(file["dataset"]) == "tiny.npz"


def test_shares_are_of_masked_steps_with_outputs_on_the_rows():
    (share,) = MaskActivity(COUNTS, 4).shares().values()
    np.testing.assert_array_equal(share, [[0, 0.5], [1, 0.25], [0.75, 1]])
    assert MaskActivity(COUNTS, 0).shares() == {}


@pytest.mark.parametrize("text", [None, b"", b"PK\x03\x04", b"no archive"])
def test_a_lost_or_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "mask_activity.npz"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(InputError, match=r"mask_activity\.npz cannot be read"):
        read_mask_activity(path)


def test_a_file_without_the_number_of_steps_is_damaged(tmp_path):
    path = tmp_path / "mask_activity.npz"
    np.savez(path, **COUNTS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="cannot be read"):
        read_mask_activity(path)
