"""The models that are counted on paper: their sizes, and which of their layers can be masked."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import sparsemlp
from sparsemlp import InputError
from sparsemlp.blocks import Block, divides, nearest_that_divide, why_indivisible
from sparsemlp.cost_models.costs import KINDS, Shapes
from sparsemlp.errors import require_known
from sparsemlp.options import flag

MODELS = {
    model.__name__: model
    for model in (
        sparsemlp.resmlp_cifar10,
        sparsemlp.resmlp_imagenet,
        sparsemlp.resmlp_s12,
        sparsemlp.resmlp_s24,
        sparsemlp.resmlp_s36,
        sparsemlp.resmlp_b24,
    )
}
"""Presets by name."""


def model_shapes(model: str, depth: int | None = None, image_size: int | None = None) -> Shapes:
    """The sizes of a preset.

    Args:
      model: its name.
      depth: another number of blocks.
      image_size: another height and width of an image, in pixels.

    Raises:
      InputError: there is no such preset, or its patches do not divide the image.
    """
    require_known(f"--model={model}", model, MODELS)
    chosen = {"depth": depth, "image_size": image_size}
    preset = MODELS[model](**{k: v for k, v in chosen.items() if v is not None})
    shapes = Shapes(*(getattr(preset, field.name) for field in dataclasses.fields(Shapes)))
    if shapes.image_size < 1 or shapes.image_size % shapes.patch_size:
        raise InputError(
            f"--image-size={shapes.image_size} is no multiple of the {shapes.patch_size} pixels of "
            f"a patch of {model}"
        )
    return shapes


def masked_kinds(text: str) -> list[str]:
    """The layer kinds of `--mask-layers`.

    Raises:
      InputError: it names a layer that cannot be masked.
    """
    kinds: list[str] = []
    for word in text.split(","):
        found = [kind for kind in KINDS if word.strip() in (kind, kind.rstrip("12"))]
        if not found:
            known = "XPatch, XChannel, XChannel1, XChannel2"
            raise InputError(f"--mask-layers names {word.strip()!r}: choose from {known}")
        kinds += found
    return kinds


def refuse_beside_config(options: Any, *names: str) -> None:
    """Raises InputError if one of these options is given beside a model string."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(
                f"--config and {flag(name)} exclude each other: the model string "
                "names its own masks"
            )


def check_blocks(
    blocks: Iterable[Block],
    kinds: Iterable[str],
    shapes: Shapes,
    way_out: str = "other blocks or --mask-layers",
) -> None:
    """Raises InputError that lists every block that does not divide a layer, and what to choose."""
    kernels = {kind: shapes.kernel(kind) for kind in kinds}
    told: list[str] = []
    for block in blocks:
        broken = [kind for kind, kernel in kernels.items() if not divides(block, kernel)]
        told += [why_indivisible(block, kernels[kind], kind) for kind in broken]
        if broken:
            told[-1] += f"; nearest that do: {nearest_that_divide(block, *kernels.values())}"
    if told:
        listed = "\n  ".join(told)
        raise InputError(f"choose {way_out}:\n  {listed}")
