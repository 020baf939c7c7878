"""Two masked layers with a GELU between them in float64 NumPy, and how far rounding may lead."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import erf

GELU_SLOPE, GELU_BEND = 1.13, 0.8
"""The largest first and second derivatives of GELU."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer in float64: kernel `[in, out]`, bias `[out]`, bool mask of the kernel, backward."""

    kernel: Any
    bias: Any
    mask: Any
    backward: str = "masked"

    @property
    def forward(self) -> np.ndarray:
        return np.where(self.mask, self.kernel, 0)

    @property
    def back(self) -> np.ndarray:
        return self.kernel if self.backward == "dense" else self.forward

    def limit(self, gradient: np.ndarray) -> np.ndarray:
        """The gradient of the kernel, zero where this backward drops it."""
        return np.where(self.mask, gradient, 0) if self.backward == "masked" else gradient


def gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exact GELU and its derivative."""
    distribution = (1 + erf(x / math.sqrt(2))) / 2
    density = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
    return x * distribution, distribution + x * density


def mlp(
    x: np.ndarray,
    dy: np.ndarray,
    first: Layer,
    second: Layer,
    scale: np.ndarray,
    shift: np.ndarray,
    after: np.ndarray,
    residual: bool,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The result of `sparse_mlp` and all its gradients, each with its mass, in float64.

    `units` are the hidden ones after GELU, `dunits` is the gradient before it. The mass of a number
    is the sum of the magnitudes of all that it is summed from. If every operand and every
    intermediate result errs by a share `e` of its own mass, the number errs by `e` times its mass,
    GELU passing errors on by its derivatives; its own is one of `max(|x|, 1)`.
    """
    shape, rows = x.shape, (-1, x.shape[-1])
    x, dy = x.reshape(rows), dy.reshape(-1, dy.shape[-1])
    w1, w2 = first.forward, second.forward
    u, u_mass = scale * x + shift, abs(scale * x) + abs(shift)
    h, h_mass = u @ w1 + first.bias, u_mass @ abs(w1) + abs(first.bias)
    a, slope = gelu(h)
    a_mass, slope_mass = GELU_SLOPE * h_mass + 1, GELU_BEND * h_mass + 1
    z, z_mass = a @ w2 + second.bias, a_mass @ abs(w2) + abs(second.bias)
    y, y_mass = after * z, abs(after) * z_mass

    dz = after * dy
    da, da_mass = dz @ second.back.T, abs(dz) @ abs(second.back).T
    dh, dh_mass = da * slope, da_mass * (GELU_SLOPE + slope_mass)
    du, du_mass = dh @ first.back.T, dh_mass @ abs(first.back).T
    dx, dx_mass = scale * du, abs(scale) * du_mass
    if residual:
        y, y_mass, dx, dx_mass = y + x, y_mass + abs(x), dx + dy, dx_mass + abs(dy)
    return {
        "y": (y.reshape(*shape[:-1], -1), y_mass.reshape(*shape[:-1], -1)),
        "dx": (dx.reshape(shape), dx_mass.reshape(shape)),
        "units": (a, a_mass),
        "dunits": (dh, dh_mass),
        "dw1": (first.limit(u.T @ dh), u_mass.T @ dh_mass),
        "db1": (dh.sum(axis=0), dh_mass.sum(axis=0)),
        "dw2": (second.limit(a.T @ dz), a_mass.T @ abs(dz)),
        "db2": (dz.sum(axis=0), abs(dz).sum(axis=0)),
        "dscale": ((x * du).sum(axis=0), (abs(x) * du_mass).sum(axis=0)),
        "dshift": (du.sum(axis=0), du_mass.sum(axis=0)),
        "dafter": ((dy * z).sum(axis=0), (abs(dy) * z_mass).sum(axis=0)),
    }


def share(dtype: Any, longest_sum: int) -> float:
    """By what share of its mass a result may err: sums in float32, a few roundings to `dtype`.

    A sum of K terms errs by `c u sqrt(K)` of its mass, c = 4, as the conformance test derives it
    for the root sum of squares, which is less. At most 8 roundings to `dtype` lead to any result:
    the scales in the kernels, the shift in the bias, their gradients, and the result itself.
    """
    sums, roundings = (float(jnp.finfo(d).eps) / 2 for d in (jnp.float32, dtype))
    return 4 * sums * math.sqrt(longest_sum) + 8 * roundings


def assert_near(actual: Any, expected: tuple[np.ndarray, np.ndarray], e: float, name: str) -> None:
    """Raises AssertionError unless every entry is within the share `e` of its mass."""
    value, mass = expected
    assert actual.shape == value.shape, name
    error = abs(np.asarray(actual).astype(np.float64) - value)
    # A NaN is within no tolerance.
    off = ~(error <= e * mass)
    assert not off.any(), (
        f"{name}: {off.sum()} of {off.size} entries are off, by up to "
        f"{np.max(error / np.maximum(mass, 1e-300)):.2g} of their mass, tolerance {e:.2g}"
    )
