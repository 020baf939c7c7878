"""Two layers whose activations and gradients are pruned: cases, operands and their results."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    GradientPruning,
    select_blocks,
)
from sparsemlp.layer import Linear
from sparsemlp.mlp import sparse_mlp
from sparsemlp.rules import Backward

IN, HIDDEN = 32, 64
BLOCKS, MEANS = ActivationPruning((8, 8), 0.7), ActivationPooling((2, 2))


@dataclasses.dataclass(frozen=True)
class Case:
    """One pair of layers with the same rules, and what is around it."""

    activation: Any = BLOCKS
    gradient: GradientPruning | None = None
    masked: str = "both"
    block: tuple[int, int] = (16, 8)
    backward: Backward = "masked"
    with_bias: bool = True
    scales: str = "both"
    residual: bool = True
    batch: tuple[int, ...] = (3, 16)
    dtype: str = "float32"

    def draw(self) -> dict[str, Any]:
        """Arrays by name; hidden units of a size at which GELU bends."""
        rng = np.random.default_rng(0)

        def normal(*shape: int, scale: float = 1.0) -> jax.Array:
            return jnp.asarray(scale * rng.normal(size=shape), self.dtype)

        arrays = {
            "x": normal(*self.batch, IN),
            "w1": normal(IN, HIDDEN, scale=IN**-0.5),
            "w2": normal(HIDDEN, IN, scale=HIDDEN**-0.5),
        }
        if self.with_bias:
            arrays |= {"b1": normal(HIDDEN), "b2": normal(IN)}
        if self.scales in ("before", "both"):
            arrays |= {"scale": 1 + normal(IN, scale=0.1), "shift": normal(IN)}
        if self.scales in ("after", "both"):
            arrays["after"] = normal(IN)
        return arrays

    def layers(self, arrays: dict[str, Any]) -> tuple[Linear, Linear]:
        """Both layers; the masks are those of the arrays, no part of what is differentiated."""
        masks = [
            select_blocks(jax.lax.stop_gradient(arrays[f"w{index}"]), self.block, 0.6)
            if self.masked in ("both", name)
            else None
            for index, name in ((1, "first"), (2, "second"))
        ]
        first, second = (
            Linear(
                arrays[f"w{index}"],
                arrays.get(f"b{index}"),
                mask,
                self.backward,
                self.activation,
                self.gradient,
            )
            for index, mask in zip((1, 2), masks, strict=True)
        )
        return first, second

    def apply(self, arrays: dict[str, Any], engine: str) -> jax.Array:
        """`sparse_mlp` of arrays by name."""
        return sparse_mlp(
            arrays["x"],
            *self.layers(arrays),
            before=(arrays["scale"], arrays["shift"]) if "scale" in arrays else None,
            after=arrays.get("after"),
            residual=self.residual,
            engine=engine,
        )


@functools.partial(jax.jit, static_argnames=("case", "engine"))
def value_and_gradients(
    arrays: dict[str, Any], dy: jax.Array, case: Case, engine: str
) -> dict[str, Any]:
    """The result `y`, and the gradient of each array by its name."""
    y, pull = jax.vjp(lambda a: case.apply(a, engine), arrays)
    return {"y": y, **pull(dy)[0]}


def gradient_of(case: Case) -> jax.Array:
    shape = (*case.batch, IN)
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), case.dtype)


def is_fused(case: Case, engine: str = "cpu") -> bool:
    program = jax.make_jaxpr(lambda a: case.apply(a, engine))(case.draw())
    return "sparsemlp_pruned_mlp" in str(program)


def assert_alike(found: dict[str, Any], want: dict[str, Any], share: float) -> None:
    """Every entry is within a share of the largest of its array."""
    assert set(found) == set(want)
    for name, value in want.items():
        expected = np.asarray(value, np.float64)
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(
            np.asarray(found[name], np.float64),
            expected,
            rtol=0,
            atol=share * np.abs(expected).max(),
            err_msg=name,
        )
