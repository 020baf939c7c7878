"""One kind of training step on a GPU, in a process of its own: its time, and its peak of memory.

    PYTHONPATH=experiments python -m gpu.steps --model=resmlp_b24 --contender=dense --out=FILE.json

A step selects the masks, computes loss and gradients, and updates with AdamW. The images are noise
that stays on the device; augmentation is left out. The allocator's peak is that of a process, so
each contender has one of its own. A batch with which the dense model would not fit is halved until
it does, for all contenders alike. Several contenders may be begun at once: they compile beside each
other, and take turns on the device.
"""

import concurrent.futures
import dataclasses
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from tuning.compiled_loops import UNTUNED
from tuning.device_lock import Lock, device_lock, unlocked
from tuning.device_timing import WARM_SECONDS, time_loops
from tuning.kernel_problems import gpu_engines

from gpu.step_models import MODELS, RATIO, fitting_batch, images_of, loss_of, needed_bytes
from gpu.step_selection import compile_selection, time_selection
from pallas_kernels import ENGINES
from sparsemlp import BlockMasking, InputError, ResMLP
from sparsemlp.errors import require_known
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import Record, write_json
from sparsemlp.options import cli
from sparsemlp.plan import Plan

_TURN_SECONDS = 0.1
"""How long a turn takes at least."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Which step, and where its record goes."""

    model: str
    """resmlp_b24, resmlp_imagenet, resmlp_s24, resmlp_s12, resmlp_cifar10 or tiny."""
    contender: str
    """dense, reference, or the name of an engine for GPUs."""
    out: Path
    """File for the record."""
    dtype: str = "bfloat16"
    """Dtype of the computation: bfloat16 or float32. Parameters are float32."""
    rounds: int = 5
    """Turns; the median is over these."""
    smoke: bool = False
    """Try the program without a GPU, with interpreted kernels; nothing is measured."""


def main() -> int:
    """Measures the step that the command line names, and then, if it masks, its selection."""
    return exit_code(lambda: record_step(cli(Options, description=__doc__)))


def record_step(options: Options) -> None:
    """Writes the record of a step, and once more with that of its selection.

    Raises:
      InputError: as `prepare_step`.
    """
    lock = device_lock(is_trial=options.smoke)
    measure = prepare_step(options, lock)
    with lock():
        record, selection = measure()
        write_json(options.out, record)
        if selection is not None:
            write_json(options.out, record | selection())


def prepare_step(
    options: Options, lock: Lock = unlocked
) -> Callable[[], tuple[Record, Callable[[], Record] | None]]:
    """Compiles a step.

    Args:
      options: which one.
      lock: held while XLA tries products on the device.

    Returns:
      What measures the step, and needs the device from then on. It returns the record, and what
      measures the selection, if there is one, to be added to it.

    Raises:
      InputError: an option that is unknown, or an engine that cannot run here.
    """
    require_known(f"--model={options.model}", options.model, MODELS)
    if options.smoke:
        ENGINES.update(gpu_engines(interpret=True))
    is_dense = options.contender == "dense"
    make, batch, block, with_tokens = MODELS[options.model]
    pattern = "*/X*/kernel" if with_tokens else "*/XChannel?/kernel"
    plan: Plan = {} if is_dense else {pattern: BlockMasking(block, RATIO)}
    engine = "reference" if is_dense else options.contender
    model = make(plan=plan, engine=engine, dtype=jnp.dtype(options.dtype))
    memory = jax.devices()[0].memory_stats() or {}
    # The dense model keeps the most: all contenders get its batch, or they could not be compared.
    whole = make(engine="reference", dtype=jnp.dtype(options.dtype))
    batch = fitting_batch(whole, batch, memory.get("bytes_limit"))
    estimated = needed_bytes(model, batch)
    optimizer = optax.adamw(1e-3)
    n_steps = 1 if options.smoke else 5
    make_images = _compiled(lambda: jax.random.normal(jax.random.key(0), images_of(model, batch)))
    image = jax.ShapeDtypeStruct(images_of(model, 1), jnp.float32)

    def begin(images: Any) -> tuple[Any, Any]:
        params = model.init(jax.random.key(1), images)["params"]
        return params, optimizer.init(params)

    make_state = _compiled(begin, image)
    shapes = jax.eval_shape(begin, image)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        selection = pool.submit(compile_selection, model, shapes[0], options.smoke)
        compiled = _compiled_steps(model, optimizer, batch, n_steps, lock)

    def measure() -> tuple[Record, Callable[[], Record] | None]:
        images = make_images()
        given = make_state(images[:1])
        params = jax.tree.map(jnp.copy, given[0])
        n_calls_a_turn = 1

        def run(n_calls: int) -> None:
            nonlocal given
            for _ in range(n_calls * n_calls_a_turn):
                given = compiled(given, images)
            jax.block_until_ready(given)

        run(1)
        began = time.perf_counter()
        run(1)
        warm_seconds = 0.0
        if not options.smoke:
            n_calls_a_turn = math.ceil(_TURN_SECONDS / (time.perf_counter() - began))
            warm_seconds = WARM_SECONDS
        n_times = n_steps * n_calls_a_turn
        timed, failed = time_loops({"step": run}, n_times, options.rounds, warm_seconds)
        if failed:
            raise InputError(failed["step"])
        memory = jax.devices()[0].memory_stats() or {}
        record: Record = {
            "key": f"{options.model} {options.contender} {options.dtype}",
            "measured": not options.smoke,
            **{name: getattr(options, name) for name in ("model", "contender", "dtype")},
            "batch": batch,
            "block": list(block),
            "ratio": 0.0 if is_dense else RATIO,
            "masked": "" if is_dense else pattern,
            "step_ms": 1e3 * timed["step"].median,
            "quartiles_ms": [1e3 * timed["step"].low, 1e3 * timed["step"].high],
            "estimated_bytes": estimated,
            "planned_bytes": compiled.memory_analysis().temp_size_in_bytes,
            "allocator_peak_bytes": memory.get("peak_bytes_in_use"),
        }

        def time_masks() -> Record:
            compiled = selection.result()
            return time_selection(compiled, params, options.rounds, is_trial=options.smoke)

        return record, None if is_dense else time_masks

    return measure


def _compiled(function: Callable[..., Any], *shapes: Any) -> Any:
    """A program that does not need the device while it is compiled."""
    return jax.jit(function).lower(*shapes).compile(UNTUNED)


def _compiled_steps(
    model: ResMLP, optimizer: optax.GradientTransformation, batch: int, n_steps: int, lock: Lock
) -> Any:
    """The program of `_lowered_steps`.

    With a cache for what XLA compiles, its products are tried on the device for a model of two
    blocks, which has the same, and the whole model is compiled while others have the device.
    """
    whole = _lowered_steps(model, optimizer, batch, n_steps)
    if lock is unlocked:
        return whole.compile()
    if not jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        with lock():
            return whole.compile()
    shallow = model.clone(depth=min(2, model.depth))
    tried = _lowered_steps(shallow, optimizer, batch, n_steps)
    with lock():
        tried.compile()
    return whole.compile()


def _lowered_steps(
    model: ResMLP, optimizer: optax.GradientTransformation, batch: int, n_steps: int
) -> Any:
    """What takes and returns parameters and state, and takes images; not compiled yet."""

    def step(params: Any, state: Any, images: Any) -> tuple[Any, Any]:
        gradients = jax.grad(loss_of(model))(params, images)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def steps(given: tuple[Any, Any], images: Any) -> tuple[Any, Any]:
        return jax.lax.fori_loop(0, n_steps, lambda _, own: step(own[0], own[1], images), given)

    images = jax.ShapeDtypeStruct(images_of(model, batch), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(1), images)["params"]
    given = (params, jax.eval_shape(optimizer.init, params))
    return jax.jit(steps, donate_argnums=0).lower(given, images)


if __name__ == "__main__":
    sys.exit(main())
