"""Every engine with the batch split over two devices."""

import functools
import itertools
import json
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_in_child
from conformance import (
    AXIS_VALUES,
    BACKWARDS,
    EVERY_ENGINE,
    PATTERNS,
    SMALL,
    Axis,
    Operands,
    assert_conforms,
    draw,
    expected,
    skip_unless_able,
    small_mask,
)
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels import ENGINES, Mosaic, Triton
from sparsemlp import BlockMask, sparse_linear


def sharded(
    way: str, operands: Operands, engine: str, axis: Axis, backward: Any
) -> tuple[jax.Array, ...]:
    """The arrays y, dx, dW, db with x in two halves and the layer on both of two devices."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    half, whole = PartitionSpec("data"), PartitionSpec()
    x, kernel, bias, mask, dy = operands

    def call(x, kernel, bias, mask):
        return sparse_linear(
            x, kernel, bias, axis=axis, mask=mask, backward=backward, engine=engine
        )

    if way == "gradient of a sharded function":
        split = jax.shard_map(call, mesh=mesh, in_specs=(half, whole, whole, whole), out_specs=half)
        y, pull = jax.vjp(lambda x, w, b: split(x, w, b, mask), x, kernel, bias)
        return y, *pull(dy)

    is_checked = way == "gradient inside, of a loss summed over devices"

    def inside(x, kernel, bias, mask, dy):
        def loss(x, kernel, bias):
            y = call(x, kernel, bias, mask)
            mine = jnp.vdot(y, dy)
            return jax.lax.psum(mine, "data") if is_checked else mine, y

        gradient = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
        (dx, dw, db), y = gradient(x, kernel, bias)
        # Without the check of what varies, gradients stay those of one device.
        return y, dx, *((dw, db) if is_checked else jax.lax.psum((dw, db), "data"))

    split = jax.shard_map(
        inside,
        mesh=mesh,
        in_specs=(half, whole, whole, whole, half),
        out_specs=(half, half, whole, whole),
        check_vma=is_checked,
    )
    return split(x, kernel, bias, mask, dy)


WAYS = (
    "gradient of a sharded function",
    "gradient inside, of a loss summed over devices",
    "gradient inside, summed over devices",
)


def check_on_two_devices(engine: str) -> None:
    """Raises AssertionError unless halves of a batch give the gradients of the whole."""
    assert jax.device_count() == 2
    if engine in ("mosaic", "triton"):
        # This process has no fixtures.
        ENGINES[engine] = {"mosaic": Mosaic, "triton": Triton}[engine](interpret=True)
    shape = SMALL._replace(batch=(6,))
    mask = small_mask(PATTERNS["a square with an empty row and column on each side"])
    full = small_mask(np.arange(16))
    modes: list[tuple[str, str, BlockMask]] = [(WAYS[0], mode, mask) for mode in BACKWARDS]
    modes += [(way, "masked", mask) for way in WAYS[1:]] + [(WAYS[0], "masked", full)]
    for (way, backward, mask), axis in itertools.product(modes, AXIS_VALUES):
        print(f"{way}, axis {axis}, backward {backward}, {mask.n_kept} blocks", flush=True)
        operands = draw(shape, axis, "float32", mask)
        run = jax.jit(functools.partial(sharded, way), static_argnums=(1, 2, 3))
        if engine == "mosaic" or (engine == "triton" and way != WAYS[-1]):
            # JAX interprets no kernel where it checks what varies; it checks the trace itself. Of
            # `mosaic` it interprets the kernels of all devices of a process in one memory, and
            # fails if one ends while barriers of another are there.
            run.trace(operands, engine, axis, backward)
            continue
        actual = run(operands, engine, axis, backward)
        # A sum that is counted twice is a whole gradient away from what is expected.
        assert_conforms(actual, expected(operands, axis, backward), "float32")


def print_checks_on_two_devices() -> None:
    """Prints a JSON object: of every engine, why it fails on two devices, empty if it does not."""
    found = {}
    for engine in ENGINES:
        print(engine, flush=True)
        found[engine] = ""
        try:
            check_on_two_devices(engine)
        except Exception:
            found[engine] = traceback.format_exc()
    print(json.dumps(found))


@pytest.fixture(scope="module")
def checks_on_two_devices() -> dict[str, str]:
    """What a process with two devices found, one for all engines."""
    printed = run_in_child("test_conformance_devices", "print_checks_on_two_devices", n_devices=2)
    return json.loads(printed.splitlines()[-1])


@EVERY_ENGINE
def test_an_engine_has_the_same_gradients_with_the_batch_split_over_two_devices(
    engine, checks_on_two_devices
):
    for axis in AXIS_VALUES:
        skip_unless_able(engine, small_mask((0, 1, 2, 3)), axis, "float32", "cpu")
    assert checks_on_two_devices[engine] == ""
