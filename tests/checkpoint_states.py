"""States to save, and what is there after it."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class _Moments(NamedTuple):
    mean: dict[str, jax.Array]
    n_steps: jax.Array


def state_of(step: int) -> dict[str, Any]:
    """Returns a state of every dtype and container in use, different at every step."""
    bits = np.random.default_rng(step).integers(0, 2**32, (37, 53), dtype=np.uint32)
    return {
        "params": {"layer.0": {"kernel": jnp.array(bits.view(np.float32))}},
        "moments": (_Moments({"m/n": jnp.full((3, 5), step, jnp.bfloat16)}, jnp.int32(step)), ()),
        "list": [jnp.array(bits[0]), jnp.array(bits[1] % 2 == 0), jnp.array(step % 2 == 0)],
        "none": None,
        "empty": jnp.zeros((0, 4), jnp.float32),
        "rng": jax.random.key_data(jax.random.key(step)),
    }


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.dtype, a.shape, a.weak_type) == (e.dtype, e.shape, False)
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes()


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}
