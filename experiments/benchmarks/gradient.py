"""One unmasked layer whose output gradient is pruned for dX, against the dense layer by XLA."""

import dataclasses
import statistics
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import tyro
from jaxtyping import Array
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Contender, describe_machine, repeated, steps_in_a_turn, take_turns
from pallas_kernels import dense
from sparsemlp import GradientPruning, InputError, sparse_linear
from sparsemlp.blocks import parse_shape
from sparsemlp.engines import check_engine, choose_unmasked
from sparsemlp.gradient_pruning import check_groups, prune_gradient, pruned_input_gradient
from sparsemlp.rules import parse_gradient
from sparsemlp.runs.environment import describe_environment


@dataclasses.dataclass(frozen=True)
class Gradient:
    """One layer whose output gradient is pruned for dX, against the dense layer by XLA."""

    shape: tuple[str, ...] = ("64x256", "256x64", "384x1536", "1536x384")
    """Inputs and outputs of the layer, INxOUT."""
    rule: tuple[str, ...] = ("2:4", "1:4", "2:8", "1:8", "2:16", "4:32", "16:32")
    """How many of M neighbours are kept, N:M."""
    method: str = "magnitude"
    """Which are kept: magnitude, rescaled, random."""
    samples: int = 128
    """Samples of x [samples, tokens, in]."""
    tokens: int = 64
    """Tokens of x."""
    engine: str = "auto"
    """Who takes the largest and multiplies them: auto, or the name of an engine."""
    rounds: int = 9
    """How often each contender takes its turn, of 20 ms or more; the median is over these."""


class Tensors(NamedTuple):
    """What a layer and its backward pass are given."""

    x: Array
    kernel: Array
    bias: Array
    dy: Array
    rng: Array


def measure_gradient(options: Annotated[Gradient, tyro.conf.arg(name="")]) -> None:
    """One layer whose output gradient is pruned for dX, against the dense layer by XLA."""
    for name in ("samples", "tokens", "rounds"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name}={getattr(options, name)} must be at least 1")
    check_engine(options.engine)
    rules = [parse_gradient(text, options.method) for text in options.rule]
    shapes = [parse_shape(text) for text in options.shape]
    for shape in shapes:
        for rule in rules:
            check_groups(rule, shape[1])
    table = Table(
        title=f"{options.samples} samples of {options.tokens} tokens, float32, {options.method}: "
        f"dX in ms, and forward + backward, dense / this; engine {options.engine}",
        caption=f"medians of {options.rounds} turns; by XLA: pruning, then the dense product\n"
        + describe_machine(describe_environment()),
    )
    names = ("in x out", "rule", "dense dX", "pruning", "by XLA", "engine", "dense / engine")
    for name in (*names, "f + b by XLA", "f + b engine"):
        table.add_column(name, justify="right")
    for text, shape in zip(options.shape, shapes, strict=True):
        found = measure_layer(shape, rules, options)
        layer, dx = found["dense layer"], found["dense"]
        for rule in rules:
            own = {name: found[f"{name} {rule}"] for name in _phases(rule, options.engine, shape)}
            table.add_row(
                text,
                f"{rule.n}:{rule.m}",
                *(f"{1e3 * s:.2f}" for s in (dx, own["pruning"], own["xla"], own["engine"])),
                *(f"{ratio:.2f}x" for ratio in (dx / own["engine"], layer / own["xla layer"])),
                f"{layer / own['engine layer']:.2f}x",
            )
    Console(width=110).print(table)


def measure_layer(
    shape: tuple[int, int], rules: list[GradientPruning], options: Gradient
) -> dict[str, float]:
    """The median seconds of each contender, all rules of one layer taking turns."""
    tensors = _tensors(shape, options)
    contenders: dict[str, Contender] = {
        "dense": repeated(lambda t: dense.input_gradient(t.dy, t.kernel, -1), tensors),
        "dense layer": repeated(lambda t: _forward_backward(t, None, "reference"), tensors),
    }
    for rule in rules:
        for name, phase in _phases(rule, options.engine, shape).items():
            contenders[f"{name} {rule}"] = repeated(phase, tensors)
    steps = {name: steps_in_a_turn(run) for name, run in contenders.items()}
    seconds = take_turns(contenders, options.rounds, steps)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _phases(rule: GradientPruning, engine: str, shape: tuple[int, int]) -> dict[str, Any]:
    def input_gradient(name: str) -> Any:
        chosen = choose_unmasked(name, shape, "float32")
        return lambda t: pruned_input_gradient(t.dy, t.kernel, rule, chosen, rng=t.rng)

    return {
        "pruning": lambda t: prune_gradient(t.dy, rule, rng=t.rng),
        "xla": input_gradient("reference"),
        "engine": input_gradient(engine),
        "xla layer": lambda t: _forward_backward(t, rule, "reference"),
        "engine layer": lambda t: _forward_backward(t, rule, engine),
    }


def _forward_backward(t: Tensors, rule: GradientPruning | None, engine: str) -> tuple:
    def layer(x: Array, kernel: Array, bias: Array) -> Array:
        return sparse_linear(x, kernel, bias, gradient=rule, engine=engine, rng=t.rng)

    y, pullback = jax.vjp(layer, t.x, t.kernel, t.bias)
    return y, *pullback(t.dy)


def _tensors(shape: tuple[int, int], options: Gradient) -> Tensors:
    rows = (options.samples, options.tokens)
    keys = jax.random.split(jax.random.key(0), 4)
    return Tensors(
        x=jax.random.normal(keys[0], (*rows, shape[0])),
        kernel=jax.random.normal(keys[1], shape) / shape[0] ** 0.5,
        bias=jnp.zeros(shape[1]),
        dy=jax.random.normal(keys[2], (*rows, shape[1])),
        rng=keys[3],
    )
