"""Model strings: a whole model and its plan in one line, the form of Bespalov 2025.

    ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (1, 1);

`ResMLP` and its depth, then one clause a layer kind, each ended by `;`. A kind is `XPatch` or
`XChannel`; `XChannel1` and `XChannel2` are the expanding and the contracting linear alone, and
outrank a rule of the same word for `XChannel`. A rule is one of

    masked RATIO (ROWS, COLS)                              BlockMasking
    sparse RATIO (ROWS, COLS)                              ActivationPruning
    compressed (TOKENS, FEATURES) [(A, B)] [word] [word] [float]   ActivationPooling
    gradient N:M [random | magnitude | rescaled]           GradientPruning

or several with `+` between them, one for each operand at the most (weight, activation, gradient):

    ResMLP5 @ XChannel = masked 0.5 (32, 32) + sparse 0.8 (8, 8) + gradient 2:4 rescaled;

White space is free. What may follow the window of `compressed` is read and not used. The word
`gradient` and `+` are this project's own.
"""

import dataclasses
import re
from typing import NoReturn

from sparsemlp.errors import InputError
from sparsemlp.plan import Plan
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    BlockMasking,
    GradientPruning,
    Rule,
    check_backward,
    check_method,
)
from sparsemlp.selection import Score, check_score

LAYER_PATTERNS = {
    "XPatch": "*/XPatch/kernel",
    "XChannel": "*/XChannel?/kernel",
    "XChannel1": "*/XChannel1/kernel",
    "XChannel2": "*/XChannel2/kernel",
}
"""Plan pattern of each layer kind, general ones before the ones that outrank them."""

_WORDS = "masked, sparse, compressed or gradient"

_OPERANDS = {
    BlockMasking: "weight",
    ActivationPruning: "activation",
    ActivationPooling: "activation",
    GradientPruning: "gradient",
}

_MOST_DIGITS = 9
"""Of integers."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_]+)|(?P<sign>[^\s\w]))"
)


def parse_model(
    text: str, *, backward: Backward = "masked", score: str | Score = "l2"
) -> tuple[int, Plan]:
    """Reads a model string.

    Args:
      text: the string.
      backward: backward mode of every masked rule; the string has no word for it.
      score: score of every masked rule; the string has no word for it.

    Returns:
      The depth, and the plan for a `ResMLP` of that depth.

    Raises:
      InputError: the string is malformed; the message shows it with a caret under the place. Or
        backward or score is unknown.
    """
    if not isinstance(text, str):
        raise InputError(
            f"model string {text!r} is no text: write one such as "
            "'ResMLP5 @ XChannel = masked 0.8 (32, 32);'"
        )
    check_backward(backward)
    check_score(score)
    return _Parser(text, backward, score).model()


@dataclasses.dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int


class _Parser:
    """Reads a model string from left to right."""

    def __init__(self, text: str, backward: Backward, score: str | Score) -> None:
        self.text = text
        self.backward: Backward = backward
        self.score = score
        self.tokens = self._split()
        self.next = 0

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        end = 0
        while match := _TOKEN.match(self.text, end):
            kind = match.lastgroup or "sign"
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            end = match.end()
        rest = self.text[end:].lstrip()
        if rest:
            self.fail("unreadable character", len(self.text) - len(rest))
        return [*tokens, _Token("end", "", len(self.text))]

    def fail(self, problem: str, place: int) -> NoReturn:
        line = re.sub(r"\s", " ", self.text)
        raise InputError(f"model string: {problem}\n  {line}\n  {' ' * place}^")

    def take(self, kind: str, expected: str, *, text: str | None = None) -> _Token:
        token = self.tokens[self.next]
        if token.kind != kind or (text is not None and token.text != text):
            found = repr(token.text) if token.text else "the end"
            self.fail(f"expected {expected}, found {found}", token.start)
        self.next += 1
        return token

    def at(self, kind: str, text: str | None = None) -> bool:
        token = self.tokens[self.next]
        return token.kind == kind and (text is None or token.text == text)

    def model(self) -> tuple[int, Plan]:
        self.take("word", "ResMLP and a depth, as ResMLP5", text="ResMLP")
        start = self.tokens[self.next].start
        depth = self.integer("the depth, as in ResMLP5")
        if not depth:
            self.fail("a ResMLP has a depth of at least 1", start)
        found: dict[str, Rule | tuple[Rule, ...]] = {}
        if not self.at("end"):
            self.take("sign", "@ between the model and its rules", text="@")
        while not self.at("end"):
            start = self.tokens[self.next].start
            kind = self.layer_kind()
            if kind in found:
                self.fail(f"{kind} has a rule already", start)
            self.take("sign", "= after the layer kind", text="=")
            found[kind] = self.rules()
            self.take("sign", "; after the rule", text=";")
        plan = {pattern: found[kind] for kind, pattern in LAYER_PATTERNS.items() if kind in found}
        return depth, plan

    def layer_kind(self) -> str:
        token = self.take("word", f"a layer kind, one of {', '.join(LAYER_PATTERNS)}")
        kind = token.text
        if self.at("number") and self.tokens[self.next].start == token.start + len(kind):
            kind += self.take("number", "a number").text
        if kind not in LAYER_PATTERNS:
            known = ", ".join(LAYER_PATTERNS)
            self.fail(f"unknown layer kind {kind!r}: one of {known}", token.start)
        return kind

    def rules(self) -> Rule | tuple[Rule, ...]:
        rules: dict[str, Rule] = {}
        while True:
            start = self.tokens[self.next].start
            rule = self.rule()
            operand = _OPERANDS[type(rule)]
            if operand in rules:
                self.fail(f"the {operand} has a rule already", start)
            rules[operand] = rule
            if not self.at("sign", "+"):
                return rule if len(rules) == 1 else tuple(rules.values())
            self.take("sign", "+")

    def rule(self) -> Rule:
        token = self.take("word", f"a rule: {_WORDS}")
        if token.text == "compressed":
            return self.compressed()
        if token.text == "gradient":
            return self.gradient()
        if token.text not in ("masked", "sparse"):
            self.fail(f"unknown rule {token.text!r}: {_WORDS}", token.start)
        ratio_token = self.take("number", "the ratio, as 0.5")
        ratio = float(ratio_token.text)
        block = self.pair("the block, as (32, 32)")
        try:
            if token.text == "masked":
                return BlockMasking(block, ratio, self.backward, self.score)
            return ActivationPruning(block, ratio)
        except InputError as error:
            self.fail(str(error), ratio_token.start)

    def gradient(self) -> GradientPruning:
        start = self.tokens[self.next].start
        n = self.integer("N of N:M, as 2:4")
        self.take("sign", ": between N and M", text=":")
        m = self.integer("M of N:M, as 2:4")
        method = self.take("word", "a method").text if self.at("word") else "magnitude"
        try:
            return GradientPruning(n, m, check_method(method))
        except InputError as error:
            self.fail(str(error), start)

    def compressed(self) -> ActivationPooling:
        window = self.pair("the window, as (2, 2)")
        if self.at("sign", "("):
            self.pair("a second window, as (1, 1)")
        for kind in ("word", "word", "number"):
            if self.at(kind):
                self.take(kind, f"a {kind}")
        return ActivationPooling(window)

    def pair(self, expected: str) -> tuple[int, int]:
        start = self.take("sign", expected, text="(").start
        first = self.integer(expected)
        self.take("sign", expected, text=",")
        second = self.integer(expected)
        self.take("sign", f"{expected}: a closing parenthesis", text=")")
        if not first or not second:
            self.fail(f"expected {expected}, with sides of at least 1", start)
        return first, second

    def integer(self, expected: str) -> int:
        token = self.take("number", expected)
        if not token.text.isdecimal():
            self.fail(f"expected {expected}, an integer, found {token.text}", token.start)
        if len(token.text) > _MOST_DIGITS:
            self.fail(f"expected {expected}, of at most {_MOST_DIGITS} digits", token.start)
        return int(token.text)
