"""The operation for images: a convolution each of whose three products may use a sparse operand."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pallas_kernels import ENGINES, Engine, dense, dense_convolution
from pallas_kernels.dense_convolution import Geometry
from sparsemlp.engines import check_engine, choose_unmasked
from sparsemlp.errors import InputError
from sparsemlp.gradient_pruning import check_groups, prune_gradient
from sparsemlp.image_activations import CompactImage, compact_image, skips
from sparsemlp.linear import sparse_linear
from sparsemlp.masks import GridMask, Mask, check_mask
from sparsemlp.operand_rules import of_one_dtype
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    GradientPruning,
    check_backward,
    check_operand_rules,
)
from sparsemlp.varying import varying_alike
from sparsemlp.windows import Padding, window_geometry

_PLAIN = "1x1 convolutions that neither pad nor pool"


def sparse_conv(
    x: Float[Array, "batch height width in"],
    kernel: Float[Array, "down across in out"],
    bias: Float[Array, " out"] | None = None,
    *,
    strides: Sequence[int] = (1, 1),
    padding: Padding = "SAME",
    mask: Mask | None = None,
    backward: Backward = "masked",
    activation: ActivationPruning | ActivationPooling | None = None,
    gradient: GradientPruning | None = None,
    engine: str = "auto",
    rng: PRNGKeyArray | None = None,
) -> Float[Array, "batch new_height new_width out"]:
    """A convolution with optional sparsity in each of its operands.

    The products of `sparse_linear`, with x unfolded into its windows and the kernel
    `[down * across * in, out]` for the weight; nothing is unfolded in memory. A 1x1 kernel without
    padding is `sparse_linear` itself, along the channels, on every engine. Of a larger one the
    products with W are XLA's dense convolutions, over a masked kernel if there is a mask. At stride
    1 engine `cpu` computes dW from the kept blocks or means alone, position by position of the
    kernel; elsewhere they are spread to the size of x for it. It also finds the largest entries of
    dY.

    Args:
      x: images, channels last.
      kernel: `[down, across, in, out]`. x, kernel and bias are brought to their common dtype.
      bias: `[out]`, or None.
      strides: pixels from one output to the next, `(down, across)`.
      padding: `SAME` (outputs are `ceil(size / stride)`), `VALID` (none), pixels on every side, or
        `((above, below), (left, right))`.
      mask: the kept blocks of the kernel as a matrix `[down * across * in, out]`. None, or a mask
        that keeps every block, is dense.
      backward: what the two products of the backward pass use, as for `sparse_linear`.
      activation: what is kept of x for dW. Blocks have rows over pixels (batch x height x width;
        of a 1x1 kernel without padding the pixels that it reads) and columns over channels; a
        pooling window is `(height, width)` in pixels.
      gradient: how dY is pruned for dX, in groups of output channels; `rescaled` sums over pixels.
      engine: `auto` or a name in `pallas_kernels.ENGINES`. Only `reference` masks kernels larger
        than 1x1, and those with padding or a pooled activation.
      rng: key of the gradient method `random`.

    Returns:
      `[batch, new_height, new_width, out]`.

    Raises:
      InputError: as `sparse_linear`; or an engine that cannot mask this kernel.

    References:
      McDanel, Dinh, Magallanes (SDGP) for the gradient rule, Barley and Fröning, arXiv 2409.11902,
      for pooled activations, both stated for convolutions.
    """
    check_backward(backward)
    check_operand_rules(activation, gradient)
    check_engine(engine)
    x, kernel, bias = of_one_dtype(x, kernel, bias)
    _check_shapes(x, kernel, bias, mask)
    size, image = (kernel.shape[0], kernel.shape[1]), (x.shape[1], x.shape[2])
    geometry = window_geometry(image, size, strides, padding)
    pooled = isinstance(activation, ActivationPooling) and activation.window != (1, 1)
    if geometry.reads_pixels_alone(size) and not pooled:
        return sparse_linear(
            x[:, :: strides[0], :: strides[1]],
            kernel[0, 0],
            bias,
            mask=mask,
            backward=backward,
            activation=None if isinstance(activation, ActivationPooling) else activation,
            gradient=gradient,
            engine=engine,
            rng=rng,
        )
    if gradient is not None:
        check_groups(gradient, kernel.shape[3])
    masked = mask is not None and not mask.keeps_all
    if isinstance(mask, GridMask) and mask.says_backward:
        raise InputError(
            f"a GridMask that says what the backward pass uses is for linear layers and {_PLAIN}, "
            f"not for other kernels such as this one of {size[0]}x{size[1]}: leave its flags out"
        )
    if masked:
        check_window_engine(engine, size)
    pruning = ENGINES["reference"]
    if activation is not None or gradient is not None:
        shape, dtype = (kernel.shape[2], kernel.shape[3]), str(kernel.dtype)
        pruning = choose_unmasked(engine, shape, dtype)
    layer = _Layer(geometry, size, image, backward, activation, gradient, pruning)
    kept = mask.dense().reshape(kernel.shape) if mask is not None and masked else None
    return _convolve(layer, *varying_alike(x, kernel, bias, kept), rng)


def check_window_engine(engine: str, size: tuple[int, ...], name: str = "it") -> None:
    """Raises InputError unless an engine masks a convolution that is no linear layer.

    Args:
      engine: `auto`, or the name of an engine.
      size: height and width of its window.
      name: what the error calls the kernel.
    """
    if engine not in ("auto", "reference"):
        raise InputError(
            f"engine {engine!r} masks linear layers and {_PLAIN}; {name} is another convolution, "
            f"of {size[0]}x{size[1]}: choose auto or reference"
        )


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What is static about a convolution; `engine` prunes x and dY and multiplies what is kept."""

    geometry: Geometry
    kernel_size: tuple[int, int]
    image: tuple[int, int]
    backward: Backward
    activation: ActivationPruning | ActivationPooling | None
    gradient: GradientPruning | None
    engine: Engine

    def product(self, x: Array, kernel: Array, bias: Array | None, mask: Array | None) -> Array:
        """The output, from the masked kernel."""
        y = dense_convolution.product(x, _masked(kernel, mask), self.geometry)
        return y if bias is None else y + bias[None, None, None, :]

    def keep(self, x: Array) -> Array | CompactImage:
        """What the backward pass is given of x."""
        if self.activation is None:
            return x
        kept = compact_image(x, self.activation, self.engine)
        return x if kept is None else kept

    def kernel_gradient(self, kept: Array | CompactImage, dy: Array) -> Array:
        """The kernel's gradient from what was kept of x."""
        if not isinstance(kept, CompactImage):
            return dense_convolution.kernel_gradient(kept, dy, self.kernel_size, self.geometry)
        engine = self.engine
        if self.geometry.strides != (1, 1) or not skips(kept, engine):
            x = kept.dense()
            return dense_convolution.kernel_gradient(x, dy, self.kernel_size, self.geometry)
        return dense_convolution.by_position(
            lambda seen: kept.kernel_gradient(seen, engine),
            dy,
            self.kernel_size,
            self.image,
            self.geometry,
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(
    layer: _Layer,
    x: Array,
    kernel: Array,
    bias: Array | None,
    mask: Array | None,
    rng: Array | None,
) -> Array:
    del rng
    return layer.product(x, kernel, bias, mask)


def _forward(
    layer: _Layer,
    x: Array,
    kernel: Array,
    bias: Array | None,
    mask: Array | None,
    rng: Array | None,
) -> tuple[Array, tuple]:
    return layer.product(x, kernel, bias, mask), (layer.keep(x), kernel, bias, mask, rng)


def _backward(layer: _Layer, residuals: tuple, dy: Array) -> tuple:
    kept, kernel, bias, mask, rng = residuals
    rule = layer.gradient
    pruned = dy if rule is None else prune_gradient(dy, rule, layer.engine, rng=rng)
    back = kernel if layer.backward == "dense" else _masked(kernel, mask)
    dx = dense_convolution.input_gradient(pruned, back, layer.image, layer.geometry)
    dw = _kernel_gradient(layer, kept, dy)
    if layer.backward == "masked":
        dw = _masked(dw, mask)
    db = None if bias is None else dense.bias_gradient(dy, -1)
    return dx, dw, db, None, None


_convolve.defvjp(_forward, _backward)


# What is mapped over the positions of a kernel is a new function at every call, which JAX would
# compile anew where nothing around it is compiled.
@functools.partial(jax.jit, static_argnums=0)
def _kernel_gradient(layer: _Layer, kept: Array | CompactImage, dy: Array) -> Array:
    return layer.kernel_gradient(kept, dy)


def _masked(kernel: Array, mask: Array | None) -> Array:
    return kernel if mask is None else jnp.where(mask, kernel, jnp.zeros_like(kernel))


def _check_shapes(x: Array, kernel: Array, bias: Array | None, mask: Mask | None) -> None:
    if kernel.ndim != 4:
        raise InputError(f"kernel of shape {kernel.shape} is not [down, across, in, out]")
    if x.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise InputError(
            f"x of shape {x.shape} does not fit the kernel {kernel.shape}: it must be [batch, "
            f"height, width, {kernel.shape[2]}]"
        )
    n_out = kernel.shape[3]
    if bias is not None and bias.shape != (n_out,):
        raise InputError(f"bias of shape {bias.shape} does not fit {n_out} outputs")
    check_mask(mask)
    matrix = (math.prod(kernel.shape[:3]), n_out)
    if mask is not None and mask.kernel_shape != matrix:
        raise InputError(
            f"the mask is for a kernel [in, out] = {mask.kernel_shape}, not for {kernel.shape}, "
            f"which as a matrix is {matrix}"
        )
