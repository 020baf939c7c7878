"""The memory benchmark: what it counts, and what it compares."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from benchmarks import memory as benchmark_memory
from benchmarks.memory import (
    Memory,
    allocated_bytes,
    in_a_process_of_its_own,
    measure_memory,
    peak_bytes,
    variants,
)
from benchmarks.residuals import saved_bytes
from native import UNABLE

from sparsemlp import ActivationPruning, ResMLP
from sparsemlp.plan import rules_for

PARAMS = {"w": jax.ShapeDtypeStruct((16, 16), jnp.float32)}
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def test_the_peak_of_a_program_holds_its_temporaries():
    def chained(params, x):
        return jnp.sum(jnp.sin(jnp.sin(x @ params["w"]) @ params["w"]))

    assert peak_bytes(chained, PARAMS, X) >= 8 * 16 * 4


def test_the_allocators_peak_is_that_of_a_step_or_not_known():
    def make():
        return (lambda params, x: jnp.sum(jnp.sin(x @ params["w"]))), PARAMS, X

    found = allocated_bytes(make)
    assert found is None or found >= 8 * 16 * 4
    if jax.default_backend() == "cpu":
        assert in_a_process_of_its_own(make) is None


def test_resnet9_has_a_plan_for_every_variant():
    found = variants(Memory(model="resnet9"))
    assert len(found) == len(variants(Memory(model="resmlp_cifar10")))
    plans = [set(v.plan) for name, v in found.items() if name not in ("dense", "jax.checkpoint")]
    assert all(plan == {"conv_[2-8]/kernel"} for plan in plans)


def test_a_block_that_does_not_divide_the_tokens_is_for_the_channels_alone():
    def pruned(name):
        plan = variants(Memory(model=name))["activations 8x8 at 0.8"].plan
        kernels = ("XPatch", "XChannel1")
        return [ActivationPruning in rules_for(plan, f"block_0/{k}/kernel") for k in kernels]

    assert pruned("resmlp_cifar10") == [True, True]
    assert pruned("resmlp_s24") == [False, True]


def test_a_block_that_does_not_fit_says_so_before_any_table(monkeypatch, capsys):
    small = functools.partial(ResMLP, dim=32, depth=1)
    monkeypatch.setitem(benchmark_memory._MODELS, "resmlp_cifar10", small)
    with pytest.raises(ValueError, match="7x7 does not divide"):
        measure_memory(Memory(block="7x7", batch_size=(8,)))
    assert capsys.readouterr().out == ""


def test_every_variant_has_a_row_with_both_numbers(monkeypatch, capsys):
    def small(**changes):
        return ResMLP(dim=32, depth=1, **changes)

    monkeypatch.setitem(benchmark_memory._MODELS, "resmlp_cifar10", small)
    measure_memory(Memory(batch_size=(2,), ratio=(0.8,), layers=True, show="rules"))
    text = capsys.readouterr().out
    for name in ("XChannel/second", "by rules", "ids"):
        assert name in text
    for name in ("dense", "jax.checkpoint", "8x8 at 0.8", "means of 2x2", "gradients 2:4"):
        assert name in text
    assert text.count("100%") >= 2


def test_what_the_pruned_layers_keep_falls_in_proportion_to_the_ratio():
    def kept(ratio, engine="reference"):
        plan = {"*/X*/kernel": ActivationPruning((8, 8), ratio)}
        model = ResMLP(dim=32, depth=1, plan=plan, engine=engine)
        images = jax.ShapeDtypeStruct((4, 32, 32, 3), jnp.float32)
        params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]

        def loss(params, images):
            logits: Any = model.apply({"params": params}, images, train=True)
            return jnp.sum(logits)

        return saved_bytes(loss, params, images)

    n_entries = 4 * 64 * (32 + 32 + 4 * 32)
    values, ids = 4 * n_entries, 4 * n_entries // (8 * 8)
    assert ids < 0.05 * values
    assert kept(0.25) - kept(0.5) == (values + ids) / 4
    assert kept(0.25) - kept(0.75) == (values + ids) / 2
    if UNABLE is None:  # a channel MLP in one kernel keeps ids alone
        mixed = 32 / (32 + 32 + 4 * 32)
        assert kept(0.25, "cpu") - kept(0.75, "cpu") == (values * mixed + ids) / 2
