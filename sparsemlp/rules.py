"""The rules: what is made sparse in a linear layer, and how.

Each rule concerns one of the three operands and all of them may stand on one layer.
"""

import dataclasses
import numbers
import re
from typing import ClassVar, Literal, get_args

from sparsemlp.blocks import Block, check_block, check_ratio, format_block, parse_block
from sparsemlp.errors import InputError, require_known
from sparsemlp.selection import GRADIENT_SCORE, SCORES, Score, check_score

Backward = Literal["masked", "dense", "straight_through"]
Method = Literal["random", "magnitude", "rescaled"]


def check_backward(backward: str) -> Backward:
    """Returns `backward` if it is one of the three modes, raises InputError otherwise."""
    return require_known(f"backward {backward!r}", backward, get_args(Backward))


def check_method(method: str) -> Method:
    """Returns `method` if it is a way to prune gradients, raises InputError otherwise."""
    return require_known(f"gradient method {method!r}", method, get_args(Method))


@dataclasses.dataclass(frozen=True)
class BlockMasking:
    """Dynamic block weight masking (Bespalov 2025): only the kept blocks of W are multiplied.

    Attributes:
      block: `(rows, cols)`, rows over outputs, columns over inputs.
      ratio: fraction of blocks to drop, in `[0, 1)`; 0 is dense.
      backward: `masked`, the mask in dX and in dW; `dense`, in neither; `straight_through`, in dX
        only.
      score: what ranks the blocks, a name in `selection.SCORES`, a function, or `gradient`, weight
        times gradient, which a training step knows (`dynamics.select_dynamic_masks`).
    """

    block: Block
    ratio: float
    backward: Backward = "masked"
    score: str | Score = "l2"

    def __post_init__(self) -> None:
        check_block(self.block)
        check_ratio(self.ratio)
        check_backward(self.backward)
        check_score(self.score)


@dataclasses.dataclass(frozen=True)
class ActivationPruning:
    """Of the activation only its largest blocks are kept for dW (Barley & Fröning 2311.16883).

    The forward product and dX are exact.

    Attributes:
      block: `(rows, cols)`: rows over the flattened batch, columns over the contracted axis
        (features; tokens in token mixing).
      ratio: fraction of blocks to drop, in `[0, 1)`; 0 keeps the activation itself.
      score: what ranks the blocks, a name in `selection.SCORES` or a function. It may read what
        `jax.vmap` maps where gradients are taken inside of that: JAX does not know that a gradient
        depends on it.
    """

    block: Block
    ratio: float
    score: str | Score = "l2"

    def __post_init__(self) -> None:
        check_block(self.block)
        check_ratio(self.ratio)
        check_score(self.score)
        if self.score == GRADIENT_SCORE:
            raise InputError(
                f"score {self.score!r} is weight times gradient, and an activation has none: "
                f"choose one of {', '.join(SCORES)}"
            )


@dataclasses.dataclass(frozen=True)
class ActivationPooling:
    """Of the activation only window means are kept for dW (Barley & Fröning 2409.11902).

    The forward product and dX are exact.

    Attributes:
      window: `(tokens, features)` that one mean stands for; `(1, 1)` keeps the activation itself.
      mode: how a window is pooled: `mean`.
    """

    window: tuple[int, int]
    mode: Literal["mean"] = "mean"

    def __post_init__(self) -> None:
        check_block(self.window, "window", "(tokens, features)")
        if self.mode != "mean":
            raise InputError(f"pooling mode {self.mode!r} is unknown: choose mean")


@dataclasses.dataclass(frozen=True)
class GradientPruning:
    """The output gradient is pruned n of m for dX only (McDanel, Dinh, Magallanes: SDGP).

    Attributes:
      n: how many of m neighbours are kept: channels; tokens in token mixing.
      m: the size of a group, at most 32; n = m keeps the gradient itself.
      method: which are kept: `random`, drawn anew at every call; `magnitude`, the largest; or
        `rescaled`, the largest multiplied by what was lost of each sample and channel.
    """

    n: int
    m: int
    method: Method = "magnitude"

    MOST: ClassVar[int] = 32
    """The largest group: that of the paper."""

    def __post_init__(self) -> None:
        are_whole = all(isinstance(size, numbers.Integral) for size in (self.n, self.m))
        if not are_whole or not 0 < self.n <= self.m:
            raise InputError(
                f"gradient rule {self.n!r}:{self.m!r} is not N:M with integers 0 < N <= M"
            )
        if self.m > self.MOST:
            raise InputError(
                f"gradient rule {self.n}:{self.m} groups more than {self.MOST} entries: choose "
                f"M <= {self.MOST}"
            )
        check_method(self.method)


def check_operand_rules(activation: object, gradient: object) -> None:
    """Raises InputError unless both are rules for their operand, or None."""
    if not isinstance(activation, ActivationPruning | ActivationPooling | None):
        raise InputError(
            f"activation {activation!r} is no rule for an activation: give ActivationPruning or "
            "ActivationPooling"
        )
    if not isinstance(gradient, GradientPruning | None):
        raise InputError(
            f"gradient {gradient!r} is no rule for an output's gradient: give GradientPruning"
        )


Rule = BlockMasking | ActivationPruning | ActivationPooling | GradientPruning


def describe_rule(rule: ActivationPruning | ActivationPooling | GradientPruning) -> str:
    """A rule that is no mask in a few words, as `activations 8x8:0.7`."""
    match rule:
        case ActivationPruning():
            return f"activations {format_block(rule.block)}:{rule.ratio:g}"
        case ActivationPooling():
            return f"activations {rule.mode}:{format_block(rule.window)}"
        case GradientPruning():
            return f"gradients {rule.n}:{rule.m} {rule.method}"


def parse_activation(text: str) -> ActivationPruning | ActivationPooling:
    """Reads an activation rule written `ROWSxCOLS:RATIO` or `mean:TOKENSxFEATURES`.

    Raises:
      InputError: the text is neither, or a value is out of its range.
    """
    before, colon, after = text.partition(":")
    try:
        if colon and before.strip() == "mean":
            window = parse_block(
                after, "window", "TOKENSxFEATURES", "tokens first and features second"
            )
            return ActivationPooling(window)
        if colon and re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*", after):
            block = parse_block(
                before, meaning="rows over the batch and columns over the contracted axis"
            )
            return ActivationPruning(block, float(after))
    except InputError as error:
        raise InputError(f"activation rule {text!r}: {error}") from error
    raise InputError(
        f"activation rule {text!r} is neither ROWSxCOLS:RATIO, such as 8x8:0.7, nor "
        "mean:TOKENSxFEATURES, such as mean:2x2"
    )


def parse_gradient(text: str, method: str) -> GradientPruning:
    """Reads a gradient rule written `N:M`.

    Raises:
      InputError: the text is not two integers with a colon between them, or a value is out of its
        range.
    """
    match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", text)
    if match is None:
        raise InputError(f"gradient rule {text!r} is not N:M: two integers, such as 2:4")
    return GradientPruning(int(match[1]), int(match[2]), check_method(method))
