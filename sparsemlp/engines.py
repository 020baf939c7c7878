"""Which engine computes a layer."""

import functools
import logging
import math
from typing import Literal

import jax
from jaxtyping import Array, Float

from pallas_kernels import ENGINES, Engine, Phase, SparseLayer
from pallas_kernels.device_table import TableError
from pallas_kernels.pruning import Pruning
from sparsemlp.errors import InputError, require_known


def check_engine(name: str) -> None:
    """Raises InputError unless `name` is `auto` or an engine of this version."""
    require_known(f"engine {name!r}", name, ("auto", *ENGINES))


def choose_engine(name: str, layer: SparseLayer, phase: Phase, n_rows: int) -> Engine:
    """The engine of that name, or with `auto` the first that can compute this here and pays.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.
      layer: the layer.
      phase: which of its products.
      n_rows: rows of x, or samples times channels along the token axis.

    Raises:
      InputError: the engine does not exist, or cannot compute this layer on this platform; the
        message says what to install or change.
    """
    able = _engines_for(name, layer)
    paying = (engine for engine in able if engine.pays(phase, layer, n_rows))
    return able[0] if name != "auto" else next(paying, able[-1])


def choose_convolving(
    name: str, layer: SparseLayer, phase: Phase, n_channels: int, n_rows: int
) -> Engine:
    """The engine for a product of a masked convolution that is no linear layer.

    Args:
      name: `auto`, or the name of an engine that `check_convolving` takes.
      layer: the matrix of its kernel.
      phase: which of its products.
      n_channels: of the images that it is applied to.
      n_rows: pixels of the output, of all images.

    Raises:
      InputError: as for `choose_engine`.
    """
    able: list[Engine] = []
    for engine in _engines_for(name, layer):
        reason = engine.reason_against_convolving(layer, n_channels)
        if reason is not None and name != "auto":
            raise InputError(f"engine {name!r} cannot run here: {reason}")
        if engine.convolves and reason is None:
            able.append(engine)
    paying = (engine for engine in able if engine.pays_convolving(phase, layer, n_rows))
    return able[0] if name != "auto" else next(paying, able[-1])


def check_convolving(name: str, size: tuple[int, ...], kernel: str = "it") -> None:
    """Raises InputError unless an engine masks a convolution that is no linear layer.

    Args:
      name: `auto`, or the name of an engine.
      size: height and width of its window.
      kernel: what the error calls the kernel.
    """
    check_engine(name)
    if name != "auto" and not ENGINES[name].convolves:
        able = ", ".join(each for each, engine in ENGINES.items() if engine.convolves)
        raise InputError(
            f"engine {name!r} masks linear layers and 1x1 convolutions that neither pad nor pool; "
            f"{kernel} is another convolution, of {size[0]}x{size[1]}: choose auto, or of {able}"
        )


def choose_unmasked(name: str, kernel_shape: tuple[int, int], dtype: str) -> Engine:
    """The engine for a product with a pruned activation or gradient and a whole kernel.

    With `auto` the first that can compute it here and is known to be faster than XLA at it.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.
      kernel_shape: `(in, out)`.
      dtype: of the activation and of the output's gradient.

    Raises:
      InputError: as for `choose_engine`.
    """
    whole = SparseLayer(kernel_shape, (1, 1), math.prod(kernel_shape), -1, dtype)
    able = _engines_for(name, whole)
    paying = (engine for engine in able if engine.pays_unmasked(dtype))
    return able[0] if name != "auto" else next(paying, able[-1])


def choose_fused(
    name: str,
    layers: tuple[SparseLayer, SparseLayer],
    n_rows: int,
    phase: Literal["mlp", "straight_through_mlp"] = "mlp",
) -> Engine | None:
    """The engine that computes two layers and the GELU between them in one go, if one does.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.
      layers: the two layers.
      n_rows: rows of x.
      phase: whether the kernels' gradients are masked or straight-through.

    Raises:
      InputError: as for `choose_engine`.
    """
    first, second = (choose_engine(name, layer, phase, n_rows) for layer in layers)
    fuses = first.fuses if phase == "mlp" else first.fuses_straight_through
    return first if first is second and fuses(*layers) else None


def choose_pruned(
    name: str,
    layers: tuple[SparseLayer, SparseLayer],
    pruning: tuple[Pruning, Pruning],
    straight_through: bool,
    n_rows: int,
) -> Engine | None:
    """The engine that computes two layers with pruned operands in one go, if one does.

    With `auto` the one that `choose_unmasked` takes, where that is known to pay.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.
      layers: the two layers.
      pruning: what of their activations and their outputs' gradients is pruned.
      straight_through: whether the kernels' gradients are those of whole kernels.
      n_rows: rows of x.

    Raises:
      InputError: as for `choose_engine`.
    """
    engine = choose_unmasked(name, layers[0].kernel_shape, layers[0].dtype)
    if not engine.fuses_pruned(layers, pruning):
        return None
    pays = name != "auto" or engine.pays_pruned(layers, pruning, straight_through, n_rows)
    return engine if pays else None


def takes_lists(name: str) -> bool:
    """Whether any engine that this name may stand for here is spared work by lists of blocks.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.

    Raises:
      InputError: the engine does not exist.
    """
    check_engine(name)
    if name != "auto":
        return ENGINES[name].takes_lists
    return any(
        engine.takes_lists and _is_measured_here(engine, named=False) for engine in ENGINES.values()
    )


def choose_for_grid(name: str) -> Engine:
    """The engine for a mask whose number of kept blocks is data: the reference.

    Raises:
      InputError: another engine is asked for by name.
    """
    check_engine(name)
    if name not in ("auto", "reference"):
        raise InputError(
            f"engine {name!r} needs to know how many blocks are kept when it is compiled, and a "
            "GridMask has that as data: choose reference or auto, or give a BlockMask"
        )
    return ENGINES["reference"]


def engine_scores(
    name: str, kernel: Float[Array, "in out"], block: tuple[int, int], score: str
) -> Float[Array, "down across"] | None:
    """The score of every block of a kernel by the engine that computes its products, if it can.

    Args:
      name: `auto`, or a name in `pallas_kernels.ENGINES`.
      kernel: `[in, out]`.
      block: `(rows, cols)`.
      score: name of the score.

    Returns:
      Float32 `[in / cols, out / rows]`; None where XLA has to: the engine cannot run here, or has
      no kernel for this.
    """
    check_engine(name)
    n_in, n_out = kernel.shape
    layer = SparseLayer((n_in, n_out), block, 1, -1, str(kernel.dtype))
    of_auto = (engine for engine in ENGINES.values() if engine.measured)
    for engine in of_auto if name == "auto" else [ENGINES[name]]:
        if score in engine.scores and not engine.reason_against(layer, jax.default_backend()):
            return engine.block_scores(kernel, block, score)
    return None


def _engines_for(name: str, layer: SparseLayer) -> list[Engine]:
    """The engines of that name, or with `auto` all, that can compute this here; at least one.

    What `auto` leaves out as not measured is not asked whether it can: that may compile something.
    """
    check_engine(name)
    platform, named = jax.default_backend(), name != "auto"
    able: list[Engine] = []
    reasons: list[str] = []
    for engine in [ENGINES[name]] if named else ENGINES.values():
        if not _is_measured_here(engine, named=named) and not named:
            continue
        reason = engine.reason_against(layer, platform)
        if reason is None:
            able.append(engine)
            continue
        reasons.append(f"engine {engine.name!r} cannot run here: {reason}")
        if not named and platform in engine.platforms:
            _say_once(f"{reasons[-1]}; the next best is used")
    if not able:
        raise InputError("; ".join(reasons))
    return able


def _is_measured_here(engine: Engine, named: bool) -> bool:
    """Whether it is known where an engine pays; without a table `auto` says once how to make it."""
    try:
        is_measured = engine.is_measured_here()
    except TableError as error:
        if named:
            raise InputError(str(error)) from error
        _say_once(f"engine {engine.name!r} is left out: {error}")
        return False
    if not (is_measured or named) and jax.default_backend() == "gpu" and not _has_a_table():
        device = jax.devices()[0].device_kind
        _say_once(
            f"engine 'auto' leaves out engines that were not measured on this {device}; python "
            "experiments/tune.py --engine=NAME measures one, --engine=NAME takes it as it is"
        )
    return is_measured


def _has_a_table() -> bool:
    """Whether an engine was measured on this GPU, or has a table that nobody can read."""
    try:
        return any(engine.is_measured_here() for engine in ENGINES.values() if not engine.measured)
    except TableError:  # said of the engine that has it
        return True


@functools.cache
def _say_once(message: str) -> None:
    logging.getLogger("sparsemlp").warning(message)
