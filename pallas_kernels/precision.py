"""How products of float32 are multiplied on a GPU."""

import jax

_TF32 = (None, "default", "tensorfloat32", "bfloat16", "TF32_TF32_F32")
"""Values of `jax_default_matmul_precision`."""


def in_tf32() -> bool:
    """Whether tensor cores may multiply float32 in TF32, as they do unless JAX is told otherwise.

    Else products are longer, or need other instructions: times and cuts that were measured in TF32
    say nothing of them.
    """
    return jax.config.jax_default_matmul_precision in _TF32
