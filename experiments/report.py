"""Writes a study as one HTML page, from its run folders and nothing else.

    python experiments/report.py runs/
    python experiments/report.py runs/ --out=report.html --figures=figures/

takes the folder of a sweep, or any folder with run folders below it. The page holds all figures
and needs no other file; runs.csv and runs.json with the unrounded numbers go beside it (beside a
page with another name than report, NAME_runs.csv and NAME_runs.json). --figures writes the figures
as files too, as experiments/figures.py does.
"""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from sparsemlp import InputError
from sparsemlp.exit_codes import exit_code
from sparsemlp.figures import Drawing, choose, draw_figures, render, save
from sparsemlp.files import make_folder
from sparsemlp.options import cli, open_default
from sparsemlp.reports.report import Picture, tables_of, write_report
from sparsemlp.studies.study import read_study


def report(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Annotated[Path | None, open_default("FILE.html", "FOLDER/report.html")] = None,
    figures: Annotated[Path | None, open_default("FOLDER", "none")] = None,
    block: Annotated[str | None, open_default("ROWSxCOLS", "32x32, or what most runs have")] = None,
    ratio: Annotated[float | None, open_default("RATIO", "0.8, or what most runs have")] = None,
) -> None:
    """Writes a study as one HTML page.

    Args:
      folder: folder of a sweep or of run folders.
      out: the page.
      figures: folder to write the figures to as well, as SVG and PNG.
      block: block of the figures that show one.
      ratio: ratio of the figures that show one.
    """
    study = read_study(folder)
    chosen = choose(study, block, ratio)
    out = out or folder / "report.html"
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out={out} is no page: end it in .html")
    for path in (out.parent, figures):
        if path is not None:
            make_folder(path)
    pictures: list[Picture] = []

    def take(drawing: Drawing) -> None:
        svg = render(drawing.figure, "svg")
        pictures.append(Picture(drawing.name, drawing.caption, svg))
        if figures is not None:
            save(drawing, figures, rendered={"svg": svg})

    lacking = draw_figures(study, chosen, take)
    write_report(study, pictures, lacking, out)
    for line in study.left_out():
        print(line)
    print(*(str(path) for path in (out, *tables_of(out))), sep=", ")


if __name__ == "__main__":
    sys.exit(exit_code(lambda: cli(report, description=__doc__)))
