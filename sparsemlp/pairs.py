"""Two layers with a GELU between them as operands of one function, and which of them one takes."""

from typing import NamedTuple

from jaxtyping import Array

from sparsemlp.layer import Linear


class Operands(NamedTuple):
    """What a fused pair of layers is made of and has a gradient, besides x.

    Attributes:
      kernel1: `[in, hidden]`.
      bias1: `[hidden]`, or None.
      kernel2: `[hidden, out]`.
      bias2: `[out]`, or None.
      before: `(scale, shift)` of the columns of x, or None.
      after: scale of the columns of the result, or None.
    """

    kernel1: Array
    bias1: Array | None
    kernel2: Array
    bias2: Array | None
    before: tuple[Array, Array] | None
    after: Array | None

    @classmethod
    def of(
        cls,
        first: Linear,
        second: Linear,
        before: tuple[Array, Array] | None,
        after: Array | None,
    ) -> "Operands":
        """Those of two layers and the scales around them."""
        return cls(first.kernel, first.bias, second.kernel, second.bias, before, after)

    @property
    def scales(self) -> list[Array]:
        """Those of the scales that are given."""
        return [*(self.before or ()), *(() if self.after is None else (self.after,))]


def are_alike(x: Array, operands: Operands) -> bool:
    """Whether all shapes fit each other and all dtypes are the same.

    What does not is left to the layers themselves, which say what is wrong, or find a common dtype.
    """
    kernels = (operands.kernel1, operands.kernel2)
    biases = (operands.bias1, operands.bias2)
    arrays = [*kernels, *(bias for bias in biases if bias is not None), *operands.scales]
    if any(array.dtype != x.dtype for array in arrays):
        return False
    ends = operands.kernel1.shape[:1], operands.kernel2.shape[-1:]
    if any(scale.shape != ends[0] for scale in operands.before or ()):
        return False
    if operands.after is not None and operands.after.shape != ends[1]:
        return False
    shape = x.shape
    for kernel, bias in zip(kernels, biases, strict=True):
        if kernel.ndim != 2 or shape[-1:] != kernel.shape[:1]:
            return False
        shape = kernel.shape
        if bias is not None and bias.shape != shape[1:]:
            return False
    return True
