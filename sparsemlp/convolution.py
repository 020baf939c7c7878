"""The operation for images: a convolution each of whose three products may use a sparse operand."""

import functools
import math
from collections.abc import Sequence

from jaxtyping import Array, Float, PRNGKeyArray

from pallas_kernels import ENGINES
from sparsemlp.convolution_layer import ConvolutionLayer
from sparsemlp.differentiable import differentiable
from sparsemlp.engines import (
    check_convolving,
    check_engine,
    choose_convolving,
    choose_unmasked,
)
from sparsemlp.errors import InputError
from sparsemlp.gradient_pruning import check_groups, key_of
from sparsemlp.linear import of_one_dtype, sparse_linear
from sparsemlp.mask_check import check_mask
from sparsemlp.masked_kernel import masked_kernel
from sparsemlp.masks import Mask
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    GradientPruning,
    check_backward,
    check_operand_rules,
)
from sparsemlp.windows import Padding, window_geometry


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
    padding is `sparse_linear` itself, along the channels, on every engine. Larger ones are masked
    by the engines `cpu` and, on NVIDIA GPUs, `triton` and `jax-triton`, which multiply the kept
    blocks alone, and by `reference`; without a mask they are XLA's dense convolutions. Of a
    pruned x engine `cpu` at stride 1 computes dW from the kept blocks or means, position by
    position of the kernel; elsewhere they are spread to the size of x for it.

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
      engine: `auto` or a name in `pallas_kernels.ENGINES`. `mosaic` does not mask kernels larger
        than 1x1, nor those with padding or a pooled activation; `triton` does where the columns of
        a block divide the input channels. With a mask or a rule only `reference` has second
        derivatives, and programs that `jax.export` can write.
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
    dtype, pruning = str(kernel.dtype), ENGINES["reference"]
    if activation is not None or gradient is not None:
        pruning = choose_unmasked(engine, (kernel.shape[2], kernel.shape[3]), dtype)
    if mask is not None and not mask.keeps_all:
        check_convolving(engine, size)
    n_rows = x.shape[0] * math.prod(geometry.outputs(image, size))
    choose = functools.partial(choose_convolving, n_channels=kernel.shape[2], n_rows=n_rows)
    masked = masked_kernel(mask, -1, dtype, backward, engine, choose)
    layer = ConvolutionLayer(geometry, size, image, activation, gradient, pruning)
    return differentiable(layer, x, kernel, bias, masked, key_of(gradient, rng))


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
