"""The time of a whole training step: dense, masked with each engine, other rules, and PyTorch."""

import dataclasses
import functools
import importlib.util
import shlex
import sys
from typing import Annotated

import jax
import jax.numpy as jnp
import tyro
from cost_tables.one_step import random_images

from benchmarks.dropping import check_drops
from benchmarks.timing import Contender, print_table, take_turns
from pallas_kernels import ENGINES, SparseLayer
from sparsemlp import InputError, parse_block
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import resolve
from sparsemlp.data import ImageDataset
from sparsemlp.options import cli
from sparsemlp.train.train_state import initial_state
from sparsemlp.train.training import train_steps


@dataclasses.dataclass(frozen=True)
class Step:
    """The median time of a whole training step on images like CIFAR-10's."""

    model: str = "resmlp"
    """resmlp or resnet9, the latter without PyTorch."""
    more: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A further contender, the options of cifar10.py that it has, without their dashes:
    "ratio=0.8 activation=8x8:0.8", or "config='MODEL STRING'". Give it once for each."""
    block: str = "32x32"
    """Block of the mask, ROWSxCOLS: rows over outputs, columns over inputs."""
    ratio: float = 0.8
    """Fraction of blocks to drop, in (0, 1)."""
    backward: str = "masked"
    """Backward pass: masked, dense, straight_through."""
    batch_size: int = 128
    """Images in a step."""
    rounds: int = 9
    """How often each contender takes its turn; the median is over these."""
    steps: int = 20
    """Steps in a turn, one call: its first step is slow, as it touches fresh memory."""


def measure_step(options: Annotated[Step, tyro.conf.arg(name="")]) -> None:
    """The median time of a whole training step on images like CIFAR-10's."""
    if options.rounds < 1 or options.steps < 1:
        raise InputError("--rounds and --steps must be at least 1")
    if options.ratio == 0:
        raise InputError("--ratio=0 is the dense baseline itself: choose a ratio in (0, 1)")
    dataset = random_images(max(2048, options.batch_size), 32, 10)
    masked = f"{options.block} at {options.ratio:g}, {options.backward}"
    config = Config(
        model=options.model,
        block=options.block,
        backward=options.backward,
        batch_size=options.batch_size,
    )
    others = {text: _read_more(text, config) for text in options.more}
    contenders: dict[str, Contender] = {"dense": jax_steps(dataset, config)}
    for engine in _engines_here(options):
        own = dataclasses.replace(config, ratio=options.ratio, engine=engine)
        contenders[f"{engine}: {masked}"] = jax_steps(dataset, own)
    contenders |= {text: jax_steps(dataset, own) for text, own in others.items()}
    device = pytorch_device() if options.model == "resmlp" else None
    if device is not None:
        contenders |= _pytorch_steps(dataset, options, masked, device)
    seconds = take_turns(contenders, options.rounds, options.steps)
    title = f"{options.model}, training step, batch {options.batch_size}, float32"
    print_table(title, seconds, "dense", ("torch",) if device is not None else ())


def _read_more(text: str, config: Config) -> Config:
    """The run that an option --more stands for, checked before anything is compiled."""
    words = [f"--{word}" for word in shlex.split(text)]
    if any(word.startswith("--config=") for word in words):
        config = Config(model=config.model, batch_size=config.batch_size)
    own = cli(Config, args=words, default=config, prog=f"--more={text!r}")
    resolve(own, "cifar10")
    return own


def _engines_here(options: Step) -> list[str]:
    """The engines that run here and take the smallest layer of the model."""
    layer = SparseLayer((64, 64), parse_block(options.block), 1, -1, "float32")
    platform = jax.default_backend()
    return [
        name
        for name, engine in ENGINES.items()
        if engine.reason_against(layer, platform) is None
        and (options.model == "resmlp" or engine.convolves)
    ]


def pytorch_device() -> str | None:
    """PyTorch's name of the kind of device that JAX uses; None, and a word why, if it has none."""
    platform = jax.default_backend()
    reason = ""
    if importlib.util.find_spec("torch") is None:
        reason = "is not installed (extra `peers`)"
    elif platform == "gpu":
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            return "cuda"
        reason = f"{torch.__version__} finds no GPU"
    elif platform != "cpu":
        reason = f"has nothing to compare with on {platform}"
    if not reason:
        return "cpu"
    print(f"PyTorch {reason}: its rows are left out", file=sys.stderr)
    return None


def _pytorch_steps(
    dataset: ImageDataset, options: Step, masked: str, device: str
) -> dict[str, Contender]:
    from benchmarks.torch_resmlp import training_steps

    peers = {"dense": 0.0}
    if options.backward == "masked":
        peers[f"mask, {masked}"] = options.ratio
    return {
        f"PyTorch {name}": training_steps(
            dataset.train_images,
            dataset.train_labels,
            options.batch_size,
            parse_block(options.block),
            ratio,
            device,
        )
        for name, ratio in peers.items()
    }


def jax_steps(dataset: ImageDataset, config: Config) -> Contender:
    """Training steps of one run, masked from the first one on."""
    settings = resolve(config, dataset.name)
    program = build_program(settings, dataset)
    images, labels = jnp.asarray(dataset.train_images), jnp.asarray(dataset.train_labels)
    order = jnp.arange(len(labels), dtype=jnp.int32)
    state = initial_state(program)
    check_drops(state.params, program.model.plan)
    run = functools.partial(train_steps, program, batch_size=settings.batch_size, masked=True)

    def train(n_steps: int) -> None:
        nonlocal state
        state, _ = run(state, images, labels, order, jnp.int32(0), jnp.int32(n_steps))
        jax.block_until_ready(state)

    return train
