"""What one training step of a ResMLP costs one of its devices: arithmetic, memory, exchange.

Counted on paper, forward and backward, for each backward pass; `costs` counts whole runs, most of
it forward alone.
"""

import dataclasses
import math

from sparsemlp.cost_models.costs import (
    KINDS,
    MASKED_PRODUCTS,
    Masking,
    Run,
    Shapes,
    activation_elements,
    kept_weights,
    weight_lines,
)
from sparsemlp.errors import InputError
from sparsemlp.rules import Backward

_PARAMETER_BYTES = 4
"""Parameters, gradients and moments are float32, whatever the dtype of the computation."""

_ADAM_PASSES = 7
"""Gradient, weight and both moments are read; weight and both moments are written."""


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """What one device does in a training step.

    Attributes:
      dense_flops: FLOPs of products of whole kernels.
      masked_flops: FLOPs of products of kept blocks.
      moved_bytes: bytes to and from its memory.
      exchanged_bytes: bytes of the gradients that the devices sum, and of the loss.
    """

    dense_flops: int
    masked_flops: int
    moved_bytes: int
    exchanged_bytes: int

    @property
    def flops(self) -> int:
        """FLOPs of all products."""
        return self.dense_flops + self.masked_flops


def step_costs(
    shapes: Shapes, masking: Masking, backward: Backward, run: Run, *, fused: bool = False
) -> StepCosts:
    """What a step costs a device that computes `run.batch_size` images of it.

    Args:
      shapes: the sizes of the model.
      masking: the masked layer kinds; empty is the dense model.
      backward: what the backward pass does with the masks, as in `sparse_linear`.
      run: images of this device, bytes of a number, of a cache line; its length is not used.
      fused: whether the channel MLP is one kernel: hidden units are not written, and computed
        again in the backward pass.

    Raises:
      InputError: a block does not divide its layer, or the channel MLP cannot be fused.
    """
    if fused and (backward != "masked" or not {"XChannel1", "XChannel2"} <= set(masking)):
        raise InputError(
            "the fused channel MLP is counted for two masked layers with the masked backward "
            f"alone, not for {backward}: mask XChannel, or leave the fusion out"
        )
    dense_flops, masked_flops = _flops(shapes, masking, backward, run.batch_size, fused)
    moved = _weight_bytes(shapes, masking, backward, run, fused) + _update_bytes(shapes, masking)
    moved += run.batch_size * _activations(shapes, fused) * run.element_bytes
    return StepCosts(dense_flops, masked_flops, moved, exchanged_bytes(shapes, masking, backward))


def exchanged_bytes(shapes: Shapes, masking: Masking, backward: Backward) -> int:
    """Bytes that `exchange.sum_gradients` and the sum of the loss hand to the all-reduce.

    With the masked backward kept blocks alone, with the others whole kernels; all of everything
    else. Gradients are float32 like the parameters.
    """
    elements = n_parameters(shapes)
    if backward == "masked":
        dropped = (
            math.prod(shapes.kernel(kind)) - kept_weights(shapes, kind, masking) for kind in masking
        )
        elements -= shapes.depth * sum(dropped)
    return _PARAMETER_BYTES * (elements + 1)


def n_parameters(shapes: Shapes) -> int:
    """Parameters of the model."""
    kernels = [shapes.kernel(kind) for kind in KINDS]
    block = sum(math.prod(kernel) + kernel[1] for kernel in kernels)
    return sum(shapes.unmasked_parameters()) + shapes.depth * block


def _flops(
    shapes: Shapes, masking: Masking, backward: Backward, images: int, fused: bool
) -> tuple[int, int]:
    """Of whole kernels and of kept blocks: Y, dX and dW of every layer, no dX of the embedding."""
    embedding = shapes.tokens * shapes.patch_features * shapes.dim
    dense = 2 * embedding + 3 * shapes.dim * shapes.n_classes
    masked = 0
    n_masked = MASKED_PRODUCTS[backward]
    for kind in KINDS:
        whole = shapes.depth * math.prod(shapes.kernel(kind)) * shapes.positions(kind)
        kept = shapes.depth * kept_weights(shapes, kind, masking) * shapes.positions(kind)
        if kind in masking:
            again = int(fused and kind == "XChannel1")
            masked += (n_masked + again) * kept
            dense += (3 - n_masked) * whole
        else:
            dense += 3 * whole
    return 2 * images * dense, 2 * images * masked


def _activations(shapes: Shapes, fused: bool) -> int:
    """Numbers of an image that are read and written: inputs and outputs of Y, of dX and of dW.

    What lies between the layers is taken to be fused into them. A fused channel MLP reads x and
    writes Y, then reads x and dY and writes dX.
    """
    tokens, dim, hidden = shapes.tokens, shapes.dim, shapes.expansion * shapes.dim
    image = shapes.channels * shapes.image_size**2 + tokens * dim
    moved = 3 * activation_elements(shapes) - image
    if fused:
        moved += shapes.depth * (5 * tokens * dim - 3 * 2 * tokens * (dim + hidden))
    return moved


def _weight_bytes(
    shapes: Shapes, masking: Masking, backward: Backward, run: Run, fused: bool
) -> int:
    """Parameters that Y and dX read, gradients that dW writes."""
    unmasked = shapes.unmasked_parameters()
    lines = 3 * sum(run.lines(size) for size in unmasked) - run.lines(unmasked[0])
    for kind in KINDS:
        kept = weight_lines(shapes, kind, masking, run)
        whole = weight_lines(shapes, kind, {}, run)
        of_dx = whole if backward == "dense" else kept
        of_dw = kept if backward == "masked" else whole
        again = kept if fused and kind == "XChannel1" else 0
        biases = 2 * run.lines(shapes.kernel(kind)[1])
        lines += shapes.depth * (kept + of_dx + of_dw + again + biases)
    return lines * run.line_bytes


def _update_bytes(shapes: Shapes, masking: Masking) -> int:
    """Adam's pass over all parameters, and the selection's over the kernels that are masked."""
    scored = shapes.depth * sum(math.prod(shapes.kernel(kind)) for kind in masking)
    return _PARAMETER_BYTES * (_ADAM_PASSES * n_parameters(shapes) + scored)
