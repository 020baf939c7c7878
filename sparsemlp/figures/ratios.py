"""What a ratio really drops and saves: masked elements and FLOPs against the target ratio."""

import collections
from collections.abc import Iterable, Iterator

import numpy as np
from matplotlib.figure import Figure

from sparsemlp.blocks import divides, parse_block
from sparsemlp.cost_models import costs
from sparsemlp.cost_models.costs import Masking
from sparsemlp.figures.drawing import ONE_MASK, Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.style import COLORS, DASHES, MARKERS, WIDTH, sort_blocks
from sparsemlp.studies.run_costs import dropped_share, is_constant, masking_of, shapes_of
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

_THESIS_BLOCKS = ("2x2", "32x32", "64x64")
_NONE = f"no ResMLP run with {ONE_MASK}, a constant ratio and the uniform budget"
_RATIOS = np.arange(0, 1, 0.005)


def masked_elements(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Share of the weights that are dropped against the ratio: steps, and plateaus at the end."""
    runs = [
        run
        for run in _masked(study)
        if np.isfinite(run.last("density")) and run.last("epoch") > _first_masked_epoch(run)
    ]
    if not runs:
        raise NothingToDrawError(f"{_NONE} records its density after its first masked epoch")
    figure = Figure(figsize=(0.68 * WIDTH, 3.4))
    axes = figure.subplots()
    axes.plot((0, 1), (0, 1), color="#9aa3ab", linewidth=0.8, label="target")
    for index, block in enumerate(_some_blocks(runs)):
        own = [run for run in runs if run.block == block]
        color = COLORS[1 + index]
        # A line for each size of the network and choice of layers.
        for shapes, kinds in dict.fromkeys(map(_what_is_masked, filter(_has_shapes, own))):
            size = parse_block(block)
            shares = [dropped_share(shapes, kinds, size, float(ratio)) for ratio in _RATIOS]
            dash = DASHES[index % len(DASHES)]
            axes.plot(_RATIOS, shares, dash, color=color, drawstyle="steps-mid", linewidth=1.2)
        axes.plot(
            [run.masking.ratio for run in own if run.masking],
            [1 - run.last("density") for run in own],
            MARKERS[index],
            color=color,
            markerfacecolor="white",
            label=block,
            clip_on=False,
            zorder=3,
        )
    axes.set(xlabel="ratio", ylabel="share of the weights dropped", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(title="markers: runs, lines: computed")
    figure.suptitle("masked elements")
    yield Drawing(
        "masked_elements",
        figure,
        "Share of the masked layers' weights that are dropped against the ratio that was asked "
        "for: k is rounded up to whole blocks, so large blocks make steps.",
    )


def flops(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """FLOPs against the ratio, by the thesis' model and with whole blocks counted."""
    known = [run for run in _masked(study) if _has_shapes(run)]
    if not known:
        raise NothingToDrawError(f"{_NONE} is on data with known costs")
    counts = collections.Counter((_what_is_masked(run), _length(run)) for run in known)
    ((shapes, kinds), length), _ = counts.most_common(1)[0]
    of_most = (shapes, kinds), length
    runs = [run for run in known if (_what_is_masked(run), _length(run)) == of_most]
    figure = Figure(figsize=(WIDTH, 3.0))
    thesis, counted = figure.subplots(1, 2)
    dense = costs.thesis_flops(shapes, {}, length)
    line = [costs.thesis_flops(shapes, _all(kinds, (1, 1), float(r)), length) for r in _RATIOS]
    thesis.plot(_RATIOS, np.array(line) / 1e9, color=COLORS[0], linewidth=1, label="thesis' model")
    ratios = sorted({run.masking.ratio for run in runs if run.masking is not None})
    points = [costs.thesis_flops(shapes, _all(kinds, (1, 1), r), length) for r in ratios]
    thesis.plot(ratios, np.array(points) / 1e9, "o", color=COLORS[0], label="ratios of the runs")
    for ratio, value in zip(ratios, points, strict=True):
        if ratio == chosen.ratio:
            thesis.annotate(
                f"{dense / value:.1f}x fewer",
                (ratio, value / 1e9),
                xytext=(4, 5),
                textcoords="offset points",
                fontsize=7.5,
            )
    thesis.set(
        title="thesis: one image an epoch, forward",
        xlabel="ratio",
        ylabel="GFLOPs of the run",
        xlim=(0, 1),
        ylim=(0, None),
    )
    thesis.legend(loc="lower left")
    for index, block in enumerate(_some_blocks(runs)):
        trained = [run for run in runs if run.backward == "masked" and run.block == block]
        own = sorted({run.masking.ratio for run in trained if run.masking})
        size, color, dash = parse_block(block), COLORS[1 + index], DASHES[index % len(DASHES)]
        every = (_all(kinds, size, float(ratio)) for ratio in _RATIOS)
        values = [costs.training_flops(shapes, masking, length) for masking in every]
        at = [costs.training_flops(shapes, _all(kinds, size, r), length) for r in own]
        counted.plot(_RATIOS, np.array(values) / 1e15, dash, color=color, drawstyle="steps-mid")
        counted.plot(
            own,
            np.array(at) / 1e15,
            MARKERS[index],
            color=color,
            markerfacecolor="white",
            label=block,
        )
    counted.set(
        title="all images, masked backward",
        xlabel="ratio",
        ylabel="PFLOPs of the run",
        xlim=(0, 1),
        ylim=(0, None),
    )
    counted.legend(title="blocks", loc="lower left")
    others = len(known) - len(runs)
    left_out = f"; {others} of other sizes, layers or lengths left out" if others else ""
    figure.suptitle(f"FLOPs of {length.epochs} epochs (theoretical){left_out}")
    yield Drawing(
        "flops",
        figure,
        "Theoretical FLOPs of a run against the ratio: left as the thesis counts them, linear in "
        "the ratio; right the products of the kept blocks over all images, masked backward.",
    )


def _what_is_masked(run: StudyRun) -> tuple[costs.Shapes, tuple[str, ...]]:
    """The sizes of the network and the kinds of its layers that are masked."""
    assert run.settings is not None
    shapes = shapes_of(run.settings)
    assert shapes is not None
    return shapes, tuple(masking_of(run.settings))


def _length(run: StudyRun) -> costs.Run:
    assert run.settings is not None
    return costs.Run(
        run.settings.batch_size,
        run.steps_per_epoch or 1,
        run.settings.epochs,
        images_per_epoch=run.images_per_epoch,
    )


def _all(kinds: Iterable[str], block: tuple[int, int], ratio: float) -> Masking:
    return dict.fromkeys(kinds, (block, ratio))


def _masked(study: Study) -> list[StudyRun]:
    return [
        run
        for run in study.trained
        if run.masking is not None
        and run.settings is not None
        and run.settings.model == "resmlp"
        and is_constant(run.settings)
    ]


def _first_masked_epoch(run: StudyRun) -> int:
    """From 0; before it nothing is dropped yet."""
    return 0 if run.settings is None else run.settings.mask_start_epoch or 0


def _has_shapes(run: StudyRun) -> bool:
    """Whether the sizes of a run's layers are known, and its blocks divide them."""
    shapes = None if run.settings is None else shapes_of(run.settings)
    if shapes is None or run.masking is None:
        return False
    _, kinds = _what_is_masked(run)
    return all(divides(run.masking.block, shapes.kernel(kind)) for kind in kinds)


def _some_blocks(runs: list[StudyRun]) -> list[str]:
    """Those of the thesis' figure that were run; else the smallest, a middle and the largest."""
    found = sort_blocks({run.block for run in runs if run.block is not None})
    chosen = [block for block in _THESIS_BLOCKS if block in found]
    if chosen:
        return chosen
    by_area = sorted(found, key=lambda text: np.prod(parse_block(text)))
    return list(dict.fromkeys([by_area[0], by_area[len(by_area) // 2], by_area[-1]]))
