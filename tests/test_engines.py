"""Which engine computes a layer, and why one that is named cannot."""

from typing import get_args

import jax
import jax.numpy as jnp
import pytest
from engine_doubles import LAYER, Able, Choosy, Unable, choose, put_first

from pallas_kernels import ENGINES, Phase, SparseLayer
from sparsemlp import BlockMask, engines, sparse_linear
from sparsemlp.engines import choose_engine
from sparsemlp.errors import InputError

PHASES: tuple[Phase, ...] = get_args(Phase)
EVERY_PHASE = pytest.mark.parametrize("phase", PHASES)


@pytest.fixture
def with_unable(monkeypatch) -> None:
    """An engine that cannot run stands first in the order of preference."""
    put_first(monkeypatch, Unable())


@EVERY_PHASE
@pytest.mark.parametrize("n_rows", [0, 8, 2**40])
def test_auto_gives_the_first_engine_of_this_version_that_can_and_pays(phase, n_rows):
    candidates = [
        engine
        for engine in ENGINES.values()
        if engine.reason_against(LAYER, jax.default_backend()) is None
        and engine.pays(phase, LAYER, n_rows)
    ]
    assert choose_engine("auto", LAYER, phase, n_rows) is candidates[0]


def test_auto_ends_with_the_reference_which_can_do_all():
    assert list(ENGINES)[-1] == "reference"
    for platform in ("cpu", "gpu", "tpu", "abacus"):
        assert ENGINES["reference"].reason_against(LAYER, platform) is None


@EVERY_PHASE
def test_the_reference_is_found_by_its_name(phase):
    assert choose_engine("reference", LAYER, phase, 8) is ENGINES["reference"]


def test_an_engine_that_cannot_run_is_refused_by_name_with_its_own_reason(with_unable):
    with pytest.raises(InputError) as caught:
        choose("unable", LAYER)
    message = str(caught.value)
    assert "engine 'unable' cannot run here" in message
    assert "blocks of (32, 32) on " in message
    assert "need an abacus: install abacus" in message


def test_auto_skips_an_engine_that_cannot_run(with_unable, monkeypatch):
    chosen = choose("auto", LAYER)
    monkeypatch.setattr(engines, "ENGINES", ENGINES)
    assert chosen is choose("auto", LAYER)


def test_auto_takes_the_first_engine_that_can_run(monkeypatch):
    put_first(monkeypatch, Unable(), Able())
    assert choose("auto", LAYER).name == "able"


@EVERY_PHASE
def test_auto_asks_for_each_phase_whether_an_engine_pays(monkeypatch, phase):
    put_first(monkeypatch, Choosy(phase))
    for other in PHASES:
        assert (choose_engine("auto", LAYER, other, 8).name == "able") == (other == phase)
        # Who is called by name is not asked whether that pays.
        assert choose_engine("able", LAYER, other, 8).name == "able"


@pytest.mark.parametrize(("n_rows", "pays"), [(7, False), (8, True)])
def test_auto_tells_the_engine_how_many_rows_there_are(monkeypatch, n_rows, pays):
    put_first(monkeypatch, Choosy("product", least_rows=8))
    assert (choose_engine("auto", LAYER, "product", n_rows).name == "able") == pays


def test_the_last_engine_of_auto_is_not_asked_whether_it_pays(monkeypatch):
    monkeypatch.setattr(engines, "ENGINES", {"able": Choosy("mlp")})
    assert choose("auto", LAYER).name == "able"


@pytest.mark.parametrize(("axis", "x_shape"), [(-1, (2, 3, 64)), (-2, (2, 64, 3))])
def test_the_products_of_one_layer_may_have_different_engines(monkeypatch, axis, x_shape):
    """Along tokens, samples times channels are the rows."""
    computed = []

    class Computes(Choosy):
        def __init__(self, name: str, phase: Phase) -> None:
            super().__init__(phase, least_rows=6)
            self.name = name

        def product(self, x, kernel, bias, kept, layer):
            computed.append((self.name, "product"))
            return super().product(x, kernel, bias, kept, layer)

        def input_gradient(self, dy, kernel, kept, layer):
            computed.append((self.name, "input_gradient"))
            return super().input_gradient(dy, kernel, kept, layer)

        def kernel_gradient(self, x, dy, kept, layer):
            computed.append((self.name, "kernel_gradient"))
            return super().kernel_gradient(x, dy, kept, layer)

    put_first(monkeypatch, *(Computes(f"{phase} alone", phase) for phase in PHASES))
    mask = BlockMask(jnp.array([0, 1, 3], jnp.int32), LAYER.kernel_shape, LAYER.block)
    x, kernel, bias = jnp.ones(x_shape), jnp.ones(LAYER.kernel_shape), jnp.ones(64)

    def loss(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return jnp.sum(sparse_linear(x, kernel, bias, axis=axis, mask=mask))

    jax.grad(loss, argnums=(0, 1, 2))(x, kernel, bias)
    products = ("product", "input_gradient", "kernel_gradient")
    assert sorted(computed) == sorted((f"{product} alone", product) for product in products)


def test_the_cpu_engine_is_refused_for_what_it_does_not_compute():
    wide = SparseLayer((64, 64), (32, 32), 3, -1, "float64")
    cpu = ENGINES["cpu"]
    assert "float32 and bfloat16, not float64" in str(cpu.reason_against(wide, "cpu"))
    for platform in ("gpu", "tpu"):
        assert repr(platform) in str(cpu.reason_against(LAYER, platform))
    assert choose("auto", wide).name == "reference"
    with pytest.raises(InputError, match="engine 'cpu' cannot run here"):
        choose("cpu", wide)


def test_auto_gives_every_reason_where_nothing_can_run(monkeypatch):
    class Worse(Unable):
        name = "worse"

        def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
            return "it never does"

    monkeypatch.setattr(engines, "ENGINES", {"unable": Unable(), "worse": Worse()})
    with pytest.raises(InputError) as caught:
        choose("auto", LAYER)
    assert "'unable'" in str(caught.value)
    assert "install abacus" in str(caught.value)
    assert "'worse' cannot run here: it never does" in str(caught.value)


def test_the_platform_and_the_layer_are_what_the_engine_is_asked_about(monkeypatch):
    asked = []

    class Curious(Able):
        def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
            asked.append((layer, platform))
            return None

    monkeypatch.setattr(engines, "ENGINES", {"able": Curious()})
    choose("able", LAYER)
    assert len(asked) == 1
    layer, platform = asked[0]
    assert layer == LAYER
    assert platform in ("cpu", "gpu", "tpu")


@pytest.mark.parametrize("name", ["cuda", "", "Reference"])
def test_an_unknown_engine_is_named_with_the_known_ones(name):
    with pytest.raises(InputError) as caught:
        choose(name, LAYER)
    assert f"engine {name!r} is unknown" in str(caught.value)
    assert f"choose one of {', '.join(('auto', *ENGINES))}" in str(caught.value)
