"""Which GPU kernels are compiled where there is no GPU, cut as the heuristics cut them."""

import jax.numpy as jnp
from cases import N_IN, case, cases
from convolution_cases import CONVOLUTIONS, convolution_case
from pair_cases import fused_case, mlp_case

from pallas_kernels.mosaic.mlp_tiles import APART

DTYPES = (jnp.float32, jnp.bfloat16)
THREE = ("product", "transposed", "gradient")
MLP = ("mlp", "mlp_input", "mlp_weights")
SQUARES = [(32, 32), (64, 64), (128, 128)]

FEW = [
    *cases(
        product=[(32, 16)],
        transposed=[(32, 16)],
        gradient=[(32, 16)],
        compact=[(8, 8)],
        pruned=[(2, 4)],
    ),
    *(case("scores", (32, 16), dtype, -1) for dtype in DTYPES),
    *(mlp_case(kernel, (32, 16), dtype) for kernel in MLP for dtype in DTYPES),
    *(convolution_case(kernel, (32, 16), dtype) for kernel in CONVOLUTIONS for dtype in DTYPES),
]
"""Each kernel once."""

MANY = [
    *FEW,
    *cases(
        product=SQUARES,
        transposed=SQUARES,
        gradient=SQUARES,
        compact=[(16, 32)],
        pruned=[(1, 8), (16, 32)],
    ),
    *(case("scores", block, jnp.float32, -1) for block in SQUARES),
    *(mlp_case(kernel, block, dtype) for kernel in MLP for block in SQUARES for dtype in DTYPES),
    *(
        mlp_case(kernel, (side, side), jnp.bfloat16, 2 * N_IN)
        for kernel in MLP
        for side in (32, 64)
    ),
    *(
        convolution_case(kernel, block, dtype)
        for kernel in CONVOLUTIONS
        for block in SQUARES
        for dtype in DTYPES
    ),
    # Blocks whose gradients take the most registers, and narrow ones that share warps badly.
    *(mlp_case("mlp_weights", block, jnp.float32) for block in ((64, 128), (128, 64))),
    *(mlp_case("mlp_weights", block, jnp.bfloat16) for block in ((16, 16), (64, 16))),
    # One product after the other.
    *(mlp_case("gelu", (side, side), dtype, 1024) for side in (32, 64, 128) for dtype in DTYPES),
]
"""Each kernel with the blocks that are meant to be used."""

LARGEST = [
    *(case(kernel, (128, 128), jnp.float32, axis) for kernel in THREE for axis in (-1, -2)),
    *(case(kernel, (128, 128), jnp.bfloat16, -1) for kernel in THREE[:2]),
    *(convolution_case(kernel, (128, 128), jnp.float32) for kernel in CONVOLUTIONS),
]
"""The most bytes that the loads of a loop hold: they have to fit GPUs of 99 KB."""

IN_FULL = [
    case(kernel, (side, side), jnp.float32, axis)._replace(precision="highest")
    for kernel in THREE
    for side in (64, 128)
    for axis in (-1, -2)
] + [
    convolution_case(kernel, (side, side), jnp.float32, precision="highest")
    for kernel in CONVOLUTIONS
    for side in (64, 128)
]
"""Float32 that is not multiplied in TF32, which takes the most registers."""

BFLOAT16 = jnp.bfloat16
FEW_OF_MOSAIC = [
    case(kernel, (32, 16), dtype, -1, engine="mosaic")
    for kernel in THREE
    for dtype in (jnp.float32, BFLOAT16)
]
"""Each kernel of engine `mosaic` in both dtypes. Along the tokens they are the same ones."""

MANY_OF_MOSAIC = [
    *FEW_OF_MOSAIC,
    *(
        case(kernel, (side, side), BFLOAT16, -1, engine="mosaic")
        for kernel in THREE
        for side in (32, 128)
    ),
    # Blocks of the most bytes, and rows of a block that become those of the sums of dW.
    case("product", (128, 128), jnp.float32, -1, engine="mosaic"),
    case("gradient", (128, 128), jnp.float32, -1, engine="mosaic"),
    *(case(kernel, (64, 64), BFLOAT16, -1, engine="mosaic") for kernel in THREE),
    case("gradient", (64, 32), BFLOAT16, -1, engine="mosaic"),
    *(
        case("through_gelu", (side, side), dtype, -1, engine="mosaic")
        for side in (32, 64, 128)
        for dtype in DTYPES
    ),
    # Rows of x that are contracted in many blocks.
    *(
        case(kernel, (side, side), BFLOAT16, -1, engine="mosaic", shape=(1024, 4096))
        for kernel in THREE
        for side in (32, 64, 128)
    ),
    *(
        mlp_case("gelu", (side, side), dtype, engine="mosaic", configuration=APART)
        for side, dtype in ((32, BFLOAT16), (128, BFLOAT16), (128, jnp.float32))
    ),
    # The sums of all outputs in the registers of two warpgroups, those of few in one's.
    *(
        fused_case("mlp", (side, side), dtype, width)
        for side, dtype, width in (
            (32, BFLOAT16, N_IN),
            (64, BFLOAT16, N_IN),
            (32, jnp.float32, N_IN),
            (32, BFLOAT16, 64),
            (16, jnp.float32, 64),
            (64, BFLOAT16, 256),
            (128, BFLOAT16, 256),
        )
    ),
    # Two sums a column, whole panels and panels in pieces.
    *(
        fused_case("hidden", (side, side), dtype, width)
        for side, dtype, width in (
            (32, BFLOAT16, N_IN),
            (64, BFLOAT16, N_IN),
            (64, jnp.float32, N_IN),
            (16, jnp.float32, 64),
            (64, BFLOAT16, 2 * N_IN),
        )
    ),
]
"""Each kernel of engine `mosaic` with the blocks that are meant to be used, on Hopper."""

FEW_OF_AMPERE = [case(kernel, (32, 16), BFLOAT16, -1, engine="mosaic-ampere") for kernel in THREE]
"""Each kernel of engine `mosaic` for Ampere."""

MANY_OF_AMPERE = [
    *FEW_OF_AMPERE,
    *(
        case(kernel, block, BFLOAT16, -1, engine="mosaic-ampere")
        for kernel in THREE
        for block in ((16, 32), (32, 32), (64, 64), (128, 128), (16, 128), (128, 16))
    ),
    *(mlp_case("gelu", (side, side), BFLOAT16, engine="mosaic-ampere") for side in (32, 128)),
]
"""Each of them with the blocks that are meant to be used, panels that stay and panels that come
along with the weights."""
