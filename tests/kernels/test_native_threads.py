"""The native kernels compute the same bits with one thread and with many."""

import functools
import json
import os
import sys
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_in_child
from native import needs_native
from native_operands import draw_mlp, products, random_ids, value_and_gradients

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.dense_convolution import Geometry

CPU = ENGINES["cpu"]
pytestmark = needs_native


def n_xla_threads() -> int:
    """How many threads compute in this process."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("tf_XLAEigen")


def print_results() -> None:
    """Prints the number of threads, and bits of every kernel's results, enough for many tasks."""
    rng = np.random.default_rng(0)
    digits = {}
    layers: tuple[tuple[Literal[-1, -2], str, tuple[int, ...], tuple[int, ...]], ...]
    layers = ((-1, "float32", (1030,), ()), (-2, "bfloat16", (21,), (67,)))
    for axis, dtype, batch, channels in layers:
        shape, block = (96, 160), (32, 16)
        kept = random_ids(rng, shape, block)
        layer = SparseLayer(shape, block, len(kept), axis, dtype)
        sizes = ((*batch, 96, *channels), (*batch, 160, *channels), shape, 160)
        operands = [jnp.asarray(rng.normal(size=size), dtype) for size in sizes]
        found = products(layer, *operands, kept)
        for name, a in zip(("y", "dx", "dW", "db"), found, strict=True):
            digits[f"{name} {axis} {dtype}"] = np.asarray(a).tobytes().hex()
    for dtype in ("float32", "bfloat16"):
        made = draw_mlp(((32, 16), (16, 32)), dtype, batch=(1030,))
        run = jax.jit(functools.partial(value_and_gradients, made))
        for name, a in run(made.x, made.dy, made.weights).items():
            digits[f"mlp {name} {dtype}"] = np.asarray(a).tobytes().hex()
        matrix = SparseLayer((144, 32), (16, 16), 7, -1, dtype)
        kept = jnp.arange(0, 14, 2, dtype=jnp.int32)
        geometry = Geometry((1, 1), ((1, 1), (1, 1)))
        sizes = ((9, 14, 13, 16), (3, 3, 16, 32), (32,), (9, 14, 13, 32))
        x, kernel, bias, dy = (jnp.asarray(rng.normal(size=size), dtype) for size in sizes)
        y = CPU.convolution(x, kernel, bias, kept, matrix, geometry)
        dx = CPU.convolution_input_gradient(dy, kernel, kept, matrix, (14, 13), geometry)
        of_parameters = CPU.convolution_gradients(x, dy, kept, matrix, (3, 3), geometry)
        for name, a in zip(("y", "dx", "dW", "db"), (y, dx, *of_parameters), strict=True):
            digits[f"convolution {name} {dtype}"] = np.asarray(a).tobytes().hex()
    print(json.dumps({"n_threads": n_xla_threads(), "digits": digits}))


@pytest.mark.skipif(sys.platform != "linux", reason="threads follow the affinity of Linux")
def test_results_are_the_same_bits_with_one_thread_and_with_many():
    n_cpus = len(os.sched_getaffinity(0))
    if n_cpus < 2:
        pytest.skip("there is one CPU here")
    one, many = (
        json.loads(run_in_child("test_native_threads", "print_results", n_cpus=n).splitlines()[-1])
        for n in (1, min(n_cpus, 4))
    )
    assert one["n_threads"] == 1
    assert many["n_threads"] == min(n_cpus, 4)
    assert len(one["digits"]) == 2 * (4 + 6 + 4)
    for name, digits in one["digits"].items():
        assert any(digit != "0" for digit in digits), name
        assert many["digits"][name] == digits, name
