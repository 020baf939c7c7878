"""Every GPU kernel is accepted by the compiler's front, which a JAX without a GPU has too."""

import jax
import pytest
from cases import FEW, FEW_OF_AMPERE, FEW_OF_MOSAIC, Case
from jax.sharding import AbstractDevice, AbstractMesh
from machine_code import mosaic_target


@pytest.mark.parametrize("case", FEW + FEW_OF_MOSAIC + FEW_OF_AMPERE, ids=str)
def test_a_product_lowers_to_one_kernel_for_a_gpu(case: Case, monkeypatch):
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    if case.engine == "mosaic-ampere":
        device = AbstractDevice(device_kind="NVIDIA A30", num_cores=56, platform="gpu")
        monkeypatch.setattr(mosaic_target(), "_infer_arch", lambda: (8, 0))
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(case.call).trace(*case.operands)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    call = "@__gpu$xla.gpu.triton" if case.engine == "triton" else "@mosaic_gpu_v2"
    assert text.count(call) == 1
    assert case.kernel in text
