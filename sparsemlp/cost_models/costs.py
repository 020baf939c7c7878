"""What block masking saves on paper: loaded weights, FLOPs and memory movement of a training run.

The models are those of Bespalov 2025, as its tables were made; where one of them is wrong, a
corrected one stands beside it. Nothing here is measured. They count the forward pass alone, as the
thesis does, but for `training_flops`.
"""

import dataclasses
import math
from collections.abc import Mapping

from sparsemlp.blocks import Block, block_grid, n_kept_blocks

KINDS: tuple[str, ...] = ("XPatch", "XChannel1", "XChannel2")
"""The linear layers of a ResMLP block that a rule can mask."""

Masking = Mapping[str, tuple[Block, float]]
"""For some of `KINDS` the block and the ratio; the others are dense."""


MASKED_PRODUCTS = {"masked": 3, "straight_through": 2, "dense": 1}
"""Of Y, dX and dW how many have the kept blocks alone, with each backward pass."""


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes of a ResMLP, as in `sparsemlp.ResMLP`.

    Attributes:
      image_size: height and width of an image, in pixels.
      patch_size: height and width of a patch, in pixels.
      channels: colour channels of an image.
      dim: features of a token.
      depth: number of blocks.
      expansion: hidden features over features of the channel MLPs.
      n_classes: number of classes.
    """

    image_size: int = 32
    patch_size: int = 4
    channels: int = 3
    dim: int = 64
    depth: int = 5
    expansion: int = 4
    n_classes: int = 10

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_features(self) -> int:
        """Numbers of one patch."""
        return self.patch_size**2 * self.channels

    def kernel(self, kind: str) -> tuple[int, int]:
        """The kernel `(in, out)` of one of `KINDS`."""
        hidden = self.expansion * self.dim
        shapes = ((self.tokens, self.tokens), (self.dim, hidden), (hidden, self.dim))
        return dict(zip(KINDS, shapes, strict=True))[kind]

    def positions(self, kind: str) -> int:
        """How often an image meets the kernel of one of `KINDS`: its channels, or its tokens."""
        return self.dim if kind == "XPatch" else self.tokens

    def unmasked_parameters(self) -> list[int]:
        """Sizes of the parameters that are never masked, without the biases of `KINDS`."""
        block = [self.dim] * 6
        embedding = [self.patch_features * self.dim, self.dim]
        head = [self.dim, self.dim, self.dim * self.n_classes, self.n_classes]
        return embedding + self.depth * block + head


@dataclasses.dataclass(frozen=True)
class Run:
    """How long is trained, and on what machine.

    Attributes:
      batch_size: images in a step.
      steps_per_epoch: the last partial batch counts.
      epochs: passes over the data.
      images_per_epoch: fewer than its steps have room for if the last batch is a partial one; None
        for whole batches. The thesis' models count whole ones in any case.
      element_bytes: bytes of a number.
      line_bytes: bytes of a cache line.
    """

    batch_size: int = 128
    steps_per_epoch: int = 391
    epochs: int = 200
    element_bytes: int = 4
    line_bytes: int = 128
    images_per_epoch: int | None = None

    @property
    def images(self) -> int:
        """Images of the run, each as often as it is seen."""
        whole = self.batch_size * self.steps_per_epoch
        return self.epochs * (whole if self.images_per_epoch is None else self.images_per_epoch)

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.steps_per_epoch * self.epochs

    def lines(self, n_elements: int) -> int:
        """Cache lines that so many contiguous numbers fill."""
        return math.ceil(n_elements * self.element_bytes / self.line_bytes)


def loaded_elements(shapes: Shapes, masking: Masking, run: Run) -> int:
    """Weights of the layers of `KINDS` that all forward passes load: `k * rows * cols` a layer."""
    return run.steps * shapes.depth * sum(kept_weights(shapes, kind, masking) for kind in KINDS)


def thesis_flops(shapes: Shapes, masking: Masking, run: Run) -> float:
    """FLOPs of the run as the thesis counts them: one image an epoch, forward.

    A masked layer does `1 - ratio` of its work, whatever k is.
    """
    share = {kind: 1 - masking[kind][1] if kind in masking else 1.0 for kind in KINDS}
    work = sum(share[kind] * _multiply_adds(shapes, kind) for kind in KINDS)
    return 2 * run.epochs * (_unmasked_multiply_adds(shapes) + shapes.depth * work)


def training_flops(shapes: Shapes, masking: Masking, run: Run, backward: str = "masked") -> int:
    """FLOPs of the products of the run: every image, Y and dX and dW.

    Args:
      shapes: the sizes of the model.
      masking: the masked layer kinds; empty is the dense model.
      run: its length.
      backward: what the backward pass does with the masks, as in `sparse_linear`.

    Returns:
      The work of the kept blocks where a product has them alone, else of whole kernels. The
      embedding needs no dX. Elementwise work is left out.
    """
    work, n_masked = 0, MASKED_PRODUCTS[backward]
    for kind in KINDS:
        weights = n_masked * kept_weights(shapes, kind, masking)
        weights += (3 - n_masked) * math.prod(shapes.kernel(kind))
        work += weights * shapes.positions(kind)
    embedding = shapes.tokens * shapes.patch_features * shapes.dim
    head = shapes.dim * shapes.n_classes
    per_image = shapes.depth * work + 2 * embedding + 3 * head
    return 2 * run.images * per_image


def thesis_movement_bytes(shapes: Shapes, masking: Masking, run: Run) -> int:
    """Bytes moved by all forward passes as the thesis counts them, at most the dense figure.

    Of a kept block every row starts on a line of its own; the biases of `KINDS` are left out;
    activations are those of one token an image, inputs and outputs of each layer.
    """
    hidden = shapes.expansion * shapes.dim
    block = 2 * shapes.dim + 2 * (shapes.dim + hidden)
    image = shapes.channels * shapes.image_size**2 + shapes.dim
    one_token = image + shapes.depth * block + shapes.dim + shapes.n_classes

    def total(weight_lines: int) -> int:
        lines = weight_lines + sum(run.lines(size) for size in shapes.unmasked_parameters())
        moved = lines * run.line_bytes + run.batch_size * one_token * run.element_bytes
        return run.steps * moved

    masked = sum(_block_lines(shapes, kind, masking, run) for kind in KINDS)
    dense = sum(_dense_lines(shapes, kind, run) for kind in KINDS)
    return min(total(shapes.depth * masked), total(shapes.depth * dense))


def movement_bytes(shapes: Shapes, masking: Masking, run: Run) -> int:
    """Bytes moved by all forward passes, the activations of every token counted.

    The thesis counts one token of an image, which is what makes its figures fall with the ratio at
    all where a model is small. Further: the biases of `KINDS` count, and a layer's lines are at
    most its dense ones, since a line that two blocks share is loaded once.
    """
    activations = run.images * activation_elements(shapes) * run.element_bytes
    lines = sum(run.lines(size) for size in shapes.unmasked_parameters())
    for kind in KINDS:
        weights = weight_lines(shapes, kind, masking, run)
        lines += shapes.depth * (weights + run.lines(shapes.kernel(kind)[1]))
    return run.steps * lines * run.line_bytes + activations


def activation_elements(shapes: Shapes) -> int:
    """Inputs and outputs of all linear layers for one image, every token counted."""
    tokens, dim, hidden = shapes.tokens, shapes.dim, shapes.expansion * shapes.dim
    block = 2 * tokens * dim + 2 * tokens * (dim + hidden)
    image = shapes.channels * shapes.image_size**2 + tokens * dim
    return image + shapes.depth * block + dim + shapes.n_classes


def kept_weights(shapes: Shapes, kind: str, masking: Masking) -> int:
    """Weights of one layer that are kept, `k * rows * cols`."""
    if kind not in masking:
        return math.prod(shapes.kernel(kind))
    return _n_blocks_kept(shapes, kind, masking) * math.prod(masking[kind][0])


def weight_lines(shapes: Shapes, kind: str, masking: Masking, run: Run) -> int:
    """Cache lines of the weights of one layer that are kept, at most the dense ones."""
    return min(_block_lines(shapes, kind, masking, run), _dense_lines(shapes, kind, run))


def _n_blocks_kept(shapes: Shapes, kind: str, masking: Masking) -> int:
    block, ratio = masking[kind]
    down, across = block_grid(shapes.kernel(kind), block, kind)
    return n_kept_blocks(down * across, ratio)


def _multiply_adds(shapes: Shapes, kind: str) -> int:
    """Of one layer and one image, dense."""
    return math.prod(shapes.kernel(kind)) * shapes.positions(kind)


def _unmasked_multiply_adds(shapes: Shapes) -> int:
    """Of embedding and head, for one image."""
    embedding = shapes.tokens * shapes.patch_features * shapes.dim
    return embedding + shapes.dim * shapes.n_classes


def _dense_lines(shapes: Shapes, kind: str, run: Run) -> int:
    return run.lines(math.prod(shapes.kernel(kind)))


def _block_lines(shapes: Shapes, kind: str, masking: Masking, run: Run) -> int:
    """Lines that the kept blocks of one layer touch, each row of a block starting on one."""
    if kind not in masking:
        return _dense_lines(shapes, kind, run)
    (rows, cols), _ = masking[kind]
    return _n_blocks_kept(shapes, kind, masking) * rows * run.lines(cols)
