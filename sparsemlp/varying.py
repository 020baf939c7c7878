"""Operands under `shard_map`: over which axes of the mesh they vary."""

import jax
from jaxtyping import Array


def varying_alike(*operands: Array | None) -> list[Array | None]:
    """Operands that all vary over the mesh axes over which any of them does.

    Under `shard_map` the gradient of a custom rule has to vary as its operand does. A replicated
    kernel beside a sharded x is cast here, and JAX sums the gradient of a cast over its axes.
    """
    vary = [frozenset() if a is None else jax.typeof(a).manual_axis_type.varying for a in operands]
    axes = frozenset[str]().union(*vary)
    return [
        a if a is None or own == axes else jax.lax.pcast(a, tuple(axes - own), to="varying")
        for a, own in zip(operands, vary, strict=True)
    ]
