"""One masked convolution: its three products against XLA's dense ones."""

import dataclasses
import functools
import math
import statistics
from typing import Annotated, Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import tyro
from jaxtyping import Array
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Contender, describe_machine, repeated, steps_in_a_turn, take_turns
from pallas_kernels import dense, dense_convolution
from pallas_kernels.dense_convolution import Geometry
from sparsemlp import BlockMask, InputError, parse_block, select_blocks
from sparsemlp.blocks import parse_shape
from sparsemlp.configuration.option_ranges import Precision
from sparsemlp.engines import check_convolving, choose_convolving
from sparsemlp.errors import require_known
from sparsemlp.mask_trees import list_masks
from sparsemlp.masked_kernel import masked_kernel
from sparsemlp.masks import KeptByProduct
from sparsemlp.runs.environment import describe_environment
from sparsemlp.windows import window_geometry


@dataclasses.dataclass(frozen=True)
class Convolution:
    """One masked convolution: its three products against XLA's dense ones."""

    shape: tuple[str, ...] = ("64x64", "128x128", "256x256")
    """Channels of x and of y, INxOUT."""
    block: tuple[str, ...] = ("32x32", "16x16")
    """Blocks of the kernel as a matrix, ROWSxCOLS: rows over outputs."""
    ratio: tuple[float, ...] = (0.5, 0.8)
    """Fractions of blocks to drop, in (0, 1)."""
    window: str = "3x3"
    """Height and width of the kernel."""
    stride: int = 1
    """Pixels from one output to the next."""
    size: int = 16
    """Height and width of an image."""
    images: int = 128
    """Images in a batch."""
    engine: str = "auto"
    """Who multiplies the kept blocks: auto, cpu, triton, jax-triton, reference."""
    precision: str = "float32"
    """Of images and kernels: float32, bfloat16."""
    rounds: int = 9
    """How often each contender takes its turn, of 20 ms or more; the median is over these."""


class Tensors(NamedTuple):
    """What a convolution and its backward pass are given."""

    x: Array
    kernel: Array
    bias: Array
    dy: Array
    kept: KeptByProduct
    """As the engines take it: a program knows none of the blocks that it is given."""


def measure_convolution(options: Annotated[Convolution, tyro.conf.arg(name="")]) -> None:
    """One masked convolution: its three products against XLA's dense ones."""
    for name in ("stride", "size", "images", "rounds"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name}={getattr(options, name)} must be at least 1")
    for ratio in options.ratio:
        if not 0 < ratio < 1:
            raise InputError(f"--ratio={ratio} is not in (0, 1)")
    require_known(f"--precision={options.precision}", options.precision, get_args(Precision))
    check_convolving(options.engine, _window(options))
    table = Table(
        title=f"{options.images} images of {options.size}x{options.size}, kernel {options.window}, "
        f"stride {options.stride}, {options.precision}: dense / this; engine {options.engine}",
        caption=f"medians of {options.rounds} turns\n" + describe_machine(describe_environment()),
    )
    for name in ("in x out", "block", "ratio", "Y", "dX", "dW, db", "all"):
        table.add_column(name, justify="right")
    cases = [
        (shape, block, ratio)
        for shape in options.shape
        for block in options.block
        for ratio in options.ratio
    ]
    masks = [_mask(shape, block, ratio, options) for shape, block, ratio in cases]
    for (shape, block, ratio), mask in zip(cases, masks, strict=True):
        if mask.keeps_all:
            raise InputError(
                f"--ratio={ratio:g} drops none of the {mask.n_blocks} blocks {block} of {shape}: "
                "choose a larger one, or smaller blocks"
            )
    for (shape, block, ratio), mask in zip(cases, masks, strict=True):
        found = measure_products(parse_shape(shape), mask, options)
        dense_seconds, own = ([found[f"{by} {n}"] for n in _PRODUCTS] for by in ("dense", "masked"))
        gains = [a / b for a, b in zip(dense_seconds, own, strict=True)]
        gains.append(sum(dense_seconds) / sum(own))
        table.add_row(shape, block, f"{ratio:g}", *(f"{gain:.2f}x" for gain in gains))
    Console(width=110).print(table)


_PRODUCTS = ("y", "dx", "dw")


def measure_products(
    shape: tuple[int, int], mask: BlockMask, options: Convolution
) -> dict[str, float]:
    """The median seconds of each product, dense and masked taking turns."""
    size, image = _window(options), (options.size, options.size)
    geometry = window_geometry(image, size, (options.stride, options.stride), "SAME")
    n_rows = options.images * math.prod(geometry.outputs(image, size))
    # Lists, where an engine takes them, are made once, as in a training step for all its products.
    listed = list_masks({"kernel": mask}, options.engine)["kernel"]
    choose = functools.partial(choose_convolving, n_channels=shape[0], n_rows=n_rows)
    masked = masked_kernel(listed, -1, options.precision, "masked", options.engine, choose)
    assert masked is not None, "measure_convolution lets no mask through that keeps all"
    matrix, (by_y, by_dx, by_dw) = masked.matrix, masked.engines
    tensors = _tensors(shape, size, geometry, masked.kept, options)
    phases: dict[str, Any] = {
        "dense y": lambda t: (
            dense_convolution.product(t.x, t.kernel, geometry) + t.bias[None, None, None, :]
        ),
        "dense dx": lambda t: dense_convolution.input_gradient(t.dy, t.kernel, image, geometry),
        "dense dw": lambda t: (
            dense_convolution.kernel_gradient(t.x, t.dy, size, geometry),
            dense.bias_gradient(t.dy, -1),
        ),
        "masked y": lambda t: by_y.convolution(
            t.x, t.kernel, t.bias, t.kept.product, matrix, geometry
        ),
        "masked dx": lambda t: by_dx.convolution_input_gradient(
            t.dy, t.kernel, t.kept.input_gradient, matrix, image, geometry
        ),
        "masked dw": lambda t: by_dw.convolution_gradients(
            t.x, t.dy, t.kept.kernel_gradient, matrix, size, geometry
        ),
    }
    contenders: dict[str, Contender] = {n: repeated(own, tensors) for n, own in phases.items()}
    steps = {name: steps_in_a_turn(run) for name, run in contenders.items()}
    seconds = take_turns(contenders, options.rounds, steps)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _mask(shape: str, block: str, ratio: float, options: Convolution) -> BlockMask:
    """A mask of random weights."""
    kernel = jax.random.normal(jax.random.key(4), (*_window(options), *parse_shape(shape)))
    return select_blocks(kernel, parse_block(block), ratio, name=f"the kernel of --shape {shape}")


def _tensors(
    shape: tuple[int, int],
    size: tuple[int, int],
    geometry: Geometry,
    kept: KeptByProduct,
    options: Convolution,
) -> Tensors:
    keys = jax.random.split(jax.random.key(0), 3)
    image = (options.size, options.size)
    outputs = geometry.outputs(image, size)
    normal = functools.partial(jax.random.normal, dtype=options.precision)
    return Tensors(
        x=normal(keys[0], (options.images, *image, shape[0])),
        kernel=normal(keys[1], (*size, *shape)),
        bias=jnp.zeros(shape[1], options.precision),
        dy=normal(keys[2], (options.images, *outputs, shape[1])),
        kept=kept,
    )


def _window(options: Convolution) -> tuple[int, int]:
    return parse_block(options.window, "--window", "HEIGHTxWIDTH", "height and width in pixels")
