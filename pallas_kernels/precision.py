"""How products of float32 are multiplied on a GPU."""

import jax

PRECISIONS = {
    **dict.fromkeys((None, "default", "bfloat16", "tensorfloat32", "high"), "tf32"),
    **dict.fromkeys(("highest", "float32", "F32_F32_F32"), "ieee"),
    "TF32_TF32_F32": "tf32",
    "TF32_TF32_F32_X3": "tf32x3",
}
"""How kernels multiply float32 with a value of `jax_default_matmul_precision`, in Triton's words;
other values they do not know."""


def in_tf32() -> bool:
    """Whether tensor cores may multiply float32 in TF32, as they do unless JAX is told otherwise.

    Else products are longer, or need other instructions: times and cuts that were measured in TF32
    say nothing of them.
    """
    return PRECISIONS.get(jax.config.jax_default_matmul_precision) == "tf32"
