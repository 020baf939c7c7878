"""The three products of a dense linear layer, by XLA.

`axis = -1` contracts the features of `x [..., in]`; `axis = -2` contracts the tokens of
`x [..., in, channels]`, with the channels untouched. Sums are taken in float32 at least.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _dot(
    a: Array, b: Array, contract: tuple[tuple[int, ...], tuple[int, ...]], batch: int = 0
) -> Array:
    """Contracts axes of a and b; the first `batch` axes are shared.

    XLA sums bfloat16 in float32 and rounds the sums, on CPUs but for what `_wide` is for. Asked for
    float32 results, it would write and read these beside on GPUs. But where one operand is a
    vector, it makes sums on GPUs whose terms it rounds, unless it is asked so.
    """
    shared = tuple(range(batch))
    kept = [
        math.prod(n for axis, n in enumerate(own.shape) if axis not in (*contracted, *shared))
        for own, contracted in zip((a, b), contract, strict=True)
    ]
    wanted = sum_dtype(a) if 1 in kept else a.dtype
    dot = jax.lax.dot_general(a, b, (contract, (shared, shared)), preferred_element_type=wanted)
    return dot.astype(a.dtype)


def _wide(a: Array) -> Array:
    """An operand of a product that XLA would sum in bfloat16 on CPUs: there in float32.

    XLA leaves some products of bfloat16 to a library there, and widens the operands of others
    before it turns these around. One that it takes for a library's and then turns so that it is
    none, as it does under `jax.vmap` and with one sample, would be summed in bfloat16, or end in
    an error when it is run (JAX 0.12.0).
    """
    return a.astype(sum_dtype(a)) if jax.default_backend() == "cpu" else a


def sum_dtype(a: Array) -> jnp.dtype:
    """What sums of an array's entries are added up in: its own dtype, float32 at least."""
    return jnp.dtype(jnp.float32) if a.dtype.itemsize < 4 else a.dtype


def product(
    x: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    axis: int,
) -> Float[Array, "..."]:
    """`y = x W + b` over the features, or `y[..., o, c] = sum_i W[i, o] x[..., i, c] + b[o]`."""
    if axis == -1:
        y = _dot(_rows(x), kernel, ((1,), (0,)))
        y = y.reshape(*x.shape[:-1], kernel.shape[1])
        return y if bias is None else y + _alike(bias, y)
    y = _over_tokens(kernel.T, x)
    return y if bias is None else y + _alike(bias[:, None], y)


def input_gradient(
    dy: Float[Array, "..."], kernel: Float[Array, "in out"], axis: int
) -> Float[Array, "..."]:
    """`dx = dy W^T`, along the same axis as the product."""
    if axis == -1:
        dx = _dot(_rows(dy), kernel, ((1,), (1,)))
        return dx.reshape(*dy.shape[:-1], kernel.shape[0])
    return _over_tokens(kernel, dy)


def kernel_gradient(
    x: Float[Array, "..."], dy: Float[Array, "..."], axis: int
) -> Float[Array, "in out"]:
    """`dW = x^T dy`, summed over every axis but the contracted one."""
    if axis == -1:
        return _dot(_wide(_rows(x)), _wide(_rows(dy)), ((0,), (0,))).astype(x.dtype)
    others = (*range(x.ndim - 2), x.ndim - 1)
    return _dot(x, dy, (others, others))


def bias_gradient(dy: Float[Array, "..."], axis: int) -> Float[Array, " out"]:
    """`db`: dy summed over every axis but the output features'."""
    others = tuple(i for i in range(dy.ndim) if i != dy.ndim + axis)
    return jnp.sum(dy, axis=others, dtype=sum_dtype(dy)).astype(dy.dtype)


def _alike(a: Array, y: Array) -> Array:
    """An array with as many axes as y, so that no rank is promoted."""
    return a.reshape(*(1,) * (y.ndim - a.ndim), *a.shape)


def _rows(x: Array) -> Array:
    """`[rows, features]`, also of no features."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _over_tokens(kernel: Array, x: Array) -> Array:
    """`y[..., o, c] = sum_i kernel[o, i] x[..., i, c]`, one small product a sample.

    The kernel is repeated for each sample, so that neither x nor y is transposed in memory.
    """
    samples = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
    if samples.shape[0] == 1:
        kernel, samples = _wide(kernel), _wide(samples)
    kernels = jnp.broadcast_to(kernel, (samples.shape[0], *kernel.shape))
    y = _dot(kernels, samples, ((2,), (1,)), batch=1)
    return y.reshape(*x.shape[:-2], *y.shape[-2:]).astype(x.dtype)
