"""Whether float32 is multiplied in TF32 follows what JAX is asked for."""

import jax
import pytest

from pallas_kernels.precision import in_tf32


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        *((name, True) for name in (None, "default", "high", "tensorfloat32")),
        *((name, False) for name in ("highest", "float32", "F32_F32_F32", "TF32_TF32_F32_X3")),
    ],
)
def test_tf32_is_what_tensor_cores_take_unless_more_is_asked_for(precision, expected):
    with jax.default_matmul_precision(precision):
        assert in_tf32() is expected
