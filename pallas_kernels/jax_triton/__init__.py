"""Engine `jax-triton`: forward and input gradient in the Triton language, called by jax-triton."""

from pallas_kernels.jax_triton.engine import JaxTriton

__all__ = ["JaxTriton"]
