"""The loops of the GPU benchmark keep the products inside, once compiled for a GPU."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from gpu.products import dense_phase, engine_phase
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from machine_code import TARGETS, missing
from tuning.compiled_loops import N_COPIES, UNTUNED, looped

from pallas_kernels import Mosaic, Reference, SparseLayer, Triton, tuning
from pallas_kernels.mosaic.gradient_cost import by_cost, gradient_tiles_of
from pallas_kernels.mosaic.gradient_tiles import DENSE

pytestmark = pytest.mark.aot

ROWS = 8192
# XLA, asked for deterministic operations, has to try its products on a device.
_OPTIONS = UNTUNED | {"xla_gpu_deterministic_ops": False}


def compiled(architecture: str, function: Callable[..., Any], *arrays: Any) -> tuple[str, str]:
    """What is in the loop, and what is around it, compiled for a GPU; or the test fails."""
    reason = missing()
    if reason is not None:
        pytest.fail(reason)
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGETS[architecture], topology="1x1x1"
    )
    mesh = topologies.make_mesh(topology, (1,), ("x",))
    whole = NamedSharding(mesh, PartitionSpec())

    def on_device(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=whole)

    operands = tuple(on_device(jax.ShapeDtypeStruct(*array)) for array in arrays)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        results = jax.tree.map(on_device, jax.eval_shape(function, *operands))
        loop = jax.jit(looped(function, 2 * N_COPIES), donate_argnums=1, keep_unused=True)
        text = loop.lower(operands, results).compile(_OPTIONS).as_text()
    assert text is not None
    inside, around = text.split("\nENTRY ")
    return inside, around


@pytest.mark.parametrize("architecture", TARGETS)
def test_the_product_is_computed_in_each_repetition(architecture: str):
    layer = SparseLayer((384, 1536), (32, 32), 116, -1, "bfloat16")

    def product(x, kernel, kept):
        return Triton().product(x, kernel, None, kept, layer)

    arrays = ((ROWS, 384), jnp.bfloat16), ((384, 1536), jnp.bfloat16), ((116,), jnp.int32)
    inside, around = compiled(architecture, product, *arrays)
    assert inside.count('custom_call_target="__gpu$xla.gpu.triton"') == N_COPIES
    assert "custom-call(" not in around
    assert " copy(" not in inside
    assert "bf16[8192,1536]{1,0} copy(" not in around


@pytest.mark.parametrize(
    ("phase", "n_products"), [("forward", 1), ("kernel_gradient", 1), ("forward_backward", 3)]
)
@pytest.mark.parametrize("name", ["dense", "reference", "mosaic"])
def test_no_product_is_left_out_or_joined_with_another(name: str, phase: Any, n_products: int):
    layer = SparseLayer((384, 1536), (64, 64), 24, -1, "bfloat16")
    engine = Mosaic(capability="9.0") if name == "mosaic" else Reference()
    function = dense_phase(phase) if name == "dense" else engine_phase(engine, layer, phase)
    x, w, b, dy = ((ROWS, 384), (384, 1536), (1536,), (ROWS, 1536))
    shapes = {
        "forward": (x, w, b),
        "kernel_gradient": (x, dy),
        "forward_backward": (dy, x, w, b),
    }[phase]
    arrays = [(shape, jnp.bfloat16) for shape in shapes]
    inside, around = compiled("sm_90a", function, *arrays, ((24,), jnp.int32))
    own = "mosaic_gpu_v2" if name == "mosaic" else r"calls=%\S*gemm|__cublas"
    pattern = rf"(?:fusion|custom-call)\(.*(?:{own})"
    # A balanced gradient is two kernels: the parts of its blocks, and their sums.
    has_sums = name == "mosaic" and phase != "forward"
    assert not has_sums or gradient_tiles_of(layer, ROWS).balanced
    assert len(re.findall(pattern, inside)) == (n_products + has_sums) * N_COPIES
    assert not re.findall(pattern, around)
    assert " copy(" not in inside


@pytest.mark.parametrize(
    ("side", "dtype", "kernel"),
    [
        (32, "bfloat16", "kernel_gradient"),
        (64, "float32", "kernel_gradient"),
        (64, "float32", "product"),
    ],
)
def test_operands_are_turned_in_each_repetition(side: int, dtype: str, kernel: str):
    layer = SparseLayer((384, 1536), (side, side), 24, -1, dtype)
    engine, own = Mosaic(capability="9.0"), jnp.dtype(dtype)

    def gradient(x, dy, kept):
        # Without a table the gradient may be left to XLA, which turns nothing for it.
        with tuning.forced(next(cut for cut in by_cost(layer, ROWS) if cut != DENSE)):
            return engine.kernel_gradient(x, dy, kept, layer)

    def product(x, weights, kept):
        return engine.product(x, weights, None, kept, layer)

    is_product = kernel == "product"
    second = (384 if is_product else ROWS, 1536)
    inside, around = compiled(
        "sm_90a",
        product if is_product else gradient,
        ((ROWS, 384), own),
        (second, own),
        ((24,), jnp.int32),
    )
    assert " transpose(" in inside
    assert not re.findall(r"= \S+ fusion\(.*transpose", around)
    assert "transpose(" not in around
