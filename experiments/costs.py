"""What block masking costs and saves on paper, over a whole training run.

    python experiments/costs.py --out=costs/

writes tables with a row for each block and a column for each ratio, numbers unrounded:

loaded_elements.csv              weights that the forward passes load
flops.csv                        FLOPs as the thesis counts them: one image an epoch, forward
flops_corrected.csv              FLOPs of all images, forward and backward, of kept blocks
memory_movement.csv              GB (2^30 bytes) moved by the forward passes, as the thesis counts
memory_movement_corrected.csv    the same with the activations of all tokens, not of one

--config takes a model string instead and writes costs.csv: those five quantities of that model,
dense and as the string says. Nothing is trained or measured, unless --measured asks for it: on an
NVIDIA GPU with Nsight Compute or NVML that adds measured_traffic.csv (GB), measured_cache_hits.csv
and measured_energy.csv (joules), of whole training steps.
"""

import csv
import dataclasses
import io
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tyro
from measured_costs import measured_tables
from rich.console import Console
from rich.table import Table

import sparsemlp
from sparsemlp import InputError, costs, parse_block, parse_model
from sparsemlp.blocks import Block, check_ratio, divides, format_block, why_indivisible
from sparsemlp.costs import KINDS, Masking, Run, Shapes
from sparsemlp.errors import SaveError
from sparsemlp.files import write_whole
from sparsemlp.plan import Plan, masking_for

SIDES = (2, 4, 8, 16, 32, 64)
THESIS_BLOCKS = (
    "1x1",
    *(f"1x{n}" for n in SIDES),
    *(f"{n}x1" for n in SIDES),
    *(f"{n}x{n}" for n in SIDES),
)
"""The 19 blocks of the thesis' grid."""
THESIS_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

MODELS = {
    model.__name__: model
    for model in (
        sparsemlp.resmlp_cifar10,
        sparsemlp.resmlp_imagenet,
        sparsemlp.resmlp_s12,
        sparsemlp.resmlp_s24,
        sparsemlp.resmlp_s36,
        sparsemlp.resmlp_b24,
    )
}

QUANTITIES: dict[str, tuple[Callable[[Shapes, Masking, Run], float], str]] = {
    "loaded_elements": (costs.loaded_elements, "weights"),
    "flops": (costs.thesis_flops, "FLOPs"),
    "flops_corrected": (costs.training_flops, "FLOPs"),
    "memory_movement": (lambda *a: costs.thesis_movement_bytes(*a) / 2**30, "GB"),
    "memory_movement_corrected": (lambda *a: costs.movement_bytes(*a) / 2**30, "GB"),
}


@dataclasses.dataclass(frozen=True)
class Costs:
    """What block masking costs and saves on paper, over a whole training run."""

    out: Path = Path("costs")
    """Folder of the tables."""
    model: str = "resmlp_cifar10"
    """Preset: resmlp_cifar10, resmlp_imagenet, resmlp_s12, resmlp_s24, resmlp_s36, resmlp_b24."""
    config: str | None = None
    """Model string: its depth and its masks, in the place of the grid."""
    blocks: tuple[str, ...] = THESIS_BLOCKS
    """Blocks of the grid, ROWSxCOLS."""
    ratios: tuple[float, ...] = THESIS_RATIOS
    """Ratios of the grid."""
    mask_layers: str = "XPatch,XChannel"
    """Layer kinds to mask: XPatch, XChannel (or XChannel1, XChannel2)."""
    image_size: int | None = None
    """Height and width of an image, in pixels (default: the preset's)."""
    images: int | None = None
    """Images of an epoch (default: 50,000, and 1,281,167 of ImageNet)."""
    batch_size: int | None = None
    """Images in a step (default: 128, and 64 for ImageNet)."""
    epochs: int | None = None
    """Epochs (default: 200, and 90 for ImageNet)."""
    element_bytes: int = 4
    """Bytes of a number."""
    line_bytes: int = 128
    """Bytes of a cache line."""
    measured: bool = False
    """Measure traffic, cache hits and energy of a step of every cell too, where counters are."""


def count_costs(options: Costs) -> None:
    """Writes the tables, and prints the dense figures and shares of them."""
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out={options.out} is no folder to write to: {error.strerror}"
        ) from error
    if options.measured and options.config is not None:
        raise InputError("--measured measures the grid: leave out --config")
    depth, plan = (None, None) if options.config is None else parse_model(options.config)
    shapes, run = _shapes(options, depth), _run(options)
    if plan is None:
        _write_grid(options, shapes, run)
    else:
        _write_config(options, shapes, run, plan)
    print(f"tables in {options.out}")


def _shapes(options: Costs, depth: int | None) -> Shapes:
    if options.model not in MODELS:
        raise InputError(f"--model={options.model} is unknown: choose one of {', '.join(MODELS)}")
    chosen = {"depth": depth, "image_size": options.image_size}
    model = MODELS[options.model](**{k: v for k, v in chosen.items() if v is not None})
    shapes = Shapes(*(getattr(model, field.name) for field in dataclasses.fields(Shapes)))
    if shapes.image_size < 1 or shapes.image_size % shapes.patch_size:
        raise InputError(
            f"--image-size={shapes.image_size} is no multiple of the {shapes.patch_size} pixels of "
            f"a patch of {options.model}"
        )
    return shapes


def _run(options: Costs) -> Run:
    small = options.model == "resmlp_cifar10"
    batch_size = options.batch_size or (128 if small else 64)
    images = options.images or (50_000 if small else 1_281_167)
    run = Run(
        batch_size=batch_size,
        steps_per_epoch=math.ceil(images / batch_size),
        epochs=options.epochs or (200 if small else 90),
        element_bytes=options.element_bytes,
        line_bytes=options.line_bytes,
    )
    for field in dataclasses.fields(run):
        if getattr(run, field.name) < 1:
            value = getattr(run, field.name)
            raise InputError(f"{field.name} is {value}: all sizes must be at least 1")
    return run


def _masked_kinds(text: str) -> list[str]:
    kinds: list[str] = []
    for word in text.split(","):
        found = [kind for kind in KINDS if kind == word.strip() or kind[:-1] == word.strip()]
        if not found:
            known = "XPatch, XChannel, XChannel1, XChannel2"
            raise InputError(f"--mask-layers names {word.strip()!r}: choose from {known}")
        kinds += found
    return kinds


def _check_blocks(blocks: Iterable[Block], kinds: Iterable[str], shapes: Shapes) -> None:
    """Raises InputError that lists every block that does not divide a layer."""
    pairs = [(block, kind) for block in blocks for kind in kinds]
    broken = [
        why_indivisible(block, shapes.kernel(kind), kind)
        for block, kind in pairs
        if not divides(block, shapes.kernel(kind))
    ]
    if broken:
        listed = "\n  ".join(broken)
        raise InputError(f"choose other --blocks or --mask-layers:\n  {listed}")


def _write_grid(options: Costs, shapes: Shapes, run: Run) -> None:
    kinds = _masked_kinds(options.mask_layers)
    blocks = [parse_block(text) for text in options.blocks]
    for ratio in options.ratios:
        check_ratio(ratio)
    if not blocks or not options.ratios:
        raise InputError("--blocks and --ratios must name at least one each")
    _check_blocks(blocks, kinds, shapes)
    shown = Table(title=f"{options.model}: of the dense model's, at ratio {options.ratios[-1]:g}")
    for heading in ("", "unit", "dense", *(format_block(b) for b in (blocks[0], blocks[-1]))):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, (count, unit) in QUANTITIES.items():
        dense = count(shapes, {}, run)
        rows = [
            [count(shapes, dict.fromkeys(kinds, (block, r)), run) for r in options.ratios]
            for block in blocks
        ]
        _write_table(options, name, blocks, rows)
        shares = (f"{rows[index][-1] / dense:.1%}" for index in (0, -1))
        shown.add_row(name, unit, f"{dense:.6g}", *shares)
    if options.measured:
        measured = measured_tables(shapes, run, blocks, options.ratios, options.mask_layers, print)
        for name, rows in measured.items():
            _write_table(options, name, blocks, rows)
    Console().print(shown)


def _write_table(
    options: Costs, name: str, blocks: Iterable[Block], rows: Iterable[Iterable[float]]
) -> None:
    _write(
        options.out / f"{name}.csv",
        ["Block_Size", *(f"{ratio:g}" for ratio in options.ratios)],
        [[format_block(block), *row] for block, row in zip(blocks, rows, strict=True)],
    )


def _write_config(options: Costs, shapes: Shapes, run: Run, plan: Plan) -> None:
    rules = {kind: masking_for(plan, ("block_0", kind, "kernel")) for kind in KINDS}
    masking = {kind: (rule.block, rule.ratio) for kind, rule in rules.items() if rule is not None}
    for kind, (block, _) in masking.items():
        _check_blocks([block], [kind], shapes)
    shown = Table(title=f"{options.config}")
    for heading in ("", "unit", "dense", "masked", "share"):
        shown.add_column(heading, justify="right" if heading else "left")
    rows: list[list[Any]] = []
    for name, (count, unit) in QUANTITIES.items():
        dense, masked = count(shapes, {}, run), count(shapes, masking, run)
        rows.append([name, unit, dense, masked, masked / dense])
        shown.add_row(name, unit, f"{dense:.6g}", f"{masked:.6g}", f"{masked / dense:.1%}")
    _write(options.out / "costs.csv", ["quantity", "unit", "dense", "masked", "share"], rows)
    Console().print(shown)


def _write(path: Path, heading: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([heading, *rows])
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


if __name__ == "__main__":
    try:
        count_costs(tyro.cli(Costs, description=__doc__))
    except (InputError, SaveError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
