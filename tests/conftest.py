"""Settings that every test shares."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# On a GPU: the same bits in every run, and room for the subprocesses of some tests.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Threads of XLA, else one a core: each warpgroup of an interpreted kernel may wait on one of them
# for the others.
os.environ.setdefault("NPROC", "32")

import case_choice
import compiled_programs
import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook
from xdist.scheduler import WorkStealingScheduling

# A GPU would otherwise multiply float32 in TF32, below the tolerances that the tests derive.
jax.config.update("jax_default_matmul_precision", "highest")


def of_modules_and_classes(check: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves out functions within functions, whose checks would be made anew in every call."""

    def checked(**options: Any) -> Callable[[Any], Any]:
        return lambda made: (
            made if "<locals>" in getattr(made, "__qualname__", "") else check(made, **options)
        )

    return checked


# Array annotations of the library are checked at run time, in the tests only.
jaxtyping.jaxtyped = of_modules_and_classes(jaxtyping.jaxtyped)
install_import_hook(["sparsemlp", "pallas_kernels"], "beartype.beartype")


NVIDIA_DEVICE = Path("/dev/nvidia0")
LEVEL = "--xla_backend_optimization_level"


def pytest_configure(config: pytest.Config) -> None:
    """Tests mostly compile: what one process compiled the others read.

    And the default, thorough and slow tests let XLA leave out LLVM's optimisations. On a GPU, with
    another marker or with a level in XLA_FLAGS they run the code that users run; in CI those of the
    kernels and the layers do, on the oldest JAX. Tests of what a GPU computes compile each for
    themselves.
    """
    has_gpu, flags = NVIDIA_DEVICE.exists(), os.environ["XLA_FLAGS"]
    are_usual = (config.getoption("markexpr") or "").startswith(("not ", "slow", "thorough"))
    if are_usual or not has_gpu:
        compiled_programs.keep(config)
    if are_usual and not has_gpu and LEVEL not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {LEVEL}=0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="of each test, run the first of its cases and every Nth after it (default: all)",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Settles what is thorough before the markers choose; of the chosen cases takes every Nth."""
    every: int = config.getoption("every") or 0
    if every < 1:
        raise pytest.UsageError(f"--every={every} is no count: choose at least 1")
    case_choice.settle_thorough(items)
    yield
    config.hook.pytest_deselected(items=case_choice.leave_out(items, every))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets values of a wrong type or shape reach the library, as they do outside the tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines whose kernels JAX interprets, in the place of those that need a GPU.

    They are asked as training asks them. A CPU multiplies float32 exactly all the same.
    """
    from pallas_kernels import ENGINES, Mosaic, Triton

    if jax.default_backend() == "gpu":
        yield
        return
    monkeypatch.setitem(ENGINES, "triton", Triton(interpret=True))
    monkeypatch.setitem(ENGINES, "mosaic", Mosaic(interpret=True))
    with jax.default_matmul_precision("default"):
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Neighbours run in one process, which compiles and makes what they share once."""
    return WorkStealingScheduling(config, log)


MEMORY_MAPS = Path("/proc/self/maps")
MANY_MEMORY_MAPS, MOST_MEMORY_MAPS = 15_000, 45_000
"""Where compiled programs are forgotten after a module, and within one. Linux allows a process
65530, and JAX's compiler does not survive more."""
_tests = itertools.count(1)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs() -> Iterator[None]:
    """Compiled programs live as long as their cache, each in several memory maps.

    While they are few, one module takes from the other what both compiled.
    """
    yield
    _forget_if_more_than(MANY_MEMORY_MAPS)


@pytest.fixture(autouse=True)
def forget_too_many_compiled_programs() -> Iterator[None]:
    """The same within a module of many cases; now and then, as counting takes milliseconds."""
    yield
    if next(_tests) % 64 == 0:
        _forget_if_more_than(MOST_MEMORY_MAPS)


def _forget_if_more_than(most: int) -> None:
    if not MEMORY_MAPS.exists() or MEMORY_MAPS.read_text().count("\n") > most:
        jax.clear_caches()
