"""How often each block of the first ResMLP block's three linears was kept."""

import contextlib
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from sparsemlp.cost_models.costs import KINDS
from sparsemlp.errors import InputError
from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.legends import wrap_to
from sparsemlp.figures.seed_lines import masked_at
from sparsemlp.figures.style import SEQUENCE, WIDTH, name_backward, order_backwards
from sparsemlp.runs.mask_activity import read_mask_activity
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

_MOST_CELLS = 2048
"""Above that a map is an image inside the vector file."""
_MOST_ROWS = 6
_CHARACTERS = 28
"""Of a line beside a row, which is two inches high."""


def kept_blocks(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Shares of the masked steps, a row a run of the chosen block and ratio, a column a layer."""
    candidates = masked_at(study, chosen.ratio, chosen.block)
    if not candidates:
        raise NothingToDrawError(f"no run of {chosen.block} at {chosen.ratio:g} has an epoch")
    rows = list(_one_each(study, candidates))
    if not rows:
        raise NothingToDrawError(
            f"no run of {chosen.block} at {chosen.ratio:g} has a mask_activity.npz with the three "
            "linears of the first block"
        )
    dropped = len(rows) - _MOST_ROWS
    rows = rows[:_MOST_ROWS]
    figure = Figure(figsize=(WIDTH, 0.7 + 2.0 * len(rows)))
    grid = figure.subplots(len(rows), len(KINDS), squeeze=False)
    for axes_row, (title, shares) in zip(grid, rows, strict=True):
        for axes, kind in zip(axes_row, KINDS, strict=True):
            _map(axes, shares[kind])
        axes_row[0].set_ylabel(f"{title}\noutputs")
    for top, bottom, kind in zip(grid[0], grid[-1], KINDS, strict=True):
        top.set_title(kind)
        bottom.set_xlabel("inputs")
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, 1), SEQUENCE),
        ax=grid,
        label="share of the masked steps",
        fraction=0.03,
    )
    bar.outline.set_visible(False)
    figure.suptitle(f"how often blocks were kept: {chosen.block} at ratio {chosen.ratio:g}")
    more = f" {dropped} more runs are not shown." if dropped > 0 else ""
    yield Drawing(
        "kept_blocks",
        figure,
        f"Share of the masked steps that kept each block of the first ResMLP block's linears, "
        f"{chosen.block} at ratio {chosen.ratio:g}, the lowest seed of each setting.{more}",
    )


def _one_each(study: Study, runs: list[StudyRun]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """For each backward pass and other options those of the lowest seed that has its counts."""
    found: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    usable = (run for run in runs if run.folder is not None and run.folder.mask_activity.is_file())
    for run in sorted(usable, key=lambda run: run.settings.seed if run.settings else 0):
        key = (run.masking.backward, study.variant(run)) if run.masking is not None else None
        if key is not None and key not in found and (shares := _read(run)):
            found[key] = shares
    for backward in order_backwards({key[0] for key in found}):
        for (own, variant), shares in found.items():
            if own == backward:
                told = [name_backward(backward), *filter(None, variant.split(", "))]
                yield "\n".join(wrap_to(words, _CHARACTERS) for words in told), shares


def _read(run: StudyRun) -> dict[str, np.ndarray]:
    """Shares `[out / rows, in / cols]` of each linear; empty where they are not to be had."""
    assert run.folder is not None
    with contextlib.suppress(InputError):
        shares = read_mask_activity(run.folder.mask_activity).shares()
        paths = {kind: f"block_0/{kind}/kernel" for kind in KINDS}
        if shares.keys() >= set(paths.values()):
            return {kind: shares[path] for kind, path in paths.items()}
    return {}


def _map(axes: Axes, shares: np.ndarray) -> None:
    mesh = axes.pcolormesh(
        shares, vmin=0, vmax=1, cmap=SEQUENCE, rasterized=shares.size > _MOST_CELLS
    )
    mesh.set_edgecolor("face")
    axes.invert_yaxis()
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
