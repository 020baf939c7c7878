"""The gradients of two layers with GELU between, one product after the other."""

from jaxtyping import Array, Float

from pallas_kernels.engine import Engine
from pallas_kernels.sparse_layer import SparseLayer, Weights


def gradients(
    engine: Engine,
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    hidden: tuple[Float[Array, "rows units"], Float[Array, "rows units"]],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    residual: bool,
) -> tuple[Float[Array, "rows in"], tuple[Weights, Weights]]:
    """Those of x and of both layers, once there is what they need of the hidden units.

    Args:
      engine: computes the products.
      x: `[rows, in]`.
      dy: the gradient of the second layer's result.
      hidden: the hidden units after GELU, and the gradient before it.
      weights: of both layers.
      layers: both layers.
      residual: whether x was added to the result.
    """
    (w1, b1, kept1), (_, b2, kept2) = weights
    units, dunits = hidden
    dw1, db1 = engine.parameter_gradients(x, dunits, kept1, layers[0])
    dw2, db2 = engine.parameter_gradients(units, dy, kept2, layers[1])
    dx = engine.input_gradient(dunits, w1, kept1, layers[0])
    first = Weights(dw1, None if b1 is None else db1)
    second = Weights(dw2, None if b2 is None else db2)
    return dx + dy if residual else dx, (first, second)
