"""A check that passes what rounding explains and nothing else, for every kernel."""

import jax
import jax.numpy as jnp
import pytest
from tuning.kernel_check import Wanted, expected, reason_wrong
from tuning.kernel_problems import PRODUCTS, layer_of, work_of
from tuning.work import Work

from pallas_kernels import Reference
from pallas_kernels.lists import ids_of, listed

LAYER = layer_of((64, 128), (32, 32), 0.5, -1, "bfloat16")


class Forgets(Reference):
    """Leaves the last kept block out."""

    def product(self, x, kernel, bias, kept, layer):
        return super().product(x, kernel, bias, kept[:-1], layer)

    def input_gradient(self, dy, kernel, kept, layer):
        return super().input_gradient(dy, kernel, kept[:-1], layer)

    def kernel_gradient(self, x, dy, kept, layer):
        return super().kernel_gradient(x, dy, kept[:-1], layer)


@pytest.mark.parametrize(
    ("kernel", "dtype"), [*((kernel, "bfloat16") for kernel in PRODUCTS), ("product", "float32")]
)
def test_the_reference_is_right_and_a_missing_block_or_mask_is_not(kernel, dtype):
    layer = layer_of((64, 128), (32, 32), 0.5, -1, dtype)
    work = work_of(kernel, layer, 40)
    wanted = expected(work)

    def wrong(function):
        return reason_wrong(jax.jit(function)(*work.operands), wanted, dtype, work)

    assert not wrong(work.sparse(Reference()))
    assert "is off by" in wrong(work.sparse(Forgets()))
    assert wrong(work.dense)


def test_one_block_of_hundreds_is_noticed_in_a_pair_of_layers():
    layer = layer_of((256, 1024), (16, 16), 0.5, -1, "bfloat16")
    work = work_of("mlp", layer, 128)
    assert work.reference is not None
    wanted, reference = expected(work), jax.jit(work.reference)
    x, dy, w1, b1, k1, w2, b2, k2 = work.operands
    less1, less2 = (listed(ids_of(k)[:-1], n) for k, n in ((k1, (16, 64)), (k2, (64, 16))))

    def wrong(k1, k2):
        return reason_wrong(reference(x, dy, w1, b1, k1, w2, b2, k2), wanted, "bfloat16", work)

    assert not wrong(k1, k2)
    assert "result 0 is off by" in wrong(k1, less2)
    assert "is off by" in wrong(less1, k2)


def test_what_has_to_be_zero_has_to_be_zero():
    work = work_of("product", LAYER, 40)
    zero, one = jnp.array([0.0, 1.0])
    wanted = Wanted(jnp.array([zero, one]), jnp.array([True, False]))
    assert "not zero" in reason_wrong(jnp.array([1e-9, one]), wanted, "bfloat16", work)
    assert "is off" in reason_wrong(jnp.array([zero, jnp.nan]), wanted, "bfloat16", work)
    assert not reason_wrong(wanted.results, wanted, "bfloat16", work)


def test_a_sum_may_be_zero_by_chance():
    def cancels(x):
        return jnp.stack([x[0] + x[1], 0 * x[0]])

    work = Work(lambda _: cancels, cancels, (jnp.array([4.0, -4.0]),), 1)
    wanted = expected(work)
    assert not wanted.results.any()
    assert wanted.is_empty.tolist() == [False, True]


@pytest.mark.parametrize(("kernel", "n_dropped"), [("kernel_gradient", 1), ("mlp", 2)])
def test_what_has_no_terms_is_what_is_dropped(kernel, n_dropped):
    leaves = jax.tree.leaves(expected(work_of(kernel, LAYER, 40)).is_empty)
    kernels = [leaf for leaf in leaves if leaf.shape in ((64, 128), (128, 64))]
    # Weights of hidden units that the second kernel does not use have no gradient either.
    assert len([leaf for leaf in kernels if int(leaf.sum()) >= 64 * 64]) == n_dropped


def test_tf32_is_right_for_float32_and_three_bits_are_not():
    layer = layer_of((64, 128), (32, 32), 0.5, -1, "float32")
    work = work_of("product", layer, 40)
    wanted = expected(work)
    for bits, is_right in ((10, True), (3, False)):
        rounded = jax.tree.map(
            lambda a, bits=bits: (
                jax.lax.reduce_precision(a, 8, bits) if a.dtype == jnp.float32 else a
            ),
            work.operands,
        )
        found = jax.jit(work.sparse(Reference()))(*rounded)
        assert (reason_wrong(found, wanted, "float32", work) == "") is is_right
