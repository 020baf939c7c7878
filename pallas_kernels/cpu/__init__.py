"""Engine `cpu`: native products that skip the dropped blocks."""

from pallas_kernels.cpu.engine import Cpu

__all__ = ["Cpu"]
