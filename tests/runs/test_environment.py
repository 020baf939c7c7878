"""The environment says on what a number was made."""

import importlib.metadata
import json

import jax

from sparsemlp.runs.environment import describe_environment


def test_the_environment_can_be_written_and_names_versions_device_and_commit():
    environment = json.loads(json.dumps(describe_environment()))
    assert {"python", "jax", "jaxlib", "flax", "optax", "sparsemlp"} <= set(environment["versions"])
    assert environment["device"]
    assert environment["devices"] >= 1
    assert environment["cores"] >= 1
    assert "commit" in environment


def test_the_precision_of_products_is_told():
    with jax.default_matmul_precision("bfloat16"):
        assert describe_environment()["matmul_precision"] == "bfloat16"
    with jax.default_matmul_precision(None):
        assert describe_environment()["matmul_precision"] == "default"


def test_a_package_used_from_a_checkout_has_no_version(monkeypatch):
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert describe_environment()["versions"]["sparsemlp"] is None
