"""What a training run is (`Program`) and where it stands (`TrainState`).

A run is a pure function of its program and its data. Randomness is folded from (seed, step) and
the order of an epoch from (seed, epoch), so it does not matter where a run was interrupted.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from sparsemlp.distributed.parallel import usable
from sparsemlp.dynamics import Dynamics, Memory, initial_memory
from sparsemlp.planned_kernels import block_counts
from sparsemlp.resmlp import ResMLP
from sparsemlp.resnet import ResNet9
from sparsemlp.schedule import MASKED, Phase, plan_at
from sparsemlp.train.accumulation import size_of_parts
from sparsemlp.train.augment import Augmentation
from sparsemlp.train.averaging import Average, initial_average

Seed = int | UInt32[Array, ""]
"""A seed in [0, 2**32); the same number gives the same draws, be it static or data."""

_STREAMS = {"init": 0, "order": 1, "step": 2, "gradient": 3}

_WITHOUT_MEMORY = Dynamics()


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything static about the training of one model.

    Attributes:
      model: the model; its plan says what is masked.
      optimizer: optax transformation.
      augmentation: what happens to a training batch.
      mean: mean of each channel, of pixels scaled to 0..1.
      std: standard deviation of each channel, on the same scale.
      seed: seed of everything random.
      flip_test: whether a test image is judged together with its mirror image.
      dynamics: how masks move from step to step.
      frozen: whether they stay those of the step before.
      mesh: the devices that share every batch; None for one.
      at_once: the most images whose forward and backward pass is computed at once, by all devices
        together; None for those of a batch.
      ema: what the decay of the average of the parameters grows to; 0 for no average.
    """

    model: ResMLP | ResNet9
    optimizer: optax.GradientTransformation
    augmentation: Augmentation
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: Seed
    flip_test: bool = False
    dynamics: Dynamics = _WITHOUT_MEMORY
    frozen: bool = False
    mesh: Mesh | None = None
    at_once: int | None = None
    ema: float = 0.0

    def images_at_once(self, batch: int) -> int:
        """How many images of a batch a device computes at once, filled up ones included."""
        mesh = usable(self.mesh, batch)
        own = batch if mesh is None else batch // mesh.size
        if self.at_once is None:
            return own
        n_devices = 1 if self.mesh is None else self.mesh.size
        return size_of_parts(own, -(-self.at_once // n_devices))

    def at_phase(self, phase: Phase) -> "Program":
        """The program of an epoch: of one that masks at its level, frozen or not."""
        model = self.model
        if phase.masked and phase != MASKED:
            model = model.clone(plan=plan_at(model.plan, phase))
        return dataclasses.replace(self, model=model, frozen=phase.frozen)

    def train_logits(
        self,
        variables: dict[str, Any],
        inputs: Float[Array, "batch height width channels"],
        rngs: dict[str, PRNGKeyArray],
    ) -> tuple[Array, Any]:
        """The logits of a training step, and the batch statistics after it.

        Args:
          variables: `params`, `masks` and `batch_stats`.
          inputs: normalised images.
          rngs: keys of the streams `drop_path` and `gradient`.
        """
        logits, changed = self.model.apply(
            variables, inputs, train=True, rngs=rngs, mutable=["batch_stats"]
        )
        return logits, changed.get("batch_stats", {})

    def evaluation_logits(
        self, variables: dict[str, Any], inputs: Float[Array, "batch height width channels"]
    ) -> Array:
        """The logits of test images, with `flip_test` the mean over each and its mirror image."""
        logits: Any = self.model.apply(variables, inputs)
        if not self.flip_test:
            return logits
        mirrored: Any = self.model.apply(variables, inputs[:, :, ::-1])
        return (logits + mirrored) / 2


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "step",
        "params",
        "batch_stats",
        "optimizer",
        "totals",
        "activity",
        "last_kept",
        "memory",
        "average",
    ),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True, eq=False)
class TrainState:
    """The state of a run, one pytree: all that a resumed run needs.

    Attributes:
      step: int32, steps done.
      params: parameters of the model.
      batch_stats: running statistics of its batch normalisations; empty if it has none.
      optimizer: state of the optimizer.
      totals: sums over the images of the current epoch: `loss` float32, `top1`, `top5`, `images`
        int32.
      activity: for each masked kernel int32 `[n_blocks]`, how many masked steps kept the block.
      last_kept: for each masked kernel bool `[n_blocks]`, the blocks kept at the end of the last
        epoch; all before the first masked one.
      memory: what the selection of masks remembers, see `dynamics`; empty if it needs nothing.
      average: the average of parameters and batch statistics, see `averaging`; empty without one.
    """

    step: Any
    params: Any
    batch_stats: Any
    optimizer: Any
    totals: dict[str, Any]
    activity: dict[str, Any]
    last_kept: dict[str, Any]
    memory: Memory = dataclasses.field(default_factory=dict)
    average: Average = dataclasses.field(default_factory=dict)

    @property
    def evaluated(self) -> tuple[Any, Any]:
        """Parameters and batch statistics that are evaluated: their average where there is one."""
        found = self.average or {"params": self.params, "batch_stats": self.batch_stats}
        return found["params"], found["batch_stats"]


def stream_key(
    seed: Seed, stream: Literal["init", "order", "step", "gradient"], index: Any
) -> PRNGKeyArray:
    """The key of one use of randomness: a function of the seed, the use and its step or epoch."""
    root = jax.random.fold_in(jax.random.key(seed), _STREAMS[stream])
    return jax.random.fold_in(root, index)


def epoch_order(seed: Seed, epoch: Int[Array, ""], n_images: int) -> Int[Array, " n"]:
    """The order of the images in an epoch, int32 `[n]`, a function of (seed, epoch)."""
    return _epoch_order(jnp.asarray(seed, jnp.uint32), epoch, n_images)


@functools.partial(jax.jit, static_argnums=2)
def _epoch_order(seed: Array, epoch: Array, n_images: int) -> Array:
    order = jnp.arange(n_images, dtype=jnp.int32)
    return jax.random.permutation(stream_key(seed, "order", epoch), order)


def state_of_seed(program: Program) -> TrainState:
    """The state before the first step, a function of the program's seed."""
    model = program.model
    images = jnp.zeros((1, model.image_size, model.image_size, model.channels), jnp.float32)
    variables = model.init(stream_key(program.seed, "init", 0), images)
    params, batch_stats = variables["params"], variables.get("batch_stats", {})
    blocks = block_counts(params, model.plan)
    return TrainState(
        step=jnp.int32(0),
        params=params,
        batch_stats=batch_stats,
        optimizer=program.optimizer.init(params),
        totals=no_totals(),
        activity={path: jnp.zeros(n, jnp.int32) for path, n in blocks.items()},
        last_kept={path: jnp.ones(n, bool) for path, n in blocks.items()},
        memory=initial_memory(params, model.plan, program.dynamics),
        average=initial_average(params, batch_stats, program.ema),
    )


initial_state = jax.jit(state_of_seed, static_argnums=0)
"""`state_of_seed`, compiled."""


def no_totals() -> dict[str, Array]:
    """The totals at the start of an epoch."""
    return {
        "loss": jnp.float32(0),
        "top1": jnp.int32(0),
        "top5": jnp.int32(0),
        "images": jnp.int32(0),
    }
