"""The loops of the GPU benchmark keep the products inside, once compiled for a GPU."""

import jax
import jax.numpy as jnp
import pytest
from device_timing import looped
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from machine_code import TARGETS, missing

from pallas_kernels import SparseLayer, Triton

pytestmark = pytest.mark.aot

LAYER = SparseLayer((384, 1536), (32, 32), 116, -1, "bfloat16")


@pytest.mark.parametrize("architecture", TARGETS)
def test_the_product_is_computed_in_each_repetition(architecture: str):
    reason = missing()
    if reason is not None:
        pytest.fail(reason)
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGETS[architecture], topology="1x1x1"
    )
    mesh = topologies.make_mesh(topology, (1,), ("x",))
    whole = NamedSharding(mesh, PartitionSpec())

    def array(*shape: int, dtype=jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    def product(x, kernel, kept):
        return Triton().product(x, kernel, None, kept, LAYER)

    operands = (array(8192, 384), array(384, 1536), array(116, dtype=jnp.int32))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        loop = jax.jit(looped(product, 10), donate_argnums=1, keep_unused=True)
        text = loop.lower(operands, array(8192, 1536)).compile().as_text()
    assert text is not None
    loops, entry = text.split("\nENTRY ")
    assert 'custom_call_target="__gpu$xla.gpu.triton"' in loops
    assert "custom-call(" not in entry
    assert "bf16[8192,1536]{1,0} copy(" not in text
