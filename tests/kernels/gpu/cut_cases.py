"""GPU kernels cut as a table may have it, or as the tuner may try."""

import itertools
import random
from typing import Any, Literal

import jax
import jax.numpy as jnp
from case_lists import MANY, MANY_OF_MOSAIC
from cases import ENGINES, METHODS, N_IN, N_OUT, TRITON, Case, case
from convolution_cases import convolution_case
from machine_code import ARCHITECTURES
from pair_cases import FUSED, fused, mlp_case

from pallas_kernels.device_table import TABLES, Problem, read_table
from pallas_kernels.mosaic import hidden_tiles
from pallas_kernels.mosaic.gradient_tiles import DENSE
from pallas_kernels.mosaic.mlp_tiles import APART


def configured(
    kernel: str,
    block: tuple[int, int],
    dtype: Any,
    axis: Literal[-1, -2],
    engine: str = "triton",
) -> list[Case]:
    """One kernel once for each configuration that a table may hold, the heuristic's apart."""
    its, name = ENGINES[engine], jnp.dtype(dtype).name
    kind = (its.name, its.version, METHODS[kernel], name, block, (N_IN, N_OUT), axis)
    # As they are in the process that compiles them, whatever the tests ask of products.
    with jax.default_matmul_precision(None):
        space = its.configurations(Problem(*kind, density=0.2, n_rows=8192))[1:]
    return [
        case(kernel, block, dtype, axis, configuration, engine)
        for configuration in space
        if configuration != DENSE
    ]


def _sample(cases: list[Case], size: int) -> list[Case]:
    """Some of all configurations of the kernels of these cases, the same in every run."""
    every = [
        configured(name, a.block, a.dtype, a.axis, a.engine)
        for a in cases
        if (name := a.kernel.removeprefix("sparsemlp_")) in METHODS
    ]
    return random.Random(0).sample([case for found in every for case in found], size)


def _most_sums(cases: list[Case]) -> list[Case]:
    """Of the products of these cases, by the number of warpgroups, the cut that holds most sums."""
    found: dict[Any, Case] = {}
    for a in cases:
        name = a.kernel.removeprefix("sparsemlp_")
        if name not in ("product", "transposed") or a.operands[0].shape[a.axis] not in (
            N_IN,
            N_OUT,
        ):
            continue
        for own in configured(name, a.block, a.dtype, a.axis, a.engine):
            cut = own.configuration
            key = name, a.block, a.dtype, cut.n_compute
            before = found.get(key, own).configuration
            if (cut.tall, cut.teams) >= (before.tall, before.teams):
                found[key] = own
    return list(found.values())


def _gradients(cases: list[Case]) -> list[Case]:
    """Of the gradients of these cases, by warpgroups, lines and kernel, the cheapest cut on paper.

    Without that of the case itself, which is compiled already.
    """

    def way(cut: Any) -> tuple[int, bool, bool]:
        return cut.n_together, cut.by_rows, cut.balanced

    found: dict[Any, Case] = {}
    for a in cases:
        if a.kernel != "sparsemlp_gradient" or a.operands[0].shape[a.axis] != N_IN:
            continue
        name, its = jnp.dtype(a.dtype).name, ENGINES[a.engine]
        kind = (its.name, its.version, METHODS["gradient"], name, a.block, (N_IN, N_OUT), a.axis)
        for cut in its.configurations(Problem(*kind, density=0.2, n_rows=8192)):
            if cut != DENSE and way(cut) != way(a.configuration):
                made = case("gradient", a.block, a.dtype, a.axis, cut, a.engine)
                found.setdefault((a.block, a.dtype, *way(cut)), made)
    return list(found.values())


def _pairs(cases: list[Case]) -> list[Case]:
    """Of the kernels for two layers, by warpgroups, the cut with most columns, in clusters first.

    Without those of the cases themselves: what is compiled already is not compiled again.
    """
    found: dict[Any, Case] = {}
    for a in cases:
        name, width = a.kernel.removeprefix("sparsemlp_"), a.operands[0].shape[-1]
        if a.engine != "mosaic" or name not in FUSED:
            continue
        for cut in fused(name, a.block, a.dtype, width):
            key = name, a.block, a.dtype, width, cut.n_compute, cut.abreast
            before = found[key].configuration if key in found else None
            if before is None or (cut.cluster > 1, cut.lines) > (before.cluster > 1, before.lines):
                found[key] = mlp_case(name, a.block, a.dtype, width, a.engine, cut)
    own_cases = set(map(str, cases))
    return [a for a in found.values() if str(a) not in own_cases]


def _in_tables(architecture: str) -> list[Case]:
    """The configurations that tables of its devices hold, each once for its kernel and block."""
    names = {method: name for name, method in METHODS.items()}
    engines = {TRITON.name: TRITON}
    if architecture == "sm_90a":
        engines["mosaic"] = ENGINES["mosaic"]
    found: dict[str, Case] = {}
    for path in sorted(TABLES.glob("*.json")):
        words = set(path.stem.split("_"))
        if architecture not in {ARCHITECTURE_OF[word] for word in words & set(ARCHITECTURE_OF)}:
            continue
        for entry in read_table(path):
            problem, its = entry.problem, engines.get(entry.problem.engine)
            if its is None or problem.version != its.version:
                continue
            with jax.default_matmul_precision(None):
                space = its.configurations(problem)
            for cut in space:
                if cut != type(cut)(**entry.configuration) or cut == DENSE:
                    continue
                if problem.kernel in PAIRS_OF_TRITON:
                    own = _pair_of(problem, cut)
                elif problem.kernel in CONVOLUTIONS_OF_TRITON:
                    own = [_convolution_of(problem, cut)]
                else:
                    own = [_product_of(names[problem.kernel], problem, cut)]
                found |= {str(a): a for a in own}
    return list(found.values())


def _product_of(kernel: str, problem: Problem, cut: Any) -> Case:
    """The kernel of a product that is cut so; one of engine `mosaic` is made for its layer."""
    axis, shape = -1 if problem.axis == -1 else -2, problem.kernel_shape
    shape = (N_IN, N_OUT) if problem.engine == TRITON.name else shape
    dtype = jnp.dtype(problem.dtype)
    return case(kernel, problem.block, dtype, axis, cut, problem.engine, shape)


def _convolution_of(problem: Problem, cut: Any) -> Case:
    """The kernel for convolutions that is cut so."""
    kernel, dtype = CONVOLUTIONS_OF_TRITON[problem.kernel], jnp.dtype(problem.dtype)
    return convolution_case(kernel, problem.block, dtype, configuration=cut)


def _pair_of(problem: Problem, cut: Any) -> list[Case]:
    """The kernels for two layers that are cut so; none where they go apart."""
    dtype, width = jnp.dtype(problem.dtype), problem.kernel_shape[0]
    if problem.engine == TRITON.name:
        kernels = PAIRS_OF_TRITON[problem.kernel] if cut.rows else ()
        return [mlp_case(name, problem.block, dtype, width, configuration=cut) for name in kernels]
    if cut in (APART, hidden_tiles.APART):
        return []
    names = (name for name, kernel in FUSED.items() if kernel == problem.kernel)
    return [mlp_case(name, problem.block, dtype, width, "mosaic", cut) for name in names]


def _sampled_pairs_of_triton(size: int) -> list[Case]:
    """As many cuts of each of them as the tuner may try, of blocks that are meant to be used."""
    drawn = random.Random(0)
    found = []
    for name, kernel in itertools.product(("bfloat16", "float32"), PAIRS_OF_TRITON):
        block = (32, 32) if name == "bfloat16" else (64, 64)
        kind = (TRITON.name, TRITON.version, kernel, name, block, (N_IN, N_OUT), -1)
        problem = Problem(*kind, density=0.2, n_rows=8192)
        with jax.default_matmul_precision(None):
            space = TRITON.configurations(problem)
        for cut in drawn.sample(space[2:], size):
            found += _pair_of(problem, cut)
    return found


PAIRS_OF_TRITON = {"mlp": ("mlp",), "mlp_gradients": ("mlp_input", "mlp_weights")}
"""Kernels of engine `triton` for two layers, by what the tuner calls them."""
CONVOLUTIONS_OF_TRITON = {
    "convolution": "convolution",
    "convolution_input_gradient": "convolution_transposed",
    "convolution_gradients": "convolution_gradient",
}
"""Its kernels for convolutions, by what the tuner calls them."""
ARCHITECTURE_OF = {"a30": "sm_80", "a100": "sm_80", "h100": "sm_90a", "h200": "sm_90a"}
"""By a word of what tables call NVIDIA's devices; those of other devices are not compiled."""
IN_TABLES = {architecture: _in_tables(architecture) for architecture in ARCHITECTURES}
"""Kernels with the configurations of the tables, for the GPUs that these are of."""
SAMPLED = {
    architecture: [] if found else [*_sample(MANY, 8), *_sampled_pairs_of_triton(1)]
    for architecture, found in IN_TABLES.items()
}
"""Of GPUs without a table some of all configurations that the tuner may try."""
SAMPLED_OF_MOSAIC = list(
    {
        str(a): a
        for a in [
            *_most_sums(MANY_OF_MOSAIC),
            *_gradients(MANY_OF_MOSAIC),
            *_pairs(MANY_OF_MOSAIC),
        ]
    }.values()
)
"""What the tuner may try of engine `mosaic` on Hopper: the cuts that take the most registers."""
