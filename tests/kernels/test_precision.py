"""Whether float32 is multiplied in TF32 follows what JAX is asked for."""

import jax
import pytest

from pallas_kernels.precision import in_tf32


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        *((name, True) for name in (None, "default", "tensorfloat32")),
        *((name, False) for name in ("high", "highest", "float32", "F32_F32_F32")),
    ],
)
def test_tf32_is_what_tensor_cores_take_unless_more_is_asked_for(precision, expected):
    with jax.default_matmul_precision(precision):
        assert in_tf32() is expected
