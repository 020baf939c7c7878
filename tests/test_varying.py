"""Operands of a custom rule vary over the same axes of a mesh under `shard_map`."""

import jax
import jax.numpy as jnp
import numpy as np

from sparsemlp.varying import varying_alike

MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
SPLIT, WHOLE = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()


def test_outside_a_mesh_operands_are_returned_as_they_are():
    x, kernel = jnp.ones(2), jnp.ones(3)
    found = varying_alike(x, None, kernel)
    assert found[0] is x
    assert found[1] is None
    assert found[2] is kernel


def test_what_is_replicated_varies_as_what_is_sharded():
    seen = []

    def body(x, kernel):
        first, second = varying_alike(x, kernel)
        assert first is not None
        assert second is not None
        seen.extend(jax.typeof(a).manual_axis_type.varying for a in (first, second))
        return first * second

    mapped = jax.shard_map(body, mesh=MESH, in_specs=(SPLIT, WHOLE), out_specs=SPLIT)
    np.testing.assert_array_equal(mapped(jnp.ones(2), jnp.full(2, 3.0)), [3, 3])
    assert set(seen) == {frozenset({"data"})}
