"""Options become a model and a cluster; published numbers stand until others are given."""

import math
from typing import Any

import pytest
from cost_tables.scaling_options import Scaling, cluster_of, model_of

from sparsemlp import InputError
from sparsemlp.cost_models.costs import KINDS, Shapes
from sparsemlp.cost_models.hardware import DEVICES, LINKS


def test_the_default_is_the_imagenet_model_on_published_hardware():
    shapes, masking = model_of(Scaling())
    assert shapes == Shapes(224, 14, 3, 384, 12, 4, 1000)
    assert masking == dict.fromkeys(KINDS, ((32, 32), 0.8))
    cluster = cluster_of(Scaling())
    assert cluster.device.flops["bfloat16"] == DEVICES["h100"].flops["bfloat16"]
    assert cluster.device.memory_bandwidth == DEVICES["h100"].memory_bandwidth
    assert (cluster.inside, cluster.between) == (LINKS["nvlink4"], LINKS["infiniband_ndr"])


def test_numbers_take_the_place_of_published_ones_and_say_so():
    options = Scaling(
        dtype="float32", peak_flops=2e12, between_bandwidth=1.25e9, between_latency=1e-4
    )
    cluster = cluster_of(options)
    assert dict(cluster.device.flops) == {"float32": 2e12}
    assert cluster.device.memory_bandwidth == DEVICES["h100"].memory_bandwidth
    assert (cluster.between.bandwidth, cluster.between.latency) == (1.25e9, 1e-4)
    assert cluster.device.source == f"{DEVICES['h100'].source}, flops given"
    assert cluster.between.source == "given"
    assert cluster.inside.source == LINKS["nvlink4"].source


def test_a_model_string_says_depth_and_masks():
    text = "ResMLP3 @ XPatch = masked 0.5 (2, 2); XChannel2 = masked 0.3 (1, 1);"
    shapes, masking = model_of(Scaling(model="resmlp_cifar10", config=text))
    assert shapes == Shapes(depth=3)
    assert masking == {"XPatch": ((2, 2), 0.5), "XChannel2": ((1, 1), 0.3)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "vgg"}, "--model=vgg is unknown"),
        ({"block": "48x48"}, "block 48x48 does not divide XPatch"),
        ({"block": "32"}, "block '32' is not ROWSxCOLS"),
        ({"ratio": 1.0}, "ratio 1.0 is outside"),
        ({"ratio": 0.0}, "--ratio=0 masks nothing"),
        ({"mask_layers": "Head"}, "--mask-layers names 'Head'"),
        ({"image_size": 30}, "--image-size=30 is no multiple"),
        ({"config": "ResMLP5 @ XPatch = sparse 0.5 (8, 8);"}, "masks nothing"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_models_that_cannot_be_are_named(changes: dict[str, Any], message):
    with pytest.raises(InputError, match=message):
        model_of(Scaling(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "abacus"}, "--device=abacus is unknown: choose one of a100"),
        ({"inside": "string"}, "--inside=string is unknown: choose one of nvlink3"),
        ({"between": "string"}, "--between=string is unknown"),
        ({"peak_flops": 0.0}, "the peak in bfloat16 is 0"),
        ({"memory_bandwidth": -1.0}, "the memory bandwidth is -1"),
        ({"peak_flops": math.inf, "memory_bandwidth": math.inf}, "--peak-flops=inf and --mem"),
        ({"inside_latency": -1.0}, "a latency of -1 s"),
        ({"masked_efficiency": 2.0}, "masked_efficiency is 2"),
        ({"devices_per_host": 0}, "devices_per_host is 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_hardware_that_cannot_be_is_named(changes: dict[str, Any], message):
    with pytest.raises(InputError, match=message):
        cluster_of(Scaling(**changes))
