"""Every GPU kernel is accepted by the compiler's front, which a JAX without a GPU has too."""

import jax
import pytest
from cases import FEW, FEW_OF_MOSAIC, Case
from jax.sharding import AbstractDevice, AbstractMesh


@pytest.mark.parametrize("case", FEW + FEW_OF_MOSAIC, ids=str)
def test_a_product_lowers_to_one_kernel_for_a_gpu(case: Case):
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(case.call).trace(*case.operands)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    call = {"triton": "@__gpu$xla.gpu.triton", "mosaic": "@mosaic_gpu_v2"}[case.engine]
    assert text.count(call) == 1
    assert case.kernel in text
