"""What block masking costs and saves on paper, over a whole training run.

    python experiments/costs.py --out=costs/

writes tables with a row for each block and a column for each ratio, numbers unrounded:

    loaded_elements.csv              weights that the forward passes load
    flops.csv                        FLOPs as the thesis counts them: one image an epoch, forward
    flops_corrected.csv              FLOPs of all images, forward and backward, of kept blocks
    memory_movement.csv              GB (2^30 bytes) that forward passes move, as the thesis counts
    memory_movement_corrected.csv    the same with the activations of all tokens, not of one

--config takes a model string instead and writes costs.csv: those five quantities of that model,
dense and as the string says. Nothing is trained or measured, unless --measured asks for it: on an
NVIDIA GPU with Nsight Compute or NVML that adds measured_traffic.csv (GB), measured_cache_hits.csv
and measured_energy.csv (joules), of whole training steps.

    python experiments/costs.py scaling --out=scaling/

is the time of a training step on 1 to 1024 devices, on paper: a table and a picture of where block
sparsity pays (`--help` after `scaling` lists its options).
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cost_tables.measured_costs import measured_tables
from cost_tables.model_shapes import check_blocks, masked_kinds, model_shapes, refuse_beside_config
from cost_tables.scaling_costs import Scaling, write_scaling
from rich.console import Console
from rich.table import Table
from tuning.checksum import library_checksum

from sparsemlp import InputError, parse_block, parse_model
from sparsemlp.blocks import Block, check_ratio, format_block
from sparsemlp.cost_models import costs
from sparsemlp.cost_models.costs import Masking, Run, Shapes
from sparsemlp.engines import check_engine
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import make_folder, write_csv
from sparsemlp.options import cli, open_default
from sparsemlp.plan import Plan
from sparsemlp.runs.history import History
from sparsemlp.studies.run_costs import masking_by_kind

SIDES = (2, 4, 8, 16, 32, 64)
THESIS_BLOCKS = (
    "1x1",
    *(f"1x{n}" for n in SIDES),
    *(f"{n}x1" for n in SIDES),
    *(f"{n}x{n}" for n in SIDES),
)
"""The 19 blocks of the thesis' grid."""
THESIS_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

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
    config: Annotated[str | None, open_default("TEXT", "none")] = None
    """Model string: its depth and its masks, in the place of the grid."""
    blocks: Annotated[
        tuple[str, ...] | None, open_default("ROWSxCOLS [ROWSxCOLS ...]", "the 19 of the thesis")
    ] = None
    """Blocks of the grid."""
    ratios: Annotated[tuple[float, ...] | None, open_default("FLOAT [FLOAT ...]", "0.1 to 0.9")] = (
        None
    )
    """Ratios of the grid."""
    mask_layers: Annotated[str | None, open_default("KIND,KIND", "XPatch,XChannel")] = None
    """Layer kinds to mask: XPatch, XChannel (or XChannel1, XChannel2)."""
    image_size: Annotated[int | None, open_default("INT", "the preset's")] = None
    """Height and width of an image, in pixels."""
    images: Annotated[int | None, open_default("INT", "50,000; ImageNet: 1,281,167")] = None
    """Images of an epoch."""
    batch_size: Annotated[int | None, open_default("INT", "128; ImageNet: 64")] = None
    """Images in a step."""
    epochs: Annotated[int | None, open_default("INT", "200; ImageNet: 90")] = None
    """Epochs of the run."""
    element_bytes: int = 4
    """Bytes of a number."""
    line_bytes: int = 128
    """Bytes of a cache line."""
    measured: bool = False
    """Measure traffic, cache hits and energy of a step of every cell too, where counters are. Each
    cell is kept in measured.jsonl; the same command goes on after a stop, with the same code."""
    engine: str = "auto"
    """Who computes the masked layers that are measured: auto, or the name of an engine. On a GPU
    without a table of measurements auto is XLA, which skips no block."""


def count_costs(options: Costs) -> None:
    """Writes the tables, and prints the dense figures and shares of them."""
    make_folder(options.out, f"--out={options.out}")
    if options.measured and options.config is not None:
        raise InputError("--measured measures the grid: leave out --config")
    if options.engine != "auto" and not options.measured:
        raise InputError(f"--engine={options.engine} computes what --measured measures: give both")
    check_engine(options.engine)
    if options.config is not None:
        refuse_beside_config(options, "blocks", "ratios", "mask_layers")
    depth, plan = (None, None) if options.config is None else parse_model(options.config)
    shapes = model_shapes(options.model, depth, options.image_size)
    run = _run(options)
    if plan is None:
        _write_grid(options, shapes, run)
    else:
        _write_config(options, shapes, run, plan)
    print(f"tables in {options.out}")


def _run(options: Costs) -> Run:
    small = options.model == "resmlp_cifar10"
    batch_size = _default(options.batch_size, 128 if small else 64)
    images = _default(options.images, 50_000 if small else 1_281_167)
    for name, value in (("batch_size", batch_size), ("images", images)):
        if value < 1:
            raise InputError(f"{name} is {value}: all sizes must be at least 1")
    run = Run(
        batch_size=batch_size,
        steps_per_epoch=math.ceil(images / batch_size),
        epochs=_default(options.epochs, 200 if small else 90),
        element_bytes=options.element_bytes,
        line_bytes=options.line_bytes,
        images_per_epoch=images,
    )
    for field in dataclasses.fields(run):
        if getattr(run, field.name) < 1:
            value = getattr(run, field.name)
            raise InputError(f"{field.name} is {value}: all sizes must be at least 1")
    return run


def _default[T](value: T | None, default: T) -> T:
    return default if value is None else value


def _write_grid(options: Costs, shapes: Shapes, run: Run) -> None:
    mask_layers = _default(options.mask_layers, "XPatch,XChannel")
    kinds = masked_kinds(mask_layers)
    blocks = [parse_block(text) for text in _default(options.blocks, THESIS_BLOCKS)]
    ratios = _default(options.ratios, THESIS_RATIOS)
    for ratio in ratios:
        check_ratio(ratio)
    if not blocks or not ratios:
        raise InputError("--blocks and --ratios must name at least one each")
    for name, values in (("--blocks", blocks), ("--ratios", ratios)):
        if len(set(values)) < len(values):
            raise InputError(f"{name} names one twice: give each once")
    check_blocks(blocks, kinds, shapes)
    shown = Table(title=f"{options.model}: of the dense model's, at ratio {ratios[-1]:g}")
    for heading in ("", "unit", "dense", *(format_block(b) for b in (blocks[0], blocks[-1]))):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, (count, unit) in QUANTITIES.items():
        dense = count(shapes, {}, run)
        rows = [
            [count(shapes, dict.fromkeys(kinds, (block, r)), run) for r in ratios]
            for block in blocks
        ]
        _write_table(options.out / f"{name}.csv", blocks, ratios, rows)
        shares = (f"{rows[index][-1] / dense:.1%}" for index in (0, -1))
        shown.add_row(name, unit, f"{dense:.6g}", *shares)
    if options.measured:
        history = History(options.out / "measured.jsonl")
        given = shapes, run, blocks, ratios, mask_layers, print, history, library_checksum()
        for name, rows in measured_tables(*given, options.engine):
            _write_table(options.out / f"{name}.csv", blocks[: len(rows)], ratios, rows)
    Console().print(shown)


def _write_table(
    path: Path, blocks: Iterable[Block], ratios: Iterable[float], rows: Iterable[Iterable[float]]
) -> None:
    write_csv(
        path,
        ["Block_Size", *map(_heading, ratios)],
        [[format_block(block), *row] for block, row in zip(blocks, rows, strict=True)],
    )


def _heading(ratio: float) -> str:
    """A ratio, short if that is all of it."""
    short = f"{ratio:g}"
    return short if float(short) == ratio else repr(ratio)


def _write_config(options: Costs, shapes: Shapes, run: Run, plan: Plan) -> None:
    masking = masking_by_kind(plan)
    if not masking:
        raise InputError(
            f"--config={options.config!r} masks nothing: give a kind a mask; rules for activations "
            "and gradients are no part of these tables"
        )
    for kind, (block, _) in masking.items():
        check_blocks([block], [kind], shapes, "another block in --config")
    shown = Table(title=f"{options.config}")
    for heading in ("", "unit", "dense", "masked", "share"):
        shown.add_column(heading, justify="right" if heading else "left")
    rows: list[list[Any]] = []
    for name, (count, unit) in QUANTITIES.items():
        dense, masked = count(shapes, {}, run), count(shapes, masking, run)
        rows.append([name, unit, dense, masked, masked / dense])
        shown.add_row(name, unit, f"{dense:.6g}", f"{masked:.6g}", f"{masked / dense:.1%}")
    write_csv(options.out / "costs.csv", ["quantity", "unit", "dense", "masked", "share"], rows)
    Console().print(shown)


def main(words: Sequence[str]) -> int:
    """Writes what a command line asks for; the exit code."""

    def program() -> None:
        if words[:1] == ["scaling"]:
            write_scaling(cli(Scaling, prog="costs.py scaling", args=words[1:]))
        else:
            count_costs(cli(Costs, description=__doc__, args=words))

    return exit_code(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
