"""From settings and a data set to the program that trains on it."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from sparsemlp.budgets import check_budget, n_kept_globally, share_out
from sparsemlp.configuration.mask_options import dynamics
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.settings import Settings, augmentation, depth_and_plan
from sparsemlp.data import LabelledImages
from sparsemlp.distributed.parallel import data_mesh
from sparsemlp.engines import check_convolving, choose_convolving, choose_engine
from sparsemlp.errors import InputError
from sparsemlp.mask_trees import mask_shapes
from sparsemlp.plan import Plan, masks_alone
from sparsemlp.planned_kernels import block_counts, masked_kernels, named_for_masking
from sparsemlp.resmlp import ResMLP
from sparsemlp.resnet import ResNet9
from sparsemlp.train.learning_rates import by_epoch, by_step, learning_rate, triangular_rate
from sparsemlp.train.optimizer import adam_with_l2, adamw, sgd_with_l2
from sparsemlp.train.train_state import Program, initial_state

_MOST_STEPS = 2**31 - 1
"""The largest int32, in which a training state counts."""


def build_program(settings: Settings, dataset: LabelledImages) -> Program:
    """The training program of a run.

    Raises:
      InputError: the settings do not fit the data set or the model.
    """
    n_images, (height, width, channels) = dataset.n_train, dataset.image_shape
    if height != width:
        raise InputError(
            f"{dataset.source} has images of {height}x{width} pixels: "
            f"{recipe(settings.model).title} takes square ones, crop or pad them"
        )
    if settings.cutout > height:
        raise InputError(
            f"--cutout={settings.cutout} is larger than the images of {dataset.source}, "
            f"{height}x{width} pixels: choose at most {height}"
        )
    if settings.batch_size > n_images:
        left = " that --hold-out leaves" if settings.hold_out else ""
        raise InputError(
            f"--batch-size={settings.batch_size} is larger than the {n_images} training images "
            f"of {dataset.source}{left}: choose at most {n_images}"
        )
    steps_per_epoch = settings.steps_per_epoch(n_images)
    if settings.epochs * steps_per_epoch > _MOST_STEPS:
        raise InputError(
            f"--epochs={settings.epochs} of {steps_per_epoch} steps are more steps than can be "
            f"counted: choose at most {_MOST_STEPS // steps_per_epoch}"
        )
    mesh = _mesh(settings)
    program = Program(
        model=_with_budget(_model(settings, height, channels, dataset.n_classes), settings),
        optimizer=_optimizer(settings, steps_per_epoch),
        augmentation=augmentation(settings),
        mean=dataset.mean,
        std=dataset.std,
        seed=settings.seed,
        flip_test=settings.flip_test,
        dynamics=dynamics(settings),
        mesh=mesh,
        at_once=_at_once(settings, 1 if mesh is None else mesh.size),
        ema=settings.ema,
    )
    state = jax.eval_shape(lambda: initial_state(program))
    _check_engine(program, state)
    for batch in {settings.batch_size, n_images % settings.batch_size} - {0}:
        _check_rules(program, state, batch, (height, width, channels))
    return program


def _model(settings: Settings, image_size: int, channels: int, n_classes: int) -> ResMLP | ResNet9:
    depth, plan = depth_and_plan(settings)
    common: dict[str, Any] = {
        "image_size": image_size,
        "channels": channels,
        "n_classes": n_classes,
        "plan": plan,
        "remat": settings.remat,
        "engine": settings.engine,
        "dtype": jnp.dtype(settings.precision),
    }
    own: dict[str, Any] = {
        name: getattr(settings, name) for name in recipe(settings.model).architecture
    }
    if recipe(settings.model).family == "resnet9":
        return ResNet9(**common | own)
    return ResMLP(**common | own | dict[str, Any](depth=depth))


def _mesh(settings: Settings) -> Mesh | None:
    """The devices of a run."""
    by_batch = reason_against_devices(settings) is not None
    if by_batch and jax.process_count() > 1:
        raise InputError(
            "resnet9 normalises by the statistics of the images on one device, so that its numbers "
            "would change: train it in one process, without --processes"
        )
    if by_batch and settings.devices is None:
        return None
    mesh = data_mesh(settings.devices, settings.batch_size)
    if mesh is not None and by_batch:
        raise InputError(f"--devices={settings.devices}: {reason_against_devices(settings)}")
    return mesh


def reason_against_devices(settings: Settings) -> str | None:
    """Why a run has to be on one device; None if it may be divided among several."""
    if recipe(settings.model).family != "resnet9":
        return None
    return (
        "resnet9 normalises by the statistics of the images on one device, so that its numbers "
        "would change: leave --devices out"
    )


def _at_once(settings: Settings, n_devices: int) -> int | None:
    """The images that are computed at once, by all devices together; None for a whole batch."""
    own = settings.batch_size // n_devices
    if settings.accumulate > own:
        where = "a step" if n_devices == 1 else f"each of {n_devices} devices"
        raise InputError(
            f"--accumulate={settings.accumulate} is more than the {own} images of {where}: choose "
            f"at most {own}, or a larger --batch-size"
        )
    if settings.accumulate == 1:
        return None
    return -(-settings.batch_size // settings.accumulate)


def _with_budget(model: ResMLP | ResNet9, settings: Settings) -> ResMLP | ResNet9:
    """The model with the kept weights shared out among its layers."""
    size = model.image_size
    images = jax.ShapeDtypeStruct((1, size, size, model.channels), jnp.float32)
    params = jax.eval_shape(lambda image: model.init(jax.random.key(0), image), images)["params"]
    return model.clone(plan=share_out(params, model.plan, check_budget(settings.budget)))


def _optimizer(settings: Settings, steps_per_epoch: int) -> optax.GradientTransformation:
    paced = by_epoch if settings.schedule == "cosine" else by_step
    make = {"adam": adam_with_l2, "adamw": adamw, "sgd": sgd_with_l2}[settings.optimizer]
    rate = paced(epoch_learning_rate(settings), steps_per_epoch)
    return make(rate, weight_decay=settings.weight_decay)


def _check_engine(program: Program, state: Any) -> None:
    """Raises InputError if the engine cannot compute a masked layer here: masks may start late."""
    model = program.model
    windows = {path: kernel.shape for path, kernel, _ in masked_kernels(state.params, model.plan)}
    for path, mask in mask_shapes(state.params, model.plan).items():
        dtype = str(jnp.dtype(model.dtype))
        layer = mask.sparse_layer(-1, dtype)
        if len(windows[path]) > 2 and windows[path][:2] != (1, 1):
            check_convolving(model.engine, windows[path][:2], path)
            choose_convolving(model.engine, layer, "product", windows[path][2], 1)
        else:
            choose_engine(model.engine, layer, "product", 1)


def _check_rules(program: Program, state: Any, batch: int, shape: tuple[int, ...]) -> None:
    """Raises InputError if rules for activations or gradients do not fit so many such images."""
    if masks_alone(program.model.plan):
        return

    def total(params: Any, batch_stats: Any, images: Any, rng: Any) -> Any:
        variables = {"params": params, "batch_stats": batch_stats}
        logits, _ = program.train_logits(variables, images, {"gradient": rng, "drop_path": rng})
        return jnp.sum(logits)

    at_once = program.images_at_once(batch)
    images = jax.ShapeDtypeStruct((at_once, *shape), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        jax.eval_shape(jax.grad(total), state.params, state.batch_stats, images, key)
    except InputError as error:
        parts = "" if at_once == batch else f", {at_once} of them at once"
        raise InputError(f"with a batch of {batch} images{parts}: {error}") from error


def epoch_learning_rate(settings: Settings) -> Any:
    """The learning rate as a function of the epoch, from 0; by a triangle of fractions as well."""
    return functools.partial(
        learning_rate if settings.schedule == "cosine" else triangular_rate,
        peak=settings.lr,
        epochs=settings.epochs,
        warmup_epochs=settings.warmup_epochs,
        start=settings.warmup_lr,
        minimum=min(settings.min_lr, settings.lr),
    )


def n_parameters(params: Any) -> int:
    """How many numbers a pytree of parameters holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def mask_density(params: Any, plan: Plan, budget: str = "uniform") -> float:
    """The share of the weights of all kernels with a masking rule that is kept; 1 without one.

    Args:
      params: nested mapping of arrays or `jax.ShapeDtypeStruct`.
      plan: which parameter gets which rules.
      budget: `global` if the plan's blocks are still to be shared out by it.
    """
    named = named_for_masking(params, plan)
    sizes = {path: math.prod(shape) for path, shape in named.items()}
    kernels = list(masked_kernels(params, plan))
    if not kernels:
        return 1.0
    if budget == "global":
        n_blocks = sum(block_counts(params, plan).values())
        rule = kernels[0][2]
        kept = n_kept_globally(n_blocks, len(kernels), rule.ratio) * math.prod(rule.block)
    else:
        masks = mask_shapes(params, plan).values()
        kept = sum(mask.n_kept * math.prod(mask.block) for mask in masks)
    unmasked = sum(sizes.values()) - sum(sizes[path] for path, _, _ in kernels)
    return (unmasked + kept) / sum(sizes.values())
