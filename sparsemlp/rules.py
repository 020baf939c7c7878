"""The rules: what is made sparse in a linear layer, and how.

Each rule concerns one of the three operands and all of them may stand on one layer.
"""

import dataclasses
from typing import Literal, cast, get_args

from sparsemlp.blocks import Block, check_block, check_ratio
from sparsemlp.errors import InputError
from sparsemlp.selection import Score, check_score

Backward = Literal["masked", "dense", "straight_through"]


def check_backward(backward: str) -> Backward:
    """Returns `backward` if it is one of the three modes, raises InputError otherwise."""
    if backward not in get_args(Backward):
        raise InputError(
            f"backward {backward!r} is unknown: choose one of {', '.join(get_args(Backward))}"
        )
    return cast(Backward, backward)


@dataclasses.dataclass(frozen=True)
class BlockMasking:
    """Dynamic block weight masking (Bespalov 2025): only the kept blocks of W are multiplied.

    Attributes:
      block: `(rows, cols)`, rows over outputs, columns over inputs.
      ratio: fraction of blocks to drop, in `[0, 1)`; 0 is dense.
      backward: `masked`, the mask in dX and in dW; `dense`, in neither; `straight_through`, in dX
        only.
      score: what ranks the blocks, a name in `selection.SCORES` or a function.
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
    """The activation kept for dW is pruned to its largest blocks (Barley & Fröning 2311.16883).

    Can be written and parsed; no product uses it yet.

    Attributes:
      block: `(rows, cols)`, rows over the flattened batch, columns over features.
      ratio: fraction of blocks to drop, in `[0, 1)`.
    """

    block: Block
    ratio: float

    def __post_init__(self) -> None:
        check_block(self.block)
        check_ratio(self.ratio)


@dataclasses.dataclass(frozen=True)
class ActivationPooling:
    """The activation kept for dW is pooled (Barley & Fröning 2409.11902).

    Can be written and parsed; no product uses it yet.

    Attributes:
      window: `(tokens, features)` that one pooled value stands for.
      mode: how a window is pooled: `mean`.
    """

    window: tuple[int, int]
    mode: Literal["mean"] = "mean"

    def __post_init__(self) -> None:
        check_block(self.window)
        if self.mode != "mean":
            raise InputError(f"pooling mode {self.mode!r} is unknown: choose mean")


@dataclasses.dataclass(frozen=True)
class GradientPruning:
    """The output gradient is pruned n of m for dX only (McDanel, Dinh, Magallanes: SDGP).

    Can be written; no product uses it yet.

    Attributes:
      n: how many of m neighbouring channels are kept.
      m: the size of a group.
      method: which are kept: `random`, `magnitude`, or `rescaled`.
    """

    n: int
    m: int
    method: Literal["random", "magnitude", "rescaled"] = "magnitude"

    def __post_init__(self) -> None:
        if not 0 < self.n <= self.m:
            raise InputError(f"gradient rule {self.n}:{self.m} is not N:M with 0 < N <= M")
        if self.method not in ("random", "magnitude", "rescaled"):
            raise InputError(
                f"gradient method {self.method!r} is unknown: choose random, magnitude or rescaled"
            )


Rule = BlockMasking | ActivationPruning | ActivationPooling | GradientPruning


def check_built(*rules: Rule | None) -> None:
    """Raises InputError if a rule is one that no product uses yet."""
    for rule in rules:
        if rule is not None and not isinstance(rule, BlockMasking):
            raise InputError(
                f"{rule} is not built yet: this version computes with BlockMasking only"
            )
