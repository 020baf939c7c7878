"""A Hopper in Python that runs what engine `mosaic` launches, as unkindly as a GPU may.

JAX's interpreter lets every program of a cluster copy for itself, and multiplies at once. Here a
copy spoils its destination when it starts and arrives at any later time, with the bytes of every
program's part; a product reads its operands when it starts and again at the last moment that a wait
for it allows; what is written through shared memory is read there at that moment; the warpgroups of
all programs of a cluster take turns in random order. What a buffer that is overwritten too early, a
barrier that is arrived at too often, slips by a phase or never opens, or a program that others
still reach does, is an error here, or a wrong result.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.experimental import pallas as pl
from simulated_memory import Barrier, Barriers, Program, Ref, SimulationError, running
from simulated_numbers import take_numbers_of_numpy
from simulated_warpgroups import HERE, Cluster, Product, Sums, Warpgroup

from pallas_kernels.mosaic import launch, warpgroup

LOADED = collections.Counter[str]()
"""Bytes that were copied to shared memory, by the name of the operand."""


def _fetch(source: Ref, destination: Ref, barrier: Barriers, *, together: bool = False) -> None:
    HERE.cluster.take_turns()
    own, values = HERE.warpgroup.program, source.read()
    programs = own.cluster if together else [own]
    size = values.shape[0] // len(programs)
    if size % launch.TILE_ROWS:
        raise SimulationError(f"{size} rows of {destination.name} are not whole tiles")
    part = slice(own.rank * size, (own.rank + 1) * size) if together else slice(None)
    LOADED[source.name] += values[part].nbytes
    targets = []
    for program in programs:
        its_own = running(program).memory[destination.name].array
        ref = dataclasses.replace(destination, array=its_own)
        ref.array[ref.index][part] = np.nan
        targets.append((program, ref))
    barrier.own.arrive(values.nbytes)

    def land(program: Program, ref: Ref) -> None:
        ref.array[ref.index][part] = values[part]
        barriers = running(program).memory[barrier.name].barriers
        barriers[barrier.index].complete(values[part].nbytes)

    HERE.cluster.copies += [functools.partial(land, *target) for target in targets]


def _arrive(barrier: Barriers) -> None:
    HERE.cluster.take_turns()
    if barrier.of_cluster:
        # The first warp arrives for all, and others may still wait for the use before.
        behind = {(b.buffer, b.index) for b in _apart()}
        if (barrier.buffer, barrier.index) in behind:
            raise SimulationError(f"{barrier.name} is arrived at while warps wait for its buffer")
    for each in barrier.in_all():
        each.arrive()


def _wait(barrier: Barriers) -> None:
    own, phases = barrier.own, HERE.warpgroup.phases
    phase = phases.get(own, 0)
    # The hardware knows whether a phase is even or odd, and no more.
    HERE.cluster.take_turns(until=lambda: own.phase % 2 != phase % 2)
    if own.phase - phase > 1:
        raise SimulationError(f"{barrier.name} opens again before all have seen it open")
    phases[own] = phase + 1
    HERE.warpgroup.apart.append(barrier)


def _meet() -> None:
    HERE.cluster.take_turns()
    HERE.warpgroup.apart.clear()
    for ref, values in HERE.warpgroup.stores:
        ref.write(values)
    HERE.warpgroup.stores.clear()


def _apart() -> list[Barriers]:
    """Barriers that some warps may not have left: those before products that have not ended too."""
    own = HERE.warpgroup
    return [*own.apart, *(barrier for product in own.products for barrier in product.seen)]


def _start_product(total: Sums, a: Ref, b: Ref) -> None:
    HERE.cluster.take_turns()
    before = (a.read().copy(), b.read().copy())
    own = HERE.warpgroup
    own.products.append(Product(total, (a, b), before, own.apart))
    own.apart = []


def _finish_products(n_left: int) -> None:
    products = HERE.warpgroup.products
    HERE.cluster.take_turns()
    while len(products) > n_left:
        products.pop(0).end()


def _store(value: Array, destination: Ref) -> None:
    """Spoils the destination at once; tensor cores find the numbers there after `meet`."""
    HERE.cluster.take_turns()
    destination.write(np.full(value.shape, np.nan, destination.dtype))
    HERE.warpgroup.stores.append((destination, np.asarray(value.astype(destination.dtype))))


def _put(value: Array, destination: Ref) -> None:
    HERE.cluster.take_turns()
    destination.write(np.asarray(value.astype(destination.dtype)))


def _write(value: Array, staging: Ref, destination: Ref, n_others: int = 0) -> None:
    _finish_writes(n_others)
    staging.write(np.asarray(value.astype(staging.dtype)))
    HERE.warpgroup.writes.append((staging, destination))


def _write_blocks(
    value: Array, staging: Ref, destination: Ref, first_row: Array, height: int, n_blocks: Array
) -> None:
    HERE.cluster.take_turns()
    staging.write(np.asarray(value.astype(staging.dtype)))
    height = min(height, value.shape[0])
    n_rows = min(int(n_blocks) * height, value.shape[0])
    rows = destination.at[pl.ds(first_row, n_rows)]
    HERE.warpgroup.writes.append((staging, rows))


def _finish_writes(n_left: int = 0) -> None:
    writes = HERE.warpgroup.writes
    HERE.cluster.take_turns()
    while len(writes) > n_left:
        staging, destination = writes.pop(0)
        destination.write(staging.read())


def careless(name: str) -> Callable[[Barriers], None]:
    """Waits as a warpgroup does, but not at the barriers of a name."""
    wait = warpgroup.wait

    def wait_for_others(barrier: Barriers) -> None:
        if barrier.name != name:
            wait(barrier)

    return wait_for_others


def _memory(program: Program, name: str, spec: Any, cluster: int) -> Any:
    if not hasattr(spec, "num_arrivals"):
        return Ref(np.full(spec.shape, np.nan, spec.dtype), name)
    of_cluster = isinstance(spec, launch.plgpu.ClusterBarrier)
    count = spec.num_arrivals * (cluster if of_cluster else 1)
    barriers = [Barrier(count) for _ in range(math.prod(spec.num_barriers))]
    return Barriers(program, name, barriers, of_cluster)


def _launch(
    _: str,
    kernel: Callable[..., None],
    operands: Sequence[Array],
    *,
    grid: tuple[int, ...],
    out: Any,
    scratch: dict[str, Any],
    n_warpgroups: int,
    interpret: bool,
    cluster: int = 1,
    seeds: Any,
) -> Any:
    """As `launch.launch`, one cluster after another."""
    assert interpret
    inputs = [Ref(np.array(a), f"operand {i}") for i, a in enumerate(operands)]
    outs = jax.tree.leaves(out)
    results = [Ref(np.full(o.shape, np.nan, o.dtype), f"result {i}") for i, o in enumerate(outs)]
    for place in itertools.product(*map(range, grid)):
        programs: list[Program] = []
        for rank in range(cluster):
            axes = dict(zip((launch.X, launch.Y), place, strict=False)) | {launch.CLUSTER: rank}
            program = Program(axes, rank, programs, {}, n_warpgroups)
            program.memory |= {n: _memory(program, n, s, cluster) for n, s in scratch.items()}
            programs.append(program)
        warpgroups = [Warpgroup(p, i) for p in programs for i in range(n_warpgroups)]
        run = Cluster(warpgroups, next(seeds))

        def body() -> None:
            kernel(*inputs, *results, **HERE.warpgroup.program.memory)
            if HERE.warpgroup.products or HERE.warpgroup.writes:
                raise SimulationError("a warpgroup ends before its products or writes")

        run.run(body)
        if run.copies:
            raise SimulationError("a cluster ends before its copies")
    found = [jnp.asarray(result.array) for result in results]
    return jax.tree.unflatten(jax.tree.structure(out), found)


def _axis_index(name: str) -> np.int32:
    own = HERE.warpgroup
    return np.int32(own.number if name == launch.WARPGROUP else own.program.axes[name])


def _fori_loop(first: Any, last: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
    for i in range(int(first), int(last)):
        state = body(np.int32(i), state)
    return state


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    """What engine `mosaic` launches runs on this Hopper, and not through JAX.

    Numbers are NumPy's, as JAX's would take most of the time, and so annotations are left
    unchecked.
    """
    take_numbers_of_numpy(monkeypatch)
    replaced = {
        "fetch": _fetch,
        "arrive": _arrive,
        "wait": _wait,
        "meet": _meet,
        "start_product": _start_product,
        "finish_products": _finish_products,
        "put": _put,
        "write": _write,
        "write_blocks": _write_blocks,
        "finish_writes": _finish_writes,
        # Copies, as JAX would take NumPy's memory for its own and read it later.
        "load_row": lambda ref: jnp.asarray(ref.read().copy()),
        "load_sums": lambda ref: jnp.asarray(ref.read().copy(), jnp.float32),
        "store": _store,
        "read": lambda ref, at: np.int32(ref.array[tuple(map(int, np.atleast_1d(at)))]),
        "turned": lambda ref: dataclasses.replace(ref, is_turned=True),
        "with_accumulators": lambda shape, n, use: use(*(Sums(shape) for _ in range(n))),
    }
    for name, function in replaced.items():
        monkeypatch.setattr(warpgroup, name, function)
    monkeypatch.setattr(launch, "launch", functools.partial(_launch, seeds=itertools.count()))
    LOADED.clear()
    monkeypatch.setattr(jax.lax, "axis_index", _axis_index)
    monkeypatch.setattr(jax.lax, "fori_loop", _fori_loop)
    monkeypatch.setattr(launch.plgpu, "set_max_registers", lambda *_, **__: None)
