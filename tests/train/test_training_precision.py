"""Training in bfloat16: what is multiplied in it, and what stays float32."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tiny
from tiny_training import built, run

from sparsemlp.train.train_state import initial_state


def test_bfloat16_keeps_float32_parameters_and_stays_near():
    plain = built(**tiny.PLAIN)
    narrow = built(precision="bfloat16", **tiny.PLAIN)
    state, healthy = run(narrow, initial_state(narrow), 1)
    wide, _ = run(plain, initial_state(plain), 1)
    assert healthy
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"float32"}
    # Eight bits of mantissa, a few roundings deep.
    assert float(state.totals["loss"]) == pytest.approx(float(wide.totals["loss"]), rel=8 * 2**-8)
    assert float(state.totals["loss"]) != float(wide.totals["loss"])


def test_bfloat16_is_the_dtype_of_the_products_and_of_nothing_that_is_kept_between_steps():
    """Parameters, moments, average, loss and logits are float32; what is multiplied is not."""
    program = built(precision="bfloat16", ema=0.9, engine="reference", **tiny.PLAIN)
    state = jax.eval_shape(lambda: initial_state(program))
    floats = {leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.dtype.kind == "f"}
    assert floats == {"float32"}

    def forward(params: Any, images: Any) -> Any:
        return program.model.apply({"params": params}, images)

    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
    lowered = jax.jit(forward).lower(state.params, images)
    assert lowered.out_info.dtype == jnp.float32
    products = [line for line in lowered.as_text().splitlines() if "stablehlo.dot_general" in line]
    operands = [
        re.findall(r"x(b?f\d+)>", line.split(" : (")[1].split("->")[0]) for line in products
    ]
    assert len(operands) >= 5
    assert {dtype for pair in operands for dtype in pair} == {"bf16"}
