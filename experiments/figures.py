"""Draws the figures of a study from its run folders and nothing else.

    python experiments/figures.py runs/
    python experiments/figures.py runs/ --out=figures/ --only accuracy heat_maps

takes the folder of a sweep, or any folder with run folders below it, and writes each figure as SVG
and PNG. What the runs have no data for is said in a line. --block and --ratio choose the setting of
the figures that show one: accuracy_at_ratio, changed_blocks, curves, kept_blocks, backwards.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sparsemlp.exit_codes import exit_code
from sparsemlp.figures import Drawing, choose, draw_figures, save
from sparsemlp.files import make_folder
from sparsemlp.options import cli, open_default
from sparsemlp.studies.study import read_study


def write_figures(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Annotated[Path | None, open_default("FOLDER", "FOLDER/figures")] = None,
    only: Annotated[tuple[str, ...], open_default("NAME [NAME ...]", "all")] = (),
    vector: Literal["svg", "pdf"] = "svg",
    block: Annotated[str | None, open_default("ROWSxCOLS", "32x32, or what most runs have")] = None,
    ratio: Annotated[float | None, open_default("RATIO", "0.8, or what most runs have")] = None,
) -> None:
    """Draws the figures of a study.

    Args:
      folder: folder of a sweep or of run folders.
      out: folder of the figures.
      only: accuracy, heat_maps, backwards, accuracy_at_ratio, curves, loaded_weights, step_time,
        changed_blocks, kept_blocks, masked_elements, flops.
      vector: format of the vector beside the PNG.
      block: block of the figures that show one.
      ratio: ratio of the figures that show one.
    """
    study = read_study(folder)
    chosen = choose(study, block, ratio)
    out = out or folder / "figures"
    make_folder(out, f"--out={out}")

    def write(drawing: Drawing) -> None:
        print(*save(drawing, out, vector))

    lacking = draw_figures(study, chosen, write, only)
    for line in study.left_out():
        print(line)
    for name, reason in lacking.items():
        print(f"no {name}: {reason}")


if __name__ == "__main__":
    sys.exit(exit_code(lambda: cli(write_figures, description=__doc__)))
