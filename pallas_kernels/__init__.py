"""Engines: the matrix products of a block-sparse linear layer, arrays in, arrays out."""

from pallas_kernels.cpu import Cpu
from pallas_kernels.engine import Engine
from pallas_kernels.jax_triton import JaxTriton
from pallas_kernels.mosaic import Mosaic
from pallas_kernels.neighbours import Neighbours
from pallas_kernels.reference import Reference
from pallas_kernels.sparse_layer import Phase, SparseLayer, Weights
from pallas_kernels.triton import Triton

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Cpu(), Mosaic(), Triton(), JaxTriton(), Reference())
}
"""Every engine of this version by name, the ones that `auto` prefers first."""


__all__ = [
    "ENGINES",
    "Cpu",
    "Engine",
    "JaxTriton",
    "Mosaic",
    "Neighbours",
    "Phase",
    "Reference",
    "SparseLayer",
    "Triton",
    "Weights",
]
