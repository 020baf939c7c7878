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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from benchmarks.residuals import saved_bytes
from tuning.device_lock import Lock, device_lock, unlocked
from tuning.device_timing import UNTUNED, WARM_SECONDS, Loop, compile_loops, time_loops
from tuning.kernel_problems import gpu_engines

from pallas_kernels import ENGINES
from sparsemlp import (
    BlockMasking,
    InputError,
    ResMLP,
    resmlp_b24,
    resmlp_cifar10,
    resmlp_imagenet,
    resmlp_s12,
    resmlp_s24,
    select_masks,
)
from sparsemlp.errors import require_known
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import Record, write_json
from sparsemlp.mask_trees import flatten_masks, list_masks
from sparsemlp.masks import BlockMask
from sparsemlp.options import cli
from sparsemlp.plan import Plan
from sparsemlp.train.losses import cross_entropy

RATIO = 0.8
_TURN_SECONDS = 0.1
"""How long a turn takes at least."""


def _tiny(**changes: Any) -> ResMLP:
    return ResMLP(image_size=32, patch_size=8, dim=32, depth=1, expansion=2, **changes)


class Case(NamedTuple):
    """A model as it is timed.

    Attributes:
      make: makes the model.
      batch: images in a step.
      block: of the mask.
      with_tokens: whether the token mixing, whose sides the block then divides, is masked beside
        the channel mixing.
    """

    make: Callable[..., ResMLP]
    batch: int
    block: tuple[int, int]
    with_tokens: bool


MODELS = {
    "resmlp_b24": Case(resmlp_b24, 64, (64, 64), with_tokens=False),
    "resmlp_imagenet": Case(resmlp_imagenet, 256, (64, 64), with_tokens=True),
    "resmlp_s24": Case(resmlp_s24, 256, (64, 64), with_tokens=False),
    "resmlp_s12": Case(resmlp_s12, 256, (64, 64), with_tokens=False),
    "resmlp_cifar10": Case(resmlp_cifar10, 128, (32, 32), with_tokens=True),
    "tiny": Case(_tiny, 2, (32, 32), with_tokens=False),
}
"""By name, the ones that tell most first."""


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
    make_images = _compiled(lambda: jax.random.normal(jax.random.key(0), _images(model, batch)))
    image = jax.ShapeDtypeStruct(_images(model, 1), jnp.float32)

    def begin(images: Any) -> tuple[Any, Any]:
        params = model.init(jax.random.key(1), images)["params"]
        return params, optimizer.init(params)

    make_state = _compiled(begin, image)
    shapes = jax.eval_shape(begin, image)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        selection = pool.submit(_compiled_selection, model, shapes[0], options.smoke)
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
        return record, None if is_dense else lambda: _selection(selection, params, options)

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
        gradients = jax.grad(_loss(model))(params, images)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def steps(given: tuple[Any, Any], images: Any) -> tuple[Any, Any]:
        return jax.lax.fori_loop(0, n_steps, lambda _, own: step(own[0], own[1], images), given)

    images = jax.ShapeDtypeStruct(_images(model, batch), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(1), images)["params"]
    given = (params, jax.eval_shape(optimizer.init, params))
    return jax.jit(steps, donate_argnums=0).lower(given, images)


def fitting_batch(model: ResMLP, batch: int, limit: int | None) -> int:
    """The largest batch of so many images, halved as often as the bytes of the device ask.

    A quarter of them is left for what `needed_bytes` does not count.
    """
    while limit is not None and batch > 1 and needed_bytes(model, batch) > 0.75 * limit:
        batch //= 2
    return batch


def needed_bytes(model: ResMLP, batch: int) -> int:
    """What the forward pass keeps for the backward pass, parameters, gradients, AdamW's moments."""
    images = jax.ShapeDtypeStruct(_images(model, batch), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    return saved_bytes(_loss(model), params, images) + 5 * 4 * n_params


def _compiled_selection(model: ResMLP, params: Any, is_trial: bool) -> tuple[Any, int, Any]:
    """Programs that select all masks, and make the lists that kernels take of them.

    Returns:
      What selects from parameters; repetitions in a loop, and the loops.
    """

    def select(params: Any) -> Any:
        masks = select_masks(params, model.plan, model.engine)
        return [mask.kept for mask in flatten_masks(masks).values()]

    masks = flatten_masks(
        jax.eval_shape(lambda p: select_masks(p, model.plan, model.engine), params)
    )

    def lists(kept: Any) -> Any:
        own = zip(masks.items(), kept, strict=True)
        bare = {path: BlockMask(ids, mask.kernel_shape, mask.block) for (path, mask), ids in own}
        return list(list_masks(bare, "mosaic").values())

    if not masks:
        return None, 0, {}
    functions = {
        "selection_ms": (select, (params,)),
        "metadata_ms": (lists, (jax.eval_shape(select, params),)),
    }
    n_times = 1 if is_trial else 10
    # Each has many kernels.
    loops = compile_loops(functions, n_times, single=functions)
    return _compiled(select, params), n_times, loops


def _selection(compiled: Any, params: Any, options: Options) -> Record:
    """Milliseconds of the selection of all masks, and of the lists that kernels make of them."""
    select, n_times, loops = compiled.result()
    operands = {"selection_ms": (params,), "metadata_ms": (select(params),)}
    for name, loop in loops.items():
        if isinstance(loop, Loop):
            loop.operands = operands[name]
    warm_seconds = 0.0 if options.smoke else WARM_SECONDS
    timed, failed = time_loops(loops, n_times, options.rounds, warm_seconds)
    return {name: 1e3 * found.median for name, found in timed.items()} | {"failed": failed}


def _loss(model: ResMLP) -> Callable[[Any, Any], Any]:
    def loss(params: Any, images: Any) -> Any:
        masks = select_masks(params, model.plan, model.engine)
        logits: Any = model.apply({"params": params, "masks": masks}, images, train=True)
        targets = jax.nn.one_hot(jnp.zeros(len(logits), int), logits.shape[-1])
        return jnp.mean(cross_entropy(logits, targets))

    return loss


def _images(model: ResMLP, batch: int) -> tuple[int, ...]:
    return batch, model.image_size, model.image_size, model.channels


if __name__ == "__main__":
    sys.exit(main())
