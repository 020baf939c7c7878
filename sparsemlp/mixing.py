"""Token mixing: a sparse linear layer along the tokens, between two scales of the channels."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from sparsemlp.layer import Linear
from sparsemlp.spread import scaled, spread


def mix_tokens(
    x: Float[Array, "*batch tokens channels"],
    layer: Linear,
    *,
    before: tuple[Float[Array, " channels"], Float[Array, " channels"]],
    after: Float[Array, " channels"],
    engine: str = "auto",
) -> Float[Array, "*batch out channels"]:
    """`after * layer(scale * x + shift)` along the tokens, as one product and one pass over it.

    The branch of token mixing of a ResMLP (Touvron et al., arXiv 2105.03404, equation 2). Scales
    of channels commute with a product over tokens, so both become one factor, and shift and bias
    one small table. They do not commute where dX uses other weights than the forward pass did, or
    a rule prunes an operand; there the three steps are done one by one.

    Args:
      x: `[..., in, channels]`.
      layer: from `in` tokens to `out`.
      before: `(scale, shift)` of the channels of x.
      after: scale of the channels of the result.
      engine: who computes the product: `auto`, or a name in `pallas_kernels.ENGINES`.

    Returns:
      `[..., out, channels]`.
    """
    # after (W (scale x + shift) + b) = (scale after) (W x) + after ((sum_i W_i) shift + b), the
    # table in float32 at least: it is small, and its gradient a sum over all rows.
    scale, shift = before
    if not layer.takes_scales:
        y = layer(scaled(x, scale) + spread(shift, x), axis=-2, engine=engine)
        return scaled(y, after)
    y = dataclasses.replace(layer, bias=None)(x, axis=-2, engine=engine)
    dtype = jnp.result_type(y, scale, shift, after)
    wide = jnp.dtype(jnp.float32) if dtype.itemsize < 4 else dtype
    scale, shift, after = (a.astype(wide) for a in (scale, shift, after))
    table = jnp.sum(layer.kept_kernel().astype(wide), axis=0)[:, None] * shift[None, :]
    table = table if layer.bias is None else table + layer.bias[:, None].astype(wide)
    return scaled(y, scale * after, dtype) + spread(table * after[None, :], y, dtype)
