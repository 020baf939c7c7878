"""What a checkpoint says of its arrays tells any two of them apart."""

from pathlib import Path

import jax
import numpy as np
import pytest

from sparsemlp.checkpoints.manifest import (
    describe,
    digest_of_array,
    digest_of_record,
    named_leaves,
    require_same_leaves,
)
from sparsemlp.errors import InputError


def test_a_digest_depends_on_bytes_shape_and_dtype_alone():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    flipped = array.copy()
    flipped.view(np.uint8)[1, 5] ^= 1
    others = [flipped, array.reshape(3, 2), array.view(np.int32)]
    assert digest_of_array(np.asfortranarray(array)) == digest_of_array(array)
    assert len({digest_of_array(other) for other in [array, *others]}) == 4


def test_a_digest_of_a_record_does_not_depend_on_the_order_of_its_keys():
    assert digest_of_record({"a": 1, "b": 2}) == digest_of_record({"b": 2, "a": 1})
    assert digest_of_record({"a": 1, "b": 2}) != digest_of_record({"a": 1, "b": 3})


def test_leaves_are_named_by_their_path_and_a_clash_is_an_error():
    tree = {"params": {"kernel": np.ones(2)}, "step": np.int32(3)}
    assert list(named_leaves(tree)) == ["params/kernel", "step"]
    with pytest.raises(InputError, match="two leaves of the state are called a/b"):
        named_leaves({"a": {"b": np.ones(1)}, "a/b": np.ones(1)})


def test_leaves_that_differ_are_named_with_both_sides():
    saved = {"kernel": describe(np.ones((2, 3), np.float32))}
    require_same_leaves(Path("7"), saved, {"kernel": jax.ShapeDtypeStruct((2, 3), np.float32)})
    for wanted, there in (
        ({"kernel": np.ones((3, 2), np.float32)}, r"float32\[2, 3\] .* float32\[3, 2\]"),
        ({}, r"float32\[2, 3\] .* absent"),
        ({"kernel": np.ones((2, 3), np.float32), "bias": np.ones(3)}, "bias is absent"),
    ):
        with pytest.raises(InputError, match=there):
            require_same_leaves(Path("7"), saved, wanted)
