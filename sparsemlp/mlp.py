"""Two sparse linear layers with a GELU between them, fused where an engine can."""

import dataclasses
import functools
import math
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import Engine, SparseLayer, Weights
from sparsemlp.engines import choose_fused
from sparsemlp.errors import InputError
from sparsemlp.linear import sparse_linear
from sparsemlp.masks import BlockMask, Mask
from sparsemlp.rules import ActivationPooling, ActivationPruning, Backward, GradientPruning
from sparsemlp.varying import varying_alike


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer: its arrays and its rules.

    Attributes:
      kernel: `[in, out]`.
      bias: `[out]`, or None.
      mask: the kept blocks of the kernel; None is dense.
      backward: what the two products of the backward pass use of the mask.
      activation: what is kept of x for the kernel's gradient.
      gradient: how the output's gradient is pruned for that of x.
      rng: key of a gradient rule that draws at random.
    """

    kernel: Any
    bias: Any = None
    mask: Mask | None = None
    backward: Backward = "masked"
    activation: ActivationPruning | ActivationPooling | None = None
    gradient: GradientPruning | None = None
    rng: Any = None

    def __call__(
        self, x: Float[Array, "..."], *, axis: Literal[-1, -2] = -1, engine: str = "auto"
    ) -> Float[Array, "..."]:
        """Applies the layer along an axis of x, as `sparse_linear`."""
        return sparse_linear(
            x,
            self.kernel,
            self.bias,
            axis=axis,
            mask=self.mask,
            backward=self.backward,
            activation=self.activation,
            gradient=self.gradient,
            engine=engine,
            rng=self.rng,
        )

    @property
    def takes_scales(self) -> bool:
        """Whether scales around this layer can be folded into it without another gradient.

        So it is where dX uses the weights that the forward pass did, and no other rule says what
        is kept of an operand.
        """
        if self.activation is not None or self.gradient is not None:
            return False
        if self.mask is None:
            return True
        return self.backward != "dense" and not self.mask.says_backward

    def kept_kernel(self) -> Float[Array, "in out"]:
        """The kernel with zeros in dropped blocks; its gradient goes where the backward says."""
        if self.mask is None:
            return self.kernel
        keep = _keep_straight_through if self.backward == "straight_through" else _keep
        return keep(self.kernel, self.mask.dense())


def _keep(kernel: Array, mask: Array) -> Array:
    return jnp.where(mask, kernel, jnp.zeros_like(kernel))


_keep_straight_through = jax.custom_vjp(_keep)
_keep_straight_through.defvjp(
    lambda kernel, mask: (_keep(kernel, mask), None), lambda _, gradient: (gradient, None)
)


@jax.custom_jvp
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The exact GELU, `x (1 + erf(x / sqrt 2)) / 2`, elementwise, in float32 at least.

    In bfloat16 `1 + erf` would cancel where x is negative: at -3 it would be off by 45%. The
    backward pass keeps its slope, in the dtype of x, and nothing else.
    """
    return _gelu_and_slope(x)[0].astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (direction,) = primals, tangents
    value, slope = _gelu_and_slope(x)
    return value.astype(x.dtype), slope.astype(x.dtype) * direction


def _gelu_and_slope(x: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    half, scale, density = (jnp.asarray(n, x.dtype) for n in (0.5, 2**-0.5, (2 * math.pi) ** -0.5))
    distribution = half * (1 + jax.lax.erf(x * scale))
    return x * distribution, distribution + x * density * jnp.exp(-half * x * x)


def sparse_mlp(
    x: Float[Array, "*batch in"],
    first: Linear,
    second: Linear,
    *,
    before: tuple[Float[Array, " in"], Float[Array, " in"]] | None = None,
    after: Float[Array, " out"] | None = None,
    residual: bool = False,
    engine: str = "auto",
) -> Float[Array, "*batch out"]:
    """`after * second(gelu(first(scale * x + shift)))`, and x on top if `residual`.

    The branch of channel mixing of a ResMLP (Touvron et al., arXiv 2105.03404, equation 2). Where
    an engine fuses it, with the masked or the straight-through backward and no other rule in both
    layers, hidden activations are neither written to memory nor kept for the backward pass, which
    computes them again from x; the scales are folded into the kernels, so results differ by
    rounding.

    Args:
      x: `[..., in]`.
      first: from `in` to the hidden features.
      second: from the hidden features to `out`.
      before: `(scale, shift)` of x.
      after: scale of the result.
      residual: whether x is added, `in` being `out`.
      engine: who computes: `auto`, or a name in `pallas_kernels.ENGINES`.

    Returns:
      `[..., out]`.

    Raises:
      InputError: as `sparse_linear`; or x is to be added to a result of another width.
    """
    n_out = second.kernel.shape[-1]
    if residual and x.shape[-1] != n_out:
        raise InputError(
            f"x of shape {x.shape} cannot be added to a result of {n_out} features: "
            "make both widths equal, or set residual=False"
        )
    scales = [*(before or ()), *(() if after is None else (after,))]
    fusion = _fusion(x, first, second, scales, engine)
    if fusion is None:
        y = x if before is None else x * before[0] + before[1]
        with jax.named_scope("first"):
            y = gelu(first(y, engine=engine))
        with jax.named_scope("second"):
            y = second(y, engine=engine)
        y = y if after is None else y * after
        return x + y if residual else y
    if before is not None:
        first = _fold_before(first, *before)
    if after is not None:
        bias = None if second.bias is None else second.bias * after
        second = dataclasses.replace(second, kernel=second.kept_kernel() * after, bias=bias)
    weights = [_weights(layer) for layer in (first, second)]
    operands = (x, *weights[0], *weights[1])
    x, w1, b1, kept1, w2, b2, kept2 = (cast(Any, a) for a in varying_alike(*operands))
    return _fused(
        dataclasses.replace(fusion, residual=residual),
        x,
        (Weights(w1, b1, kept1), Weights(w2, b2, kept2)),
    )


def _weights(layer: Linear) -> Weights:
    assert layer.mask is not None
    return Weights(layer.kernel, layer.bias, layer.mask.kept)


def _fold_before(layer: Linear, scale: Array, shift: Array) -> Linear:
    """The layer that does the same to x as this one does to `scale * x + shift`."""
    kept = layer.kept_kernel()
    shifted = jnp.sum(shift[:, None] * kept, axis=0)
    bias = shifted if layer.bias is None else layer.bias + shifted
    return dataclasses.replace(layer, kernel=kept * scale[:, None], bias=bias)


@dataclasses.dataclass(frozen=True)
class _Fusion:
    """What is static about a fused pair of layers, and who computes it."""

    engine: Engine
    layers: tuple[SparseLayer, SparseLayer]
    straight_through: bool
    residual: bool = False


def _fusion(
    x: Array, first: Linear, second: Linear, scales: list[Array], engine: str
) -> _Fusion | None:
    """Who can compute the pair in one go; None if it has to be done step by step."""
    layers: list[SparseLayer] = []
    shape = x.shape
    for linear in (first, second):
        mask, dtypes = linear.mask, {x.dtype, linear.kernel.dtype, *(a.dtype for a in scales)}
        dtypes |= set() if linear.bias is None else {linear.bias.dtype}
        if shape[-1:] != linear.kernel.shape[:1]:
            return None
        shape = linear.kernel.shape
        if linear.bias is not None and linear.bias.shape != shape[1:]:
            return None
        if not isinstance(mask, BlockMask) or mask.keeps_all or not linear.takes_scales:
            return None
        if len(dtypes) > 1 or mask.kernel_shape != linear.kernel.shape:
            return None
        layers.append(SparseLayer(mask.kernel_shape, mask.block, mask.n_kept, -1, str(x.dtype)))
    if first.backward != second.backward:
        return None
    pair, straight_through = (layers[0], layers[1]), first.backward == "straight_through"
    phase = "straight_through_mlp" if straight_through else "mlp"
    chosen = choose_fused(engine, pair, x.size // max(1, x.shape[-1]), phase)
    return None if chosen is None else _Fusion(chosen, pair, straight_through)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(fusion: _Fusion, x: Array, weights: tuple[Weights, Weights]) -> Array:
    return fusion.engine.mlp(x, weights, fusion.layers, fusion.residual)


def _forward(fusion: _Fusion, x: Array, weights: tuple[Weights, Weights]) -> tuple[Array, tuple]:
    return _fused(fusion, x, weights), (x, weights)


def _backward(fusion: _Fusion, residuals: tuple, dy: Array) -> tuple:
    x, weights = residuals
    compute = fusion.engine.mlp_gradients
    if fusion.straight_through:
        compute = fusion.engine.straight_through_gradients
    return compute(x, dy, weights, fusion.layers, fusion.residual)


_fused.defvjp(_forward, _backward)
