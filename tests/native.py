"""Where the native kernels of engine `cpu` do not run, what tests them is skipped."""

import jax
import pytest

from pallas_kernels import ENGINES, SparseLayer

UNABLE = ENGINES["cpu"].reason_against(
    SparseLayer((64, 128), (32, 32), 1, -1, "float32"), jax.default_backend()
)
needs_native = pytest.mark.skipif(UNABLE is not None, reason=str(UNABLE))
