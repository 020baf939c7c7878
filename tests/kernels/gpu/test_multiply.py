"""The Triton kernel of engine `jax-triton`: its numbers, its call by JAX, its machine code."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import ENGINES, JaxTriton, SparseLayer
from pallas_kernels.device_table import Problem
from pallas_kernels.jax_triton import engine
from pallas_kernels.jax_triton.products import plan
from pallas_kernels.precision import PRECISIONS
from pallas_kernels.triton.configurations import product_tiles
from pallas_kernels.triton.launch import Tiles
from pallas_kernels.tuning import forced
from sparsemlp.engines import choose_engine

LAYER = SparseLayer((384, 1536), (32, 32), 115, -1, "float32")
AXES = pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
TRANSPOSED = pytest.mark.parametrize("transposed", [False, True], ids=["product", "transposed"])


@pytest.fixture
def installed() -> None:
    """Skips where jax-triton is not installed, or fails with this JAX."""
    reason = engine.missing()
    if reason is not None:
        pytest.skip(reason)


def test_without_jax_triton_the_engine_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_triton", None)
    monkeypatch.setattr(engine, "missing", engine.missing.__wrapped__)
    reason = JaxTriton().reason_against(LAYER, "gpu")
    assert reason is not None
    assert "pip install -e '.[triton]'" in reason


def test_a_release_that_does_not_fit_this_jax_is_told_with_one_that_does(monkeypatch, installed):
    def fail() -> None:
        raise TypeError("rule() takes 2 positional arguments but 3 were given")

    monkeypatch.setattr(engine, "_lower_one", fail)
    reason = engine.missing.__wrapped__()
    assert reason is not None
    assert f"fails with JAX {jax.__version__} (TypeError: rule() takes 2" in reason
    assert "'jax==0.11.2' 'jax-triton==0.3.1'" in reason


def test_it_is_for_a_gpu_and_auto_leaves_it_out(monkeypatch):
    reason = JaxTriton().reason_against(LAYER, "cpu")
    assert reason is not None
    assert "platform is 'cpu'" in reason
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert choose_engine("auto", LAYER, "product", 8) is ENGINES["reference"]


@AXES
@TRANSPOSED
def test_strides_and_grid_cover_x_and_y(axis, transposed):
    layer = SparseLayer((64, 96), (16, 32), 3, axis, "float32")
    n_x, n_y = (96, 64) if transposed else (64, 96)
    shape = (3, 25, n_x) if axis == -1 else (3, n_x, 25)
    constants, n_programs = plan(shape, layer, product_tiles(layer), transposed=transposed)
    n_samples = 1 if axis == -1 else 3
    assert n_programs == constants["n_lines"] * constants["n_tiles"] * n_samples
    assert constants["n_lines"] * constants["width"] == n_y
    assert constants["n_tiles"] * constants["size"] >= constants["n_rows"]
    for operand, features in (("x", n_x), ("y", n_y)):
        steps = [constants[f"{operand}_{along}"] for along in ("sample", "row", "feature")]
        places = {
            sample * steps[0] + row * steps[1] + feature * steps[2]
            for sample in range(n_samples)
            for row in range(constants["n_rows"])
            for feature in range(features)
        }
        assert places == set(range(3 * 25 * features))


def test_the_kernel_computes_what_the_reference_computes(installed):
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_triton.py"))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@AXES
def test_both_products_lower_to_one_call_each(axis, installed):
    layer = SparseLayer((64, 96), (16, 32), 3, axis, "float32")
    x, dy = (
        jax.ShapeDtypeStruct((3, 25, n) if axis == -1 else (3, n, 25), jnp.float32)
        for n in (64, 96)
    )
    kernel = jax.ShapeDtypeStruct((64, 96), jnp.float32)
    kept = jax.ShapeDtypeStruct((3,), jnp.int32)
    by = JaxTriton(compute_capability=80)

    def both(x: Any, dy: Any, kernel: Any, kept: Any) -> Any:
        return (
            by.product(x, kernel, None, kept, layer),
            jax.vmap(lambda dy: by.input_gradient(dy[None], kernel, kept, layer))(dy),
        )

    traced = jax.jit(both).trace(x, dy, kernel, kept)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert len(re.findall("triton_kernel_call", text)) == 2


def test_a_configuration_that_is_asked_for_is_the_one_that_is_taken(installed, monkeypatch):
    """Else all candidates of `tune.py` would be one kernel."""
    import jax_triton

    taken = []

    def call(*operands: Any, out_type: Any, **options: Any) -> Any:
        taken.append((options["size"], options["num_warps"], options["num_stages"]))
        return jnp.zeros(out_type.shape, out_type.dtype)

    monkeypatch.setattr(jax_triton, "triton_call", call)
    x, kernel = jnp.zeros((2000, 384)), jnp.zeros((384, 1536))
    with forced(Tiles(256, 8, 4)):
        JaxTriton().product(x, kernel, None, jnp.arange(115), LAYER)
    with jax.default_matmul_precision("default"):
        JaxTriton().product(x, kernel, None, jnp.arange(115), LAYER)
    assert taken == [(256, 8, 4), (128, 4, 3)]


def test_only_its_own_kernels_have_configurations_of_its_own():
    def found(kernel: str) -> int:
        problem = Problem("jax-triton", 1, kernel, "float32", (32, 32), (384, 1536), -1, 0.2, 4096)
        return len(JaxTriton().configurations(problem))

    assert found("product") > 1
    assert found("kernel_gradient") == found("compact_gradient") == 0


@pytest.mark.parametrize(
    ("name", "way"),
    [(None, "tf32"), ("highest", "ieee"), ("F32_F32_F32", "ieee"), ("TF32_TF32_F32_X3", "tf32x3")],
)
def test_float32_is_multiplied_as_jax_is_asked_to(name, way):
    assert PRECISIONS[name] == way


def test_a_way_to_multiply_that_triton_has_not_is_refused():
    with jax.default_matmul_precision("BF16_BF16_F32_X3"):
        reason = JaxTriton().reason_against(LAYER, "gpu")
    assert reason is not None
    assert "jax_default_matmul_precision='BF16_BF16_F32_X3': choose one of 'default'," in reason


@pytest.fixture
def cached_here(installed, tmp_path, monkeypatch) -> None:
    """Triton compiles anew, as jax-triton asks it to; it warns of a default that will change."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(
    shape: tuple[int, ...], layer: SparseLayer, transposed: bool, architecture: int
) -> Any:
    """The kernel as Triton compiles it for x of a shape and a compute capability, as 80."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pallas_kernels.jax_triton.multiply import multiply

    tiles = product_tiles(layer)
    constants, _ = plan(shape, layer, tiles, transposed=transposed)
    values = constants | {"has_bias": not transposed, "precision": "tf32"}
    pointer = "*fp32" if layer.dtype == "float32" else "*bf16"
    arrays = dict.fromkeys(("start", "across", "order"), "*i32")
    arrays |= dict.fromkeys(("x", "kernel", "bias", "y"), pointer)
    names = multiply.arg_names
    source = ASTSource(
        fn=multiply,
        signature={name: arrays.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in values.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in arrays},
    )
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


@pytest.mark.aot
@AXES
@TRANSPOSED
def test_arrays_of_more_entries_than_32_bits_count_are_addressed(axis, transposed, cached_here):
    layer = SparseLayer((1536, 384), (32, 32), 115, axis, "bfloat16")
    n_x = layer.kernel_shape[1 if transposed else 0]
    shape = (1_500_000, n_x) if axis == -1 else (10_000, n_x, 200)
    code = compiled(shape, layer, transposed=transposed, architecture=90).asm["ttir"]
    # Where rows, samples, features and weights begin: all that is multiplied.
    integers = re.findall(r"arith\.muli .* : (?:tensor<(?:\d+x)+)?(i\d+)", code)
    assert len(integers) >= 6, code
    assert set(integers) == {"i64"}, code


@pytest.mark.aot
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@AXES
@TRANSPOSED
def test_machine_code_uses_tensor_cores_and_spills_nothing(
    axis, transposed, dtype, architecture, cached_here, tmp_path
):
    layer = SparseLayer((384, 1536), (32, 32), 115, axis, dtype)
    n_x = layer.kernel_shape[1 if transposed else 0]
    shape = (32, 256, n_x) if axis == -1 else (32, n_x, 256)
    done = compiled(shape, layer, transposed=transposed, architecture=architecture)
    from triton.backends.nvidia.compiler import get_ptxas

    program = done.asm["ptx"]
    (tmp_path / "kernel.ptx").write_text(program)
    (target,) = re.findall(r"\.target (sm_\w+)", program)
    assembler = get_ptxas(architecture).path
    report = subprocess.run(
        [assembler, "-v", f"-arch={target}", "kernel.ptx", "-o", "kernel.cubin"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    assert spills
    assert sum(map(int, spills)) == 0, report
    assert "mma.sync" in program or "wgmma.mma_async" in program
