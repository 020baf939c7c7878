"""Every GPU kernel in the machine code of Ampere and Hopper: no spills, tensor cores in use."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import pytest
from case_lists import IN_FULL, LARGEST, MANY, MANY_OF_AMPERE, MANY_OF_MOSAIC
from cases import Case
from cut_cases import IN_TABLES, SAMPLED, SAMPLED_OF_MOSAIC
from machine_code import ARCHITECTURES, SMALL, compile_all, missing

pytestmark = pytest.mark.aot


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    reason = missing()
    if reason is not None:
        pytest.fail(reason)
    return compile_all(tmp_path_factory.mktemp("machine_code"))


def on_each(*cases: Case) -> list[tuple[Case, str]]:
    return [(case, architecture) for case in cases for architecture in ARCHITECTURES]


def of_each(found: Mapping[str, Sequence[Case]], engine: str) -> list[tuple[Case, str]]:
    """The cases of an engine that each architecture has of its own."""
    return [(case, gpu) for gpu, own in found.items() for case in own if case.engine == engine]


@pytest.mark.parametrize(
    ("case", "architecture"), [*on_each(*MANY), *of_each(IN_TABLES, "triton")], ids=str
)
def test_a_kernel_uses_tensor_cores_and_spills_nothing(found, case: Case, architecture: str):
    report = found[f"{case} {architecture}"]
    assert report["spills"] == 0, report
    assert report["registers"] <= 255
    if case.kernel == "sparsemlp_scores":
        return  # It multiplies no matrices.
    if architecture == "sm_80":
        assert report["mma"] > 0, report
    elif case.dtype == jnp.bfloat16 and case.kernel == "sparsemlp_product" and case.axis == -1:
        assert report["wgmma"] > 0, report
    else:
        assert report["wgmma"] + report["mma"] > 0, report


@pytest.mark.parametrize(("case", "architecture"), on_each(*IN_FULL), ids=str)
def test_full_products_of_float32_spill_nothing(found, case: Case, architecture: str):
    report = found[f"{case} {architecture}"]
    assert report["spills"] == 0, report
    assert report["wgmma"] + report["mma"] == 0, report


@pytest.mark.parametrize("case", LARGEST, ids=str)
def test_the_largest_blocks_fit_the_gpus_with_the_least_shared_memory(found, case: Case):
    """They do not compile if they do not."""
    report = found[f"{case} {SMALL}"]
    assert report["spills"] == 0, report
    assert report["mma"] > 0, report


@pytest.mark.parametrize(
    ("case", "architecture"),
    [*((case, "sm_90a") for case in MANY_OF_MOSAIC), *of_each(IN_TABLES, "mosaic")],
    ids=str,
)
def test_a_kernel_of_warpgroups_spills_nothing_and_its_products_run_beside_it(
    found, case: Case, architecture: str
):
    report = found[f"{case} {architecture}"]
    assert report["spills"] == 0, report
    assert report["registers"] <= 255
    assert report["wgmma"] > 0, report
    assert not report["serialised"], report


@pytest.mark.parametrize("case", SAMPLED_OF_MOSAIC, ids=str)
def test_what_the_tuner_may_try_of_warpgroups_spills_nothing(found, case: Case):
    report = found[f"{case} sm_90a"]
    assert report["spills"] == 0, report
    assert report["wgmma"] > 0, report
    if getattr(case.configuration, "balanced", False):
        assert not report["serialised"], report


@pytest.mark.parametrize("case", MANY_OF_AMPERE, ids=str)
def test_a_kernel_for_ampere_spills_nothing_copies_and_turns_on_the_way(found, case: Case):
    report = found[f"{case} sm_80"]
    assert report["spills"] == 0, report
    assert report["registers"] <= 255
    assert report["mma"] > 0, report
    assert report["cp.async"] > 0, report
    assert report["ldmatrix"] > 0, report


@pytest.mark.parametrize(("case", "architecture"), of_each(SAMPLED, "triton"), ids=str)
def test_what_the_tuner_may_try_compiles_for_tensor_cores(found, case: Case, architecture: str):
    """One that spills is slow, not wrong: the tuner times it, and a table may not hold it."""
    report = found[f"{case} {architecture}"]
    assert report["registers"] <= 255
    assert report["wgmma"] + report["mma"] > 0, report
