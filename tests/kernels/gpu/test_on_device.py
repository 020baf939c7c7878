"""Every engine for GPUs computes on a real one what `reference` computes: `pytest -m gpu`.

The cases of the conformance test, and products with many tiles at the precision that training uses.
Run this before anything is timed on a device.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import conformance
import jax
import jax.numpy as jnp
import pytest
from gpu.check import check_engines
from gpu.points import Point
from tuning.kernel_check import compare, compiled, expected
from tuning.kernel_problems import PRODUCTS, gpu_engines, work_of
from tuning.watch import STUCK, WorkLostError, require_device

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.mosaic import stream_tiles
from pallas_kernels.tuning import forced
from sparsemlp import select_blocks

pytestmark = pytest.mark.gpu

EVERY_ENGINE = pytest.mark.parametrize("engine", gpu_engines())
POINTS = [
    Point((512, 1024), (side, side), ratio, n_rows, dtype)
    for side in (16, 32, 64, 128)
    for ratio, n_rows in ((0.8, 1000), (0.5, 4096))
    for dtype in ("bfloat16", "float32")
]


@pytest.fixture(autouse=True)
def on_a_gpu() -> Iterator[None]:
    if jax.default_backend() != "gpu":
        pytest.fail(f"JAX runs on {jax.default_backend()!r}: pip install -e '.[cuda13]'")
    yield
    try:
        require_device("this test", RuntimeError())
    except WorkLostError:
        if "PYTEST_XDIST_WORKER" in os.environ:
            # A fault stays in its process, where every later test would fail of it.
            os._exit(STUCK)
        raise


@EVERY_ENGINE
@pytest.mark.parametrize("case", conformance.COVERING, ids=str)
def test_an_engine_computes_on_the_device_what_the_reference_computes(engine, case):
    mask = conformance.operands_of(case).mask
    conformance.skip_unless_able(engine, mask, case.axis, case.dtype)
    conformance.check(engine, case)


@EVERY_ENGINE
@conformance.AXES
@conformance.DTYPES
@pytest.mark.parametrize("pattern", conformance.PATTERNS)
def test_empty_and_full_rows_and_columns_on_the_device(engine, axis, dtype, pattern):
    conformance.check_pattern(engine, axis, dtype, pattern)


@EVERY_ENGINE
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_many_tiles_at_the_precision_of_training(engine, point):
    with jax.default_matmul_precision("default"):
        records = list(check_engines({engine: ENGINES[engine]}, [point]))
    if not records:
        pytest.skip("the engine does not take this block")
    assert [record["wrong"] for record in records] == [""] * len(records)


def check_cuts(
    kernel: str,
    shape: tuple[int, int],
    is_chosen: Callable[[Any], bool],
    size: Callable[[Any], int],
    name: str = "mosaic",
    block: tuple[int, int] = (32, 32),
    n_rows: int = 1000,
    dtype: str = "bfloat16",
) -> None:
    """The smallest and the largest of the chosen cuts of an engine compute what they should.

    And the same bits a second time. A GPU for which `mosaic` has no choice is skipped.
    """
    engine, point = ENGINES[name], Point(shape, block, 0.8, n_rows, dtype)
    work = work_of(kernel, point.layer, point.n_rows)
    problem = point.layer.problem(engine.name, engine.version, kernel, point.n_rows)
    space = engine.configurations(problem)
    if not space:
        pytest.skip("engine mosaic has such kernels for Hopper alone")
    cuts = [cut for cut in space if is_chosen(cut)]
    for cut in {min(cuts, key=size), max(cuts, key=size)}:
        with forced(cut):
            program = compiled(work.sparse(engine), work.operands)
        assert compare(program, work, expected(work), dtype) == "", cut
        first, again = (jax.tree.leaves(program(*work.operands)) for _ in range(2))
        for one, other in zip(first, again, strict=True):
            assert one.tobytes() == other.tobytes(), cut


@pytest.mark.parametrize("kernel", ["product", "input_gradient"])
@pytest.mark.parametrize("way", stream_tiles.WARPGROUPS, ids="{0[0]}-{0[1]}-{0[2]}".format)
def test_teams_of_warpgroups_multiply_tiles_of_rows(kernel, way):
    """Each way by itself: which of them fails tells what the device does not do as expected."""
    check_cuts(
        kernel,
        (512, 1024),
        lambda cut: (cut.n_compute, cut.teams, cut.tall) == way,
        lambda cut: cut.stages,
    )


@pytest.mark.parametrize("by_rows", [False, True], ids=["by columns", "by rows"])
@pytest.mark.parametrize("n_together", [2, 4, 8])
def test_gradients_of_blocks_that_are_computed_together(n_together, by_rows):
    check_cuts(
        "kernel_gradient",
        (512, 1024),
        lambda cut: (cut.n_together, cut.by_rows) == (n_together, by_rows),
        lambda cut: cut.stages,
    )


_TALL = [
    # Fewer groups than programs, more of them, and so few rows that none is shared.
    *(((512, 1024), (side, side), 1000, "bfloat16") for side in (64, 128)),
    *(((1024, 4096), block, 1000, "bfloat16") for block in ((64, 64), (64, 128), (16, 64))),
    ((512, 1024), (64, 64), 40, "bfloat16"),
]
_BY_COLUMNS = [
    ((512, 1024), (32, 32), 1000, "bfloat16"),
    *(((1024, 4096), (side, side), 1000, "bfloat16") for side in (16, 32)),
    ((1024, 4096), (64, 64), 1000, "float32"),
]


@pytest.mark.parametrize(
    ("shape", "block", "n_rows", "dtype", "by_rows"),
    [(*c, False) for c in _TALL + _BY_COLUMNS] + [(*c, True) for c in _TALL],
    ids=str,
)
def test_gradients_by_programs_of_as_many_steps(shape, block, n_rows, dtype, by_rows):
    """By columns and by rows; small blocks and float32 go by columns alone."""
    with jax.default_matmul_precision("default"):
        check_cuts(
            "kernel_gradient",
            shape,
            lambda cut: cut.balanced and cut.by_rows == by_rows,
            lambda cut: cut.n_together,
            block=block,
            n_rows=n_rows,
            dtype=dtype,
        )


@pytest.mark.parametrize(
    "way", [(0, 0), *itertools.product((1, 2, 4), (1, 2, 4))], ids=lambda way: "{}-{}".format(*way)
)
def test_fused_pairs_abreast_and_in_clusters(way):
    """Each way by itself; 0 is one product after the other."""
    check_cuts(
        "mlp",
        (256, 1024),
        lambda cut: (cut.abreast, cut.cluster) == way,
        lambda cut: cut.pieces,
    )


@pytest.mark.parametrize(
    "way",
    [(0, 0, False), *itertools.product((1, 2, 4), (1, 2, 4), (True, False))],
    ids=lambda way: "{}-{}-{}".format(*way),
)
def test_hidden_units_and_their_gradient_abreast_and_in_clusters(way):
    """Each way by itself, panels whole and in pieces; 0 is one product after the other."""
    check_cuts(
        "mlp_gradients",
        (256, 1024),
        lambda cut: (cut.abreast, cut.cluster, cut.pieces == 1) == way,
        lambda cut: cut.n_compute,
    )


@pytest.mark.parametrize("kernel", ["mlp", "mlp_gradients"])
@pytest.mark.parametrize("is_apart", [False, True], ids=["fused", "apart"])
def test_pairs_of_engine_triton(kernel, is_apart):
    """Few rows and features in a program and many, and one product after the other."""
    check_cuts(
        kernel,
        (256, 1024),
        lambda cut: (cut.rows == 0) == is_apart,
        lambda cut: cut.rows * cut.features,
        "triton",
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [16, 32, 64, 128])
def test_masked_convolutions(side, stride, dtype):
    """Many tiles of rows, and shares of them; twice the same bits."""
    images, size, n_out = (16, 15, 16, 128), (3, 3), 256
    geometry = Geometry((stride, stride), ((1, 1), (1, 1)))
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (images, (*size, 128, n_out), (16, *geometry.outputs((15, 16), size), n_out))
    x, kernel, dy = (
        jax.random.normal(k, s).astype(dtype) for k, s in zip(keys, shapes, strict=True)
    )
    mask = select_blocks(kernel, (side, side), 0.8)
    layer = SparseLayer(mask.kernel_shape, mask.block, mask.n_kept, -1, dtype)

    def products(engine, x, kernel, dy):
        own, kept = ENGINES[engine], mask.kept
        return (
            own.convolution(x, kernel, None, kept, layer, geometry),
            own.convolution_input_gradient(dy, kernel, kept, layer, (15, 16), geometry),
            own.convolution_gradients(x, dy, kept, layer, size, geometry)[0],
        )

    with jax.default_matmul_precision("default"):
        run = jax.jit(functools.partial(products, "triton"))
        first, again = run(x, kernel, dy), run(x, kernel, dy)
    wide = [a.astype("float32") for a in (x, kernel, dy)]
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(functools.partial(products, "reference"))(*wide)
    for a, b, e in zip(first, again, expected, strict=True):
        assert a.tobytes() == b.tobytes()
        error = jnp.linalg.norm(a.astype("float32") - e) / jnp.linalg.norm(e)
        # Operands are rounded to 8 bits, or in TF32 to 11; so are results of bfloat16.
        assert float(error) < (2**-7 if dtype == "bfloat16" else 2**-9)


@EVERY_ENGINE
def test_two_runs_give_the_same_bits(engine):
    point = Point((512, 1024), (64, 64), 0.8, 4096, "bfloat16")
    for kernel in PRODUCTS:
        work = work_of(kernel, point.layer, point.n_rows)
        run = jax.jit(work.sparse(ENGINES[engine]))
        first = run(*work.operands)
        for _ in range(5):
            assert bool((run(*work.operands) == first).all())
