"""The products of one masked linear layer, each against XLA's dense one."""

import dataclasses
import functools
import math
import statistics
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.linear_phases import n_flops, phases, random_tensors
from benchmarks.linear_points import Linear, Point, choose_points
from benchmarks.timing import (
    Contender,
    Peak,
    describe_machine,
    measured_peak,
    quartiles,
    repeated,
    steps_in_a_turn,
    take_turns,
)
from sparsemlp import select_blocks
from sparsemlp.blocks import format_block
from sparsemlp.files import Record, write_json
from sparsemlp.rules import Backward, check_backward
from sparsemlp.runs.environment import describe_environment


def measure_linear(options: Annotated[Linear, tyro.conf.arg(name="")]) -> None:
    """The products of one masked linear layer, each against XLA's dense one."""
    backward = check_backward(options.backward)
    points = choose_points(options)
    peak = measured_peak()
    records: list[Record] = []
    with Console(stderr=True).status("") as status:
        for number, point in enumerate(points, start=1):
            status.update(f"{number} of {len(points)}: {point}")
            records.append(measure_point(point, options, backward, peak))
    environment = describe_environment()
    Console(width=100).print(linear_table(records, options, peak, environment))
    if options.out is not None:
        record = {
            "options": _plain(options),
            "peak": dataclasses.asdict(peak),
            "points": records,
            "environment": environment,
        }
        write_json(options.out, record)


def measure_point(point: Point, options: Linear, backward: Backward, peak: Peak) -> Record:
    """Measures a row of the table.

    All contenders take turns. A ratio is the median of the dense turns over the median of the
    sparse ones, above 1 where sparse is faster; the quartiles are those of the ratios that the
    single rounds of forward and backward have.
    """
    layer, block = point.layer, point.layer.block
    tensors = random_tensors(layer, options.rows, options.channels, point.ratio)
    steps_of = functools.partial(repeated, tensors=tensors, reuse=options.reuse)
    contenders: dict[str, Contender] = {
        "selection": steps_of(lambda t: select_blocks(t.kernel, block, point.ratio))
    }
    compared = phases(options.engine, layer, backward)
    for name, (baseline, sparse) in compared.items():
        contenders[f"{name}_dense"] = steps_of(baseline)
        contenders[f"{name}_sparse"] = steps_of(sparse)
    steps = {name: steps_in_a_turn(run) for name, run in contenders.items()}
    seconds = take_turns(contenders, options.rounds, steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    both = medians["forward_backward_sparse"]
    gflops = n_flops(layer, options.rows, backward) / both / 1e9
    rounds = zip(seconds["forward_backward_dense"], seconds["forward_backward_sparse"], strict=True)
    return {
        "shape": "x".join(map(str, layer.kernel_shape)),
        "block": format_block(block),
        "ratio": point.ratio,
        "density": layer.n_kept * math.prod(block) / math.prod(layer.kernel_shape),
        "engine": "+".join(point.engines),
        "median_ms": {name: 1e3 * median for name, median in medians.items()},
        "dense_over_sparse": {
            name: medians[f"{name}_dense"] / medians[f"{name}_sparse"] for name in compared
        },
        "forward_backward_quartiles": list(quartiles([before / now for before, now in rounds])),
        "gflops": gflops,
        "share_of_peak": gflops / peak.gflops,
        "selection_share": medians["selection"] / both,
    }


def linear_table(records: list[Record], options: Linear, peak: Peak, environment: Record) -> Table:
    """The records of `measure_point` as a table of 100 columns at most."""
    engines = ", ".join(dict.fromkeys(record["engine"] for record in records))
    over = f"tokens, {options.channels} channels" if options.tokens else "features"
    table = Table(
        title=f"linear layer over {over}, {options.rows} rows, {options.precision}, backward "
        f"{options.backward}: XLA's dense / engine {engines}",
        caption=f"results {'reused' if options.reuse else 'fresh'}; medians of {options.rounds} "
        "turns, quartiles of their ratios; GFLOP/s: kept weights in forward + backward; peak "
        f"{peak.gflops:.0f} GFLOP/s, {peak.source}; select: time of select_blocks beside forward "
        "+ backward\n" + describe_machine(environment),
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    for name in ("in x out", "block", "ratio"):
        table.add_column(name)
    for name in ("forward", "dX", "dW, db", "forward +\nbackward", "quartiles"):
        table.add_column(name, justify="right")
    for name in ("GFLOP/s", "of peak", "select"):
        table.add_column(name, justify="right")
    for record in records:
        speedup = record["dense_over_sparse"]
        low, high = record["forward_backward_quartiles"]
        table.add_row(
            record["shape"],
            record["block"],
            f"{record['ratio']:g}",
            *(
                f"{speedup[name]:.2f}x" if name in speedup else "dense"
                for name in ("forward", "input_gradient", "parameter_gradients", "forward_backward")
            ),
            f"{low:.2f}-{high:.2f}",
            f"{record['gflops']:.0f}",
            f"{record['share_of_peak']:.0%}",
            f"{record['selection_share']:.1%}",
        )
    return table


def _plain(options: Linear) -> Record:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(options).items()
        if name != "out"
    }
