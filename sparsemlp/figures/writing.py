"""Figures as files: vectors for print and pages, PNG for everything else."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

from sparsemlp.errors import InputError
from sparsemlp.figures.drawing import Drawing
from sparsemlp.figures.style import look
from sparsemlp.files import write_whole

Vector = Literal["svg", "pdf"]

_DOTS_PER_INCH = 200


def render(figure: Figure, kind: Literal["svg", "pdf", "png"]) -> bytes:
    """A figure as the bytes of a file; the same figure gives the same SVG."""
    buffer = io.BytesIO()
    # A date would make every file a new one.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    with look():
        figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()


def check_picture(out: Path) -> Literal["svg", "pdf", "png"]:
    """The format of a picture by the ending of its file.

    Raises:
      InputError: the ending is that of no picture.
    """
    kind = out.suffix.removeprefix(".").lower()
    if kind == "png" or kind == "pdf" or kind == "svg":
        return kind
    raise InputError(f"--out={out} is no picture: end it in .png, .pdf or .svg")


def save_as(figure: Figure, out: Path) -> None:
    """Writes one figure in the format that the file's ending says, whole or not at all.

    Raises:
      InputError: the ending is that of no picture.
      SaveError: the disk is full or refuses the write.
    """
    data = render(figure, check_picture(out))
    write_whole(out, lambda file: file.write(data))


def save(
    drawing: Drawing,
    folder: Path,
    vector: Vector = "svg",
    rendered: Mapping[str, bytes] | None = None,
) -> list[Path]:
    """Writes a drawing as a vector and as PNG, each whole or not at all.

    Args:
      drawing: the figure.
      folder: an existing folder.
      vector: the format of the vector.
      rendered: formats that are rendered already.

    Returns:
      The files.

    Raises:
      SaveError: the disk is full or refuses the write.
    """
    paths = []
    for kind in (vector, "png"):
        data = (rendered or {}).get(kind) or render(drawing.figure, kind)
        path = folder / f"{drawing.name}.{kind}"
        write_whole(path, lambda file, data=data: file.write(data))
        paths.append(path)
    return paths
