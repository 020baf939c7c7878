"""Whether masks drop anything: else what is called masked would be the dense baseline itself."""

from collections.abc import Mapping
from typing import Any

from sparsemlp import InputError
from sparsemlp.blocks import n_kept_blocks
from sparsemlp.plan import Plan
from sparsemlp.planned_kernels import block_counts, masked_kernels


def check_drops(params: Mapping[str, Any], plan: Plan) -> None:
    """Raises InputError if a plan masks kernels and keeps every block of all of them.

    Args:
      params: nested mapping of arrays or their shapes.
      plan: which parameter gets which rules.
    """
    ratios = {path: rule.ratio for path, _, rule in masked_kernels(params, plan)}
    counts = block_counts(params, plan)
    if ratios and all(n_kept_blocks(counts[path], ratios[path]) == counts[path] for path in ratios):
        told = ", ".join(f"{ratio:g}" for ratio in sorted(set(ratios.values())))
        raise InputError(
            f"--ratio={told} drops none of the blocks of any layer, {max(counts.values())} at "
            "most: that is the dense baseline itself, choose a larger ratio in (0, 1)"
        )
