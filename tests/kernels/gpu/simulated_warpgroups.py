"""Warpgroups on the Hopper in Python (`simulated_hopper`): their turns, sums and products."""

import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from simulated_memory import Barrier, Barriers, Program, Ref, SimulationError

HERE = threading.local()
"""Of the thread that runs: its `warpgroup` and its `cluster`."""


class Sums:
    """An accumulator of a warpgroup."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.value = np.zeros(shape, np.float32)

    def __getitem__(self, _: Any) -> Array:
        if any(product.total is self for product in HERE.warpgroup.products):
            raise SimulationError("sums are read while products still add to them")
        return jnp.asarray(self.value)


@dataclasses.dataclass(eq=False)
class Product:
    """A product on its way, with its operands as they were when it started.

    All warps of a warpgroup take part in it: when it ends, all have left the barriers that they
    waited for before it.
    """

    total: Sums
    operands: tuple[Ref, Ref]
    before: tuple[np.ndarray, np.ndarray]
    seen: list[Barriers]

    def end(self) -> None:
        for ref, before in zip(self.operands, self.before, strict=True):
            if not np.array_equal(ref.read(), before, equal_nan=True):
                raise SimulationError(f"{ref.name} is overwritten while a product reads it")
        a, b = (o.astype(np.float32) for o in self.before)
        self.total.value += a @ b


@dataclasses.dataclass(eq=False)
class Warpgroup:
    """A warpgroup: whom it belongs to, what it waits for and what it has started."""

    program: Program
    number: int
    products: list[Product] = dataclasses.field(default_factory=list)
    phases: dict[Barrier, int] = dataclasses.field(default_factory=dict)
    apart: list[Barriers] = dataclasses.field(default_factory=list)
    """Barriers that some of its warps may not have left."""
    stores: list[tuple[Ref, np.ndarray]] = dataclasses.field(default_factory=list)
    """What it has stored and tensor cores may not find yet."""
    writes: list[tuple[Ref, Ref]] = dataclasses.field(default_factory=list)
    """From where in shared memory to where it copies results, on their way."""
    waits_for: Callable[[], bool] | None = None


class Cluster:
    """The warpgroups of one cluster, of which one runs at a time."""

    def __init__(self, warpgroups: list[Warpgroup], seed: int) -> None:
        self.random = random.Random(seed)
        self.alive, self.copies = warpgroups, list[Callable[[], None]]()
        self.next: Warpgroup | None = None
        self.changed = threading.Condition()
        self.error: BaseException | None = None

    def run(self, body: Callable[[], None]) -> None:
        """Runs the kernel in every warpgroup, and raises what the first one raised."""
        threads = [threading.Thread(target=self._run, args=(w, body)) for w in self.alive]
        with self.changed:
            self._choose()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def _run(self, own: Warpgroup, body: Callable[[], None]) -> None:
        HERE.warpgroup, HERE.cluster = own, self
        try:
            with jax.disable_jit():
                self._await_turn(own)
                body()
        except BaseException as error:  # It belongs to whoever called `run`.
            self.error = self.error or error
        with self.changed:
            self.alive.remove(own)
            own.program.n_running -= 1
            self._choose()

    def take_turns(self, until: Callable[[], bool] | None = None) -> None:
        """Lets others run, and comes back once `until` holds."""
        own = HERE.warpgroup
        own.waits_for = until
        with self.changed:
            self._choose()
        self._await_turn(own)
        own.waits_for = None

    def _await_turn(self, own: Warpgroup) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.next is own or self.error is not None)
        if self.error is not None:
            raise SimulationError("another warpgroup failed")

    def _choose(self) -> None:
        while self.alive and self.error is None:
            ready = [w for w in self.alive if w.waits_for is None or w.waits_for()]
            if self.copies and (not ready or self.random.random() < 0.3):
                try:
                    self.copies.pop(self.random.randrange(len(self.copies)))()
                except SimulationError as error:
                    self.error = error
            elif ready:
                self.next = self.random.choice(ready)
                break
            else:
                self.error = SimulationError("every warpgroup waits for a barrier that never opens")
        self.changed.notify_all()
