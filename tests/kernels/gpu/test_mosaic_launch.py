"""What stands between engine `mosaic` and JAX's way to compile it, and what it leaves to others."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import Mosaic, SparseLayer
from pallas_kernels.mosaic import launch, stream_tiles
from pallas_kernels.mosaic.gradient_tiles import balanced_space, search_space
from pallas_kernels.mosaic.product_cost import places
from pallas_kernels.mosaic.product_tiles import product_of

LAYER = SparseLayer((64, 128), (32, 16), 3, -1, "float32")


def test_without_the_compiler_in_jax_the_engine_says_which_jax_has_it(monkeypatch):
    assert launch.missing() is None
    monkeypatch.setattr(launch, "plgpu", None)
    reason = Mosaic(interpret=True).reason_against(LAYER, "gpu")
    assert reason is not None
    assert "install 'jax>=0.11.1,<0.13'" in reason


def test_a_jax_that_only_compiles_says_which_jax_interprets(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 1))
    assert launch.missing() is None
    assert "install 'jax>=0.11.2,<0.13'" in str(launch.missing(interpret=True))


def test_nothing_in_is_nothing_out():
    engine = Mosaic(interpret=True)
    kernel, bias, kept = jnp.ones((64, 128)), jnp.ones(128), jnp.arange(3, dtype=jnp.int32)
    x, dy = jnp.ones((0, 64)), jnp.ones((0, 128))
    assert engine.product(x, kernel, bias, kept, LAYER).shape == dy.shape
    assert engine.input_gradient(dy, kernel, kept, LAYER).shape == x.shape
    np.testing.assert_array_equal(engine.kernel_gradient(x, dy, kept, LAYER), 0 * kernel)


def test_programs_are_as_many_as_the_gpu_has_multiprocessors(monkeypatch):
    """As on an H100 of PCIe, where a program more would wait for all of the others."""
    layer = SparseLayer((1024, 4096), (64, 64), 205, -1, "bfloat16")
    gpu = SimpleNamespace(platform="gpu", core_count=114)
    monkeypatch.setattr(launch.jax, "local_devices", lambda: [gpu])
    assert launch.multiprocessors() == 114
    assert [places(cluster) for cluster in (1, 2, 4)] == [114, 114, 104]
    product = product_of(layer, 8192, transposed=False)
    assert {tiles.n_programs(product) for tiles in stream_tiles.by_cost(product)} == {114}
    assert {tiles.programs for tiles in balanced_space(layer)} == {114}
    assert {tiles.programs % 114 for tiles in search_space(layer)} == {0}
