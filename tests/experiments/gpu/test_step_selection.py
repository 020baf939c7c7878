"""What masks cost beside a step."""

import jax
import jax.numpy as jnp
from gpu.step_models import MODELS, images_of
from gpu.step_selection import compile_selection, time_selection

from sparsemlp import BlockMasking


def test_selection_and_lists_are_timed_of_a_masked_model_alone():
    for plan in ({}, {"*/XChannel?/kernel": BlockMasking((32, 32), 0.8)}):
        model = MODELS["tiny"].make(plan=plan, engine="reference")
        params = model.init(jax.random.key(0), jnp.zeros(images_of(model, 1)))["params"]
        compiled = compile_selection(model, params, True)
        if not plan:
            assert compiled[1:] == (0, {})
            continue
        found = time_selection(compiled, params, 1, is_trial=True)
        assert found.pop("failed") == {}
        assert set(found) == {"selection_ms", "metadata_ms"}
        assert min(found.values()) > 0
