"""Kernels for a GPU are interpreted where there is none."""

from typing import Any

import pytest

FEW_OF_MOSAIC = (
    "computes_what_the_reference_computes_in_float64[one-row-16x16-0.97-bfloat16-dense-features-",
    "computes_what_the_reference_computes_in_float64[tall-64x32-0.5-float32-dense-features-",
    "leave_rows_and_columns_of_blocks_empty_or_full[a square with an empty row and column on each "
    "side-float32-features-",
    "that_keeps_no_block_leaves_the_bias_alone[",
    "reaches_nothing_even_when_it_is_not_finite[masked-bfloat16-tokens-",
    "lists_made_before_change_no_bit[features-",
)
"""What the default run asks of this engine: JAX interprets its kernels in seconds each, with every
warpgroup, barrier and copy, and looks for races. `-m exhaustive` asks for all."""


@pytest.fixture(autouse=True)
def always_interpreted(interpreted: None) -> None:
    """No test here asks for it by name."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leaves most of what is asked of engine `mosaic` to the exhaustive run."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("engine") == "mosaic" and not any(f in item.name for f in FEW_OF_MOSAIC):
            item.add_marker(pytest.mark.exhaustive)
