"""The peer in PyTorch masks what sparsemlp masks."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import select_blocks


def test_pytorch_keeps_the_blocks_that_sparsemlp_keeps() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_resmlp import MaskedLinear

    layer = MaskedLinear(16, 12, (3, 4), 0.6)
    x = torch.randn(5, 16)
    kernel = layer.weight.detach().numpy().T
    mask = np.asarray(select_blocks(jnp.asarray(kernel), (3, 4), 0.6).dense())
    expected = x.numpy() @ (kernel * mask) + layer.bias.detach().numpy()
    tolerance = 4 * np.finfo(np.float32).eps * math.sqrt(16)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=tolerance * 4)
