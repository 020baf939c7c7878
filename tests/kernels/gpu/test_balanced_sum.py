"""dW from the sums of programs that have as much to do each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulated_hopper import simulated
from simulated_memory import SimulationError
from test_product_program import INTERPRETED
from test_products import normal

from pallas_kernels import SparseLayer
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.balanced_groups import Groups, table_of
from pallas_kernels.mosaic.balanced_shares import Plan, shares_of
from pallas_kernels.mosaic.balanced_sum import sum_balanced
from pallas_kernels.mosaic.warpgroup import Table

__all__ = ["simulated"]


class ArrayTable(Table):
    """A table that is read outside of a kernel."""

    def read(self, index: jax.Array) -> jax.Array:
        return self.ref[self.which, index]


GRID = (3, 3)
KEPT = np.asarray([2, 5, 7, 8], np.int32)
CASES = pytest.mark.parametrize(
    ("block", "dtype", "n_together", "n_programs", "in_rounds"),
    [
        # Of four groups by rows, or three by columns: all shared by many, and some after a round.
        ((64, 64), "bfloat16", 1, 12, False),
        ((128, 64), "float32", 1, 3, True),
        ((64, 128), "bfloat16", 2, 5, False),
        ((32, 32), "bfloat16", 2, 2, True),
        ((16, 16), "bfloat16", 4, 7, False),
        ((64, 64), "bfloat16", 1, 2, True),
    ],
    ids=str,
)


def check(
    block: tuple[int, int], dtype: str, n_together: int, n_programs: int, in_rounds: bool
) -> None:
    """Four blocks of nine, listed by rows and by columns, beside those of another kernel."""
    rows, cols = block
    layer = SparseLayer((3 * cols, 3 * rows), block, len(KEPT), -1, dtype)
    ids = jnp.stack([jnp.arange(4, dtype=jnp.int32), jnp.asarray(KEPT)])
    blocks, plan = list_alike(ids, GRID)[1], Plan(9, n_programs, 3, n_together, in_rounds)
    for by_rows, order in ((True, [2, 5, 7, 8]), (False, [7, 2, 5, 8])):
        before = table_of(blocks, n_together, by_rows=by_rows, with_bias=False)
        # What nobody has written is anything.
        parts = np.full((plan.n_places(len(KEPT)), cols, rows), np.nan, np.float32)
        want = np.zeros((*GRID, cols, rows), np.float32)
        lists = blocks.rows if by_rows else blocks.columns
        which = jnp.int32(1)
        groups = Groups(ArrayTable(before, which), ArrayTable(lists.start, which), plan.beside)
        shares = shares_of(plan, groups)
        for program in range(n_programs):
            span = shares.span(jnp.int32(program))
            for turn in range(int(shares.n_parts(span))):
                part = shares.part(jnp.int32(program), span, jnp.int32(turn))
                group = groups.find(part.group)
                entry, length = int(group.entry), int(group.length)
                place = entry if part.share == 0 else len(KEPT) + program * n_together
                assert np.isnan(parts[place : place + length]).all()
                sums = np.asarray(normal(length, cols, rows, seed=99 * program + turn))
                parts[place : place + length] = sums
                for index in range(length):
                    want[divmod(order[entry + index], 3)] += sums[index]
        found, _ = sum_balanced(
            (jnp.asarray(parts).reshape(-1, rows),),
            blocks,
            layer,
            plan,
            before,
            by_rows=by_rows,
            interpret=True,
        )
        assert found.dtype == jnp.dtype(dtype)
        want = want.swapaxes(1, 2).reshape(layer.kernel_shape)
        rounded = np.asarray(jnp.asarray(want).astype(dtype), np.float32)
        tolerance = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(np.asarray(found, np.float32), rounded, rtol=tolerance)


@pytest.mark.thorough(after=1)
@INTERPRETED
@CASES
def test_each_share_is_added_once(block, dtype, n_together, n_programs, in_rounds):
    check(block, dtype, n_together, n_programs, in_rounds)


@pytest.mark.usefixtures("simulated")
@CASES
def test_a_simulated_hopper_waits_for_each_share(block, dtype, n_together, n_programs, in_rounds):
    with jax.disable_jit():
        check(block, dtype, n_together, n_programs, in_rounds)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_shares_that_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(warpgroup, "wait", lambda _: None)
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        check((64, 64), "bfloat16", 1, 12, in_rounds=False)
