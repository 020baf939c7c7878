"""Every GPU kernel is accepted by the compiler's front, which a JAX without a GPU has too."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from case_lists import FEW, FEW_OF_AMPERE, FEW_OF_MOSAIC
from cases import Case
from jax.sharding import AbstractDevice, AbstractMesh
from machine_code import mosaic_target
from pair_cases import mlp_case

from pallas_kernels import Mosaic, SparseLayer, tuning
from pallas_kernels.mosaic import gradient_cost, launch
from pallas_kernels.mosaic.gradient_tiles import DENSE
from pallas_kernels.mosaic.hidden_tiles import HiddenTiles
from pallas_kernels.mosaic.mlp_tiles import MlpTiles

_HIDDEN = [HiddenTiles(2, 1, cluster, pieces=2, blocks=1, lines=2, stages=4) for cluster in (1, 2)]


def lowered(case: Case, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program of a case for the GPU that its kernel is for."""
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    if case.engine == "mosaic-ampere":
        device = AbstractDevice(device_kind="NVIDIA A30", num_cores=56, platform="gpu")
        monkeypatch.setattr(mosaic_target(), "_infer_arch", lambda: (8, 0))
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(case.traced()).trace(*case.operands)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("case", FEW + FEW_OF_MOSAIC + FEW_OF_AMPERE, ids=str)
def test_a_product_lowers_to_one_kernel_for_a_gpu(case: Case, monkeypatch):
    """And one more for the sums of a gradient's shares of the rows, where there are several."""
    text = lowered(case, monkeypatch)
    call = "@__gpu$xla.gpu.triton" if case.engine == "triton" else "@mosaic_gpu_v2"
    has_sums = "sparsemlp_sum_shares" in text
    assert text.count(call) == 1 + has_sums
    assert case.kernel in text
    assert not has_sums or case.kernel == "sparsemlp_gradient"


@pytest.mark.parametrize(
    "case",
    [c for c in FEW + FEW_OF_MOSAIC + FEW_OF_AMPERE if c.dtype == jnp.bfloat16 and c.axis == -1],
    ids=str,
)
def test_it_does_where_numbers_of_python_have_64_bits(case: Case, monkeypatch):
    with jax.enable_x64(True):
        assert case.kernel in lowered(case, monkeypatch)


@pytest.mark.parametrize("engine", [Mosaic(), Mosaic(capability="8.0")], ids=["hopper", "ampere"])
def test_rows_are_not_limited_by_the_axes_of_a_grid(engine, monkeypatch):
    """Of the axes `y` and `z` a GPU has 65535 programs at most, of `x` 2^31 - 1."""
    grids = []

    def launched(*_: Any, grid: tuple[int, ...], out: Any, **__: Any) -> Any:
        grids.append(grid)
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), out)

    monkeypatch.setattr(launch, "launch", launched)
    n_rows = 65536 * 512
    layer = SparseLayer((64, 64), (32, 32), 2, -1, "bfloat16")
    x, kernel = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((n_rows, 64), (64, 64)))
    kept = jax.ShapeDtypeStruct((2,), jnp.int32)
    y = jax.eval_shape(lambda *a: engine.product(a[0], a[1], None, a[2], layer), x, kernel, kept)
    assert y.shape == (n_rows, 64)
    # On Hopper a program has many tiles, on Ampere one.
    ((n_programs,),) = grids
    assert n_programs == (
        launch.multiprocessors() if engine.capability is None else n_rows // 512 * 4
    )


RAGGED = [
    (1, (32, 32)),
    (37, (64, 64)),
    (42, (16, 128)),
    (300, (16, 16)),
    (300, (128, 128)),
    (1000, (32, 32)),
    (1960, (64, 16)),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("n_rows", "block"), RAGGED)
def test_any_number_of_rows_lowers_on_hopper(n_rows, block, dtype):
    """Copies cut arrays into tiles, which the interpreter does not ask to be whole ones."""
    engine, (n_in, n_out) = Mosaic(), (256, 512)
    n_kept = n_in * n_out // (block[0] * block[1]) // 4
    layer = SparseLayer((n_in, n_out), block, n_kept, -1, dtype)
    x, dy, kernel = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape in ((n_rows, n_in), (n_rows, n_out), (n_in, n_out))
    )
    kept = jax.ShapeDtypeStruct((n_kept,), jnp.int32)

    def products(x, dy, kernel, kept):
        return (
            engine.product(x, kernel, None, kept, layer),
            engine.input_gradient(dy, kernel, kept, layer),
            engine.kernel_gradient(x, dy, kept, layer),
        )

    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    cut = next(cut for cut in gradient_cost.by_cost(layer, n_rows) if cut != DENSE)
    with (
        tuning.forced(cut),
        jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)),
    ):
        traced = jax.jit(products).trace(x, dy, kernel, kept)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for name in ("product", "transposed", "gradient"):
        assert f"sparsemlp_{name}" in text
    assert [out.shape for out in traced.out_info] == [
        (n_rows, n_out),
        (n_rows, n_in),
        (n_in, n_out),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_rows", [1, 37, 300])
def test_a_fused_pair_of_any_number_of_rows_lowers_on_hopper_as_one_kernel(n_rows, dtype):
    tiles = MlpTiles(2, 1, 2, pieces=1, blocks=8, inputs=2, lines=2, stages=4)
    case = mlp_case("mlp", (32, 32), dtype, 64, "mosaic", tiles)
    x = jax.ShapeDtypeStruct((n_rows, 64), dtype)
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(case.traced()).trace(x, *case.operands[1:])
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@mosaic_gpu_v2") == 1
    assert traced.out_info.shape == (n_rows, 64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_rows", [1, 37, 300])
def test_hidden_units_of_any_number_of_rows_lower_on_hopper_as_one_kernel(n_rows, dtype):
    tiles = HiddenTiles(2, 1, 2, pieces=2, blocks=1, lines=2, stages=4)
    case = mlp_case("hidden", (32, 32), dtype, 64, "mosaic", tiles)
    x = jax.ShapeDtypeStruct((n_rows, 64), dtype)
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(case.traced()).trace(x, x, *case.operands[2:])
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@mosaic_gpu_v2") == 1
    assert [out.shape for out in traced.out_info] == [(n_rows, 256)] * 2


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("name", ["data", "x", "y", "warpgroup", "cluster"])
def test_an_axis_of_a_mesh_is_none_of_a_kernel_whatever_its_name(name):
    """A kernel that reads the axis of a mesh asks for what programs of several devices need."""
    cases = [mlp_case("hidden", (32, 32), "bfloat16", 64, "mosaic", cut) for cut in _HIDDEN]
    cases += [c for c in FEW_OF_MOSAIC if c.dtype == jnp.bfloat16]
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    mesh = AbstractMesh((2,), (name,), abstract_device=device)
    for case in cases:
        spec = jax.sharding.PartitionSpec()
        call = jax.shard_map(
            case.traced(), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        with jax.sharding.use_abstract_mesh(mesh):
            traced = jax.jit(call).trace(*case.operands)
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert "@mosaic_gpu_v2" in text
        assert "uses_xla_collective_metadata = true" not in text, case


def test_layers_that_are_alike_are_lowered_once():
    """A network of 24 blocks would else spend minutes on the same kernels."""
    engine, block = Mosaic(), (32, 32)
    layer = SparseLayer((256, 256), block, 16, -1, "bfloat16")
    x, kernel = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((64, 256), (256, 256)))
    kept = jax.ShapeDtypeStruct((16,), jnp.int32)

    def network(x, kernel, kept):
        for _ in range(3):
            x = engine.product(x, kernel, None, kept, layer)
        return x

    text = jax.jit(network).trace(x, kernel, kept).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@mosaic_gpu_v2") == 1
