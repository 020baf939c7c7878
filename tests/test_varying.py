"""Operands of a custom rule vary over the same mesh axes under `shard_map`; draws have parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import GradientPruning, ResMLP, sparse_linear
from sparsemlp.errors import InputError
from sparsemlp.varying import computing_part, draw_part, varying_alike

MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
SPLIT, WHOLE = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()


def test_outside_a_mesh_operands_are_returned_as_they_are():
    x, kernel = jnp.ones(2), jnp.ones(3)
    found = varying_alike((x, None, {"kernel": kernel}))
    assert found[0] is x
    assert found[1] is None
    assert found[2]["kernel"] is kernel


def test_what_is_replicated_varies_as_what_is_sharded():
    seen = []

    def body(x, kernel):
        first, second = varying_alike((x, kernel))
        seen.extend(jax.typeof(a).manual_axis_type.varying for a in (first, second))
        return first * second

    mapped = jax.shard_map(body, mesh=MESH, in_specs=(SPLIT, WHOLE), out_specs=SPLIT)
    np.testing.assert_array_equal(mapped(jnp.ones(2), jnp.full(2, 3.0)), [3, 3])
    assert set(seen) == {frozenset({"data"})}


def test_a_key_may_vary_where_nothing_else_does():
    rule, kernel, x = GradientPruning(2, 4, "random"), jnp.ones((8, 16)), jnp.ones((4, 8))
    keys = jax.random.split(jax.random.key(0), 1)

    def loss(x, keys):
        y = sparse_linear(x, kernel, gradient=rule, rng=keys[0])
        return jax.lax.pmean(jnp.sum(y), "data")

    mapped = jax.shard_map(jax.grad(loss), mesh=MESH, in_specs=(WHOLE, SPLIT), out_specs=WHOLE)
    # Half of 16 ones reach each number of dX.
    np.testing.assert_array_equal(mapped(x, keys), jnp.full((4, 8), 8.0))


def draw(shape: tuple[int, ...]) -> jax.Array:
    return jax.random.uniform(jax.random.key(1), shape)


def part(first: int, size: int, like: jax.Array) -> jax.Array:
    with computing_part(jnp.int32(first), 7):
        return draw_part(draw, (size, 2), like)


def test_a_part_draws_what_the_whole_does_for_its_samples():
    whole = np.asarray(draw((7, 2)))
    np.testing.assert_array_equal(draw_part(draw, (7, 2), jnp.ones(7)), whole)
    for first in (0, 3, 6):
        found = part(first, 3, jnp.ones(3))
        np.testing.assert_array_equal(found[: 7 - first], whole[first : first + 3])
    np.testing.assert_array_equal(draw_part(draw, (7, 2), jnp.ones(7)), whole)


def test_a_part_on_a_device_of_a_mesh_is_of_its_samples():
    mapped = jax.shard_map(
        lambda like: part(3, 3, like), mesh=MESH, in_specs=SPLIT, out_specs=SPLIT
    )
    np.testing.assert_array_equal(mapped(jnp.ones(3)), draw((7, 2))[3:6])


def test_what_is_whole_on_every_device_has_one_draw():
    """As a last batch that the devices do not divide; what varies here would be no whole result."""
    for checks, outside in ((True, WHOLE), (False, SPLIT)):
        mapped = jax.shard_map(
            lambda like: draw_part(draw, (7, 2), like),
            mesh=MESH,
            in_specs=WHOLE,
            out_specs=outside,
            check_vma=checks,
        )
        np.testing.assert_array_equal(mapped(jnp.ones(7)), draw((7, 2)))


def test_explicit_axes_are_refused_with_the_way_out():
    types = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((1,), ("data",), axis_types=types, devices=jax.devices()[:1])
    sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    x, kernel = jax.device_put(jnp.ones((2, 4)), sharded), jnp.ones((4, 4))
    with pytest.raises(InputError, match=r"explicit axes \('data',\).*AxisType\.Auto"):
        sparse_linear(x, kernel)
    with pytest.raises(InputError, match="explicit axes"):
        jax.jit(sparse_linear)(x, kernel)
    model, images = ResMLP(image_size=4, dim=4, depth=1), jnp.ones((2, 4, 4, 3))
    params = model.init(jax.random.key(0), images)
    with pytest.raises(InputError, match="explicit axes"):
        model.apply(params, jax.device_put(images, sharded))
