"""Whether the points of a grid can be trained, found out without training or loading much.

A point that cannot is tried again without the option that is to blame, so that all that is wrong
with it is found, and each complaint is told once, at the line of that option.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import reason_against_devices
from sparsemlp.configuration.settings import REPLACED, Settings
from sparsemlp.data import is_streamed
from sparsemlp.errors import InputError
from sparsemlp.options import flag
from sparsemlp.sweeps.grid_file import Choice, Point
from sparsemlp.sweeps.marked_yaml import Problems
from sparsemlp.sweeps.rehearsal import outline_of, rehearse, training_of


def config_of(values: Mapping[str, Any]) -> Config:
    """The configuration of a run that chooses these values."""
    return Config(**values)


def values_of(point: Point, stated: Mapping[str, Choice]) -> dict[str, Any]:
    """The options of a point; the size of the images is one of large sets, others have theirs."""
    values = {option: choice.value for option, choice in point.choices.items()}
    if "image_size" in stated and is_streamed(values.get("dataset", Config().dataset)):
        values["image_size"] = stated["image_size"].value
    return values


def check_points(
    points: list[Point],
    stated: Mapping[str, Choice],
    problems: Problems,
    *,
    is_remote: bool = False,
) -> None:
    """Adds a problem for each reason why a point cannot be trained, and for runs given twice.

    Args:
      points: the runs.
      stated: what the file says of its data set.
      problems: where they are added.
      is_remote: whether other machines train them, whose devices are not known here.
    """
    blamed: dict[str, Choice] = {}
    told: set[str] = set()
    first: dict[Any, Point] = {}
    for point in points:
        values = values_of(point, stated)
        _check_stated(values, stated, problems)
        n_devices = values.get("devices") if is_remote else None
        if is_remote:
            values["devices"] = 1  # Those of this machine say nothing.
        if _blame(point, values, blamed, problems, is_remote=is_remote):
            continue
        if n_devices is not None:
            settings = rehearse(config_of(values), is_remote=True)
            _check_devices(point, n_devices, settings, problems)
        training = training_of(config_of(values), is_remote=is_remote)
        earlier = first.setdefault(training, point)
        if earlier is not point:
            _tell_twice(point, earlier, told, problems)


def _check_devices(point: Point, n_devices: int, settings: Settings, problems: Problems) -> None:
    """Adds a problem if so many devices, wherever they are, cannot share a batch out."""
    batch_size, why = settings.batch_size, None
    if n_devices < 1 or batch_size % n_devices:
        why = (
            f"{batch_size} images of a batch cannot be shared out among {n_devices} devices: "
            "choose a number that divides it"
        )
    elif n_devices > 1:
        why = reason_against_devices(settings)
    if why is not None:
        choice = point.choices["devices"]
        problems.add(choice.place[0], f"{choice.key}: {why}")


def _blame(
    point: Point,
    values: dict[str, Any],
    blamed: dict[str, Choice],
    problems: Problems,
    *,
    is_remote: bool,
) -> bool:
    """Adds all complaints about a point, taking from `values` what is to blame; whether any."""
    found = False
    ask = functools.partial(_complaint, is_remote=is_remote)
    # A model string replaces some of them, so no default is what is wrong.
    lost = [o for o in point.lost if "config" not in values or o not in REPLACED]
    while (complaint := ask(values)) is not None:
        if any(_named(option, None, complaint) for option in lost):
            # That is of the default, which the file does not say.
            return True
        option = _to_blame(point, values, complaint, blamed, ask, only_named=found)
        if option is None:
            if not found:
                problems.add(point.line, complaint)
            return True
        found = True
        choice = blamed[complaint] = point.choices[option]
        problems.add(choice.place[0], f"{choice.key}: {complaint}")
        del values[option]
        lost.append(option)
    return found


def _complaint(values: Mapping[str, Any], *, is_remote: bool) -> str | None:
    """Why a run with these values cannot be trained; None if it can."""
    try:
        rehearse(config_of(values), is_remote=is_remote)
    except InputError as error:
        return str(error)
    return None


def _to_blame(
    point: Point,
    values: Mapping[str, Any],
    complaint: str,
    blamed: Mapping[str, Choice],
    ask: Callable[[Mapping[str, Any]], str | None],
    *,
    only_named: bool,
) -> str | None:
    """The option without which there is no such complaint.

    First come those that it names. Of the others, which are not asked where a default may be what
    is wrong, those without which there is no complaint at all.
    """
    known = blamed.get(complaint)
    chosen = {option: choice.value for option, choice in point.choices.items()}
    own = [option for option, value in values.items() if (option, value) in chosen.items()]
    for option in own:
        if known is not None and point.choices[option] == known:
            return option

    def without(option: str) -> str | None:
        return ask({name: value for name, value in values.items() if name != option})

    named = [option for option in own if _named(option, values[option], complaint)]

    def order(option: str) -> tuple[int, bool, bool]:
        # A model string excludes other options, one by one: to blame it would hide all but the
        # first. What is fixed is the same in all runs, so it is rather the other one.
        clearly = _named(option, values[option], complaint)
        return -clearly, option == "config", option not in point.swept

    named.sort(key=order)
    for option in named:
        if without(option) != complaint:
            return option
    if only_named:
        return None
    rest = {option: without(option) for option in own}
    healing = (option for option, left in rest.items() if left is None)
    changing = (option for option, left in rest.items() if left != complaint)
    return next(healing, next(changing, None))


def _named(option: str, value: Any, complaint: str) -> int:
    """How clearly a complaint names an option: by its flag, with its value, or by its name."""
    words = "model string" if option == "config" else option.replace("_", " ")
    with_value = (f"{option}={value}", f"{words} {value}", f"{words} {value!r}")
    signs = (flag(option), *with_value, words, option)
    return next((len(signs) - n for n, sign in enumerate(signs) if _says(complaint, sign)), 0)


def _says(complaint: str, sign: str) -> bool:
    """Whether a complaint has a sign in it, not as a part of a longer word or option."""
    return re.search(rf"(?<![\w-]){re.escape(sign)}(?![\w-])", complaint) is not None


def _check_stated(
    values: Mapping[str, Any], stated: Mapping[str, Choice], problems: Problems
) -> None:
    try:
        data = outline_of(config_of(values))
    except InputError:
        return
    known = {"num_classes": data.n_classes, "image_size": data.image_shape[0]}
    for key, choice in stated.items():
        if choice.value != known[key]:
            problems.add(
                choice.place[0],
                f"{key} is {choice.value}, but {known[key]} in the data set {data.source}: the "
                "data set says it, leave it out",
            )


def _tell_twice(point: Point, earlier: Point, told: set[str], problems: Problems) -> None:
    """Adds a problem at the first value that tells two equal trainings apart, once for each key."""
    differing = (c for o, c in point.choices.items() if earlier.choices.get(o) != c)
    choice = next(differing, None)
    key = "" if choice is None else f"{choice.key}: "
    if key not in told:
        told.add(key)
        problems.add(
            point.line if choice is None else choice.place[0],
            f"{key}({_described(point)}) is the same training as ({_described(earlier)}): leave "
            "one out",
        )


def _described(point: Point) -> str:
    return ", ".join(f"{option}={point.choices[option].value}" for option in point.swept)
