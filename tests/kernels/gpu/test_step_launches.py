"""A masked training step launches little more on a GPU than a dense one, and asks the host once."""

from pathlib import Path

import pytest
from machine_code import missing
from step_launches import count_in_process, launches

TEXT = """HloModule jit_many_steps

%inner (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  ROOT %add.1 = s32[] add(%p, %p)
}

%step.clone (p.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.1 = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%p.1), index=1
  %fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %while.1 = s32[] while(%fusion.1), condition=%c, body=%inner
  ROOT %tuple.1 = (s32[], f32[4]{0}) tuple(%while.1, %fusion.1)
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %while.2 = (s32[], f32[4]{0}) while(%a), condition=%c.1, body=%step.clone
}
"""


def test_what_a_step_launches_is_read_from_the_program_of_all():
    assert launches(TEXT) == {"kernels": 1, "loops": 1}


@pytest.mark.aot
def test_masking_adds_few_kernels_and_no_loop(tmp_path: Path):
    reason = missing()
    if reason is not None:
        pytest.fail(reason)
    found = count_in_process(tmp_path)
    print(found)
    assert found["dense"]["loops"] == found["masked"]["loops"] == 0
    assert found["dense"]["kernels"] > 50
    assert found["masked"]["kernels"] <= 1.2 * found["dense"]["kernels"]
