"""All figures by name, in the order that a report shows them."""

from collections.abc import Callable, Iterable

from sparsemlp.errors import InputError
from sparsemlp.figures import backwards, epochs, families, heat_maps, kept_blocks, pareto, ratios
from sparsemlp.figures.drawing import Chosen, Draw, Drawing, NothingToDrawError
from sparsemlp.figures.style import look
from sparsemlp.studies.study import Study

FIGURES: dict[str, Draw] = {
    "accuracy": epochs.accuracy,
    "heat_maps": heat_maps.heat_maps,
    "backwards": backwards.backwards,
    "accuracy_at_ratio": families.accuracy_at_ratio,
    "curves": epochs.curves,
    "loaded_weights": pareto.loaded_weights,
    "step_time": pareto.step_time,
    "changed_blocks": families.changed_blocks,
    "kept_blocks": kept_blocks.kept_blocks,
    "masked_elements": ratios.masked_elements,
    "flops": ratios.flops,
}
"""Those of Bespalov 2025, and `accuracy`, `backwards`, `loaded_weights`, `step_time` and
`changed_blocks`."""


def draw_figures(
    study: Study,
    chosen: Chosen,
    use: Callable[[Drawing], None],
    names: Iterable[str] = (),
) -> dict[str, str]:
    """Draws figures, one after another.

    Args:
      study: the runs.
      chosen: block and ratio of the figures that show one.
      use: what to do with each drawing.
      names: which figures; all if there are none.

    Returns:
      For each figure without data a line that says what is lacking.

    Raises:
      InputError: there is no figure of that name.
    """
    wanted = tuple(names) or tuple(FIGURES)
    for name in wanted:
        if name not in FIGURES:
            raise InputError(f"--only {name} is no figure: choose from {', '.join(FIGURES)}")
    lacking = {}
    for name in wanted:
        try:
            with look():
                for drawing in FIGURES[name](study, chosen):
                    use(drawing)
        except NothingToDrawError as reason:
            lacking[name] = str(reason)
    return lacking
