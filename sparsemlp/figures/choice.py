"""Which block and ratio the figures show that show one."""

from collections import Counter

from sparsemlp.blocks import check_ratio, format_block, parse_block
from sparsemlp.figures.drawing import Chosen
from sparsemlp.studies.study import Study


def choose(study: Study, block: str | None = None, ratio: float | None = None) -> Chosen:
    """The setting that is asked for; what is left open as the default has it, if a run has that.

    The default ratio goes before the default block. Else it is what most runs with one mask have,
    the first one's of several; finished runs, if there are any such, before those with an epoch.

    Args:
      study: the runs.
      block: `ROWSxCOLS`, or open.
      ratio: share of blocks dropped, or open.

    Raises:
      InputError: no block, or no ratio.
    """
    if ratio is not None:
        check_ratio(ratio)
    usual = Chosen(
        Chosen.block if block is None else format_block(parse_block(block)),
        Chosen.ratio if ratio is None else ratio,
    )

    def like_usual(own: Chosen) -> tuple[bool, bool]:
        return own.ratio == usual.ratio, own.block == usual.block

    for runs in (study.finished, study.trained):
        found = Counter(
            Chosen(run.block or "", run.masking.ratio) for run in runs if run.masking is not None
        )
        fitting = [
            own
            for own, _ in found.most_common()
            if block is None or own.block == usual.block
            if ratio is None or own.ratio == usual.ratio
        ]
        if fitting:
            return max(fitting, key=like_usual)
    return usual
