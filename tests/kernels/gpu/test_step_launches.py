"""A masked training step launches little more on a GPU than a dense one, and asks the host once."""

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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    reason = missing()
    if reason is not None:
        pytest.fail(reason)
    counted = count_in_process(tmp_path_factory.mktemp("launches"))
    print(counted)
    return counted


@pytest.mark.aot
def test_masking_adds_few_kernels_and_no_loop(found):
    dense, masked = found["dense of depth 2"], found["reference of depth 2"]
    assert all(step["loops"] == 0 for step in found.values())
    assert dense["kernels"] > 50
    assert masked["kernels"] <= 1.2 * dense["kernels"]


@pytest.mark.aot
@pytest.mark.parametrize("engine", ["triton", "mosaic"])
def test_another_block_of_the_model_adds_few_kernels_to_those_of_a_dense_one(found, engine):
    """Lists of kept blocks are made once for all blocks of the model.

    Three of the layers of a block are masked. When every product made its own lists, it took 84
    kernels more than a dense one with engine `mosaic`, and 33 with `triton`.
    """
    of_a_block = {
        name: (found[f"{name} of depth 4"]["kernels"] - found[f"{name} of depth 2"]["kernels"]) / 2
        for name in ("dense", engine)
    }
    assert of_a_block[engine] <= of_a_block["dense"] + 20
