"""Masks in Flax's state dicts and in programs of `jax.export`."""

import subprocess
import sys
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

from sparsemlp import BlockMask, GridMask, select_blocks, sparse_linear
from sparsemlp.mask_trees import list_masks

KERNEL = jax.random.normal(jax.random.key(0), (8, 8))
MASK = select_blocks(KERNEL, (4, 2), 0.5)
GRIDS = [
    GridMask(MASK.grid(), MASK.kernel_shape, MASK.block),
    GridMask(MASK.grid(), MASK.kernel_shape, MASK.block, jnp.bool_(True), jnp.bool_(False)),
]
LISTED = list_masks({"a": MASK}, "triton")["a"]
EVERY_MASK = pytest.mark.parametrize(
    "mask", [MASK, LISTED, *GRIDS], ids=["blocks", "with lists", "grid", "grid with flags"]
)


@EVERY_MASK
def test_a_mask_comes_back_from_its_bytes(mask):
    other = jax.tree.map(lambda a: jnp.full_like(a, 1), mask)
    found = flax.serialization.from_bytes({"m": other}, flax.serialization.to_bytes({"m": mask}))
    restored = found["m"]
    assert getattr(restored, "lists", None) is None
    assert type(restored) is type(mask)
    assert (restored.kernel_shape, restored.block) == (mask.kernel_shape, mask.block)
    np.testing.assert_array_equal(restored.grid(), mask.grid())
    assert restored.says_backward == mask.says_backward
    for one, another in zip(restored.by_product, mask.by_product, strict=True):
        if isinstance(mask, GridMask):
            np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (select_blocks(KERNEL, (4, 2), 0.8), "kept of shape"),
        (select_blocks(KERNEL, (2, 4), 0.5), r"block is \(2, 4\) cannot .* block is \(4, 2\)"),
        (select_blocks(KERNEL.reshape(16, 4), (4, 2), 0.5), r"kernel_shape is \(16, 4\)"),
        (GRIDS[1], "cannot be restored from kept"),
    ],
    ids=["ratio", "block", "kernel", "flags"],
)
def test_what_does_not_fit_the_target_is_refused(target, message):
    state = flax.serialization.to_state_dict(MASK)
    with pytest.raises(ValueError, match=message):
        flax.serialization.from_state_dict(target, state)


def test_a_checkpoint_of_orbax_with_a_state_dict_says_the_blocks(tmp_path):
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "masks", flax.serialization.to_state_dict({"a": LISTED}))
        checkpointer.wait_until_finished()
        state = checkpointer.restore(tmp_path / "masks")
    found = flax.serialization.from_state_dict(
        {"a": select_blocks(-KERNEL[::-1], (4, 2), 0.5)}, state
    )
    np.testing.assert_array_equal(found["a"].grid(), MASK.grid())
    with pytest.raises(ValueError, match="block is"):
        flax.serialization.from_state_dict({"a": select_blocks(KERNEL, (2, 4), 0.5)}, state)


def test_nothing_is_restored_from_nothing():
    nothing: Any = None
    with pytest.raises(ValueError, match="restored from nothing"):
        flax.serialization.from_state_dict(MASK, nothing)


def test_the_modules_can_be_imported_again():
    program = "import importlib, sparsemlp.masks as m, sparsemlp.serialization as s\n"
    program += "importlib.reload(s), importlib.reload(m)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@EVERY_MASK
def test_an_exported_program_takes_a_mask(mask):
    x = jnp.ones((3, 8))

    def program(mask: BlockMask | GridMask, x: jax.Array) -> jax.Array:
        return sparse_linear(x, KERNEL, mask=mask, engine="reference")

    written = jax.export.export(jax.jit(program))(mask, x).serialize()
    found = jax.export.deserialize(written).call(mask, x)
    np.testing.assert_allclose(found, program(mask, x), rtol=1e-6)


@pytest.mark.parametrize("mask", [None, MASK], ids=["dense", "masked"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_an_exported_program_takes_any_number_of_samples(unchecked, axis, mask):
    """A number that is not known yet is no int."""
    program = jax.jit(lambda x: sparse_linear(x, KERNEL, axis=axis, mask=mask, engine="reference"))
    (n,) = jax.export.symbolic_shape("n")
    written = jax.export.export(program)(jax.ShapeDtypeStruct((n, 8, 8), jnp.float32))
    for x in (jnp.ones((1, 8, 8)), jnp.ones((3, 8, 8))):
        np.testing.assert_allclose(written.call(x), program(x), rtol=1e-6)


def test_a_program_is_exported_whose_mask_has_a_block_of_numpy_integers(unchecked):
    rows, cols = np.array([4, 2])
    mask = select_blocks(KERNEL, (rows, cols), 0.5)
    written = jax.export.export(jax.jit(lambda mask: mask.dense()))(mask).serialize()
    own = select_blocks(KERNEL, (4, 2), 0.5)
    np.testing.assert_array_equal(jax.export.deserialize(written).call(own), own.dense())


@pytest.mark.parametrize("masked", [False, True])
def test_a_program_for_any_number_of_images_is_exported(unchecked, masked):
    (batch,) = jax.export.symbolic_shape("batch")
    mask = MASK if masked else None

    def gradients(kernel, x):
        return jax.grad(lambda w: jnp.sum(sparse_linear(x, w, mask=mask, engine="reference")))(
            kernel
        )

    x = jax.random.normal(jax.random.key(1), (3, 8))
    exported = jax.export.export(jax.jit(gradients))(
        KERNEL, jax.ShapeDtypeStruct((batch, 8), jnp.float32)
    )
    np.testing.assert_allclose(exported.call(KERNEL, x), gradients(KERNEL, x), rtol=1e-6)
