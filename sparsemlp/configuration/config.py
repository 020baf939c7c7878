"""What a user may choose for a run.

None means "what suits the data set"; `settings.resolve` fills that in.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from sparsemlp.data import is_streamed, names_folder
from sparsemlp.options import open_default
from sparsemlp.paths import at_home, is_npz


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of a training run; the help text of each is the docstring below it."""

    model: str = "resmlp"
    """resmlp, resnet9, or a ResMLP for ImageNet: resmlp_imagenet, resmlp_s12, resmlp_s24,
    resmlp_s36, resmlp_b24. Most defaults below depend on it."""
    block: Annotated[str | None, open_default("ROWSxCOLS", "32x32")] = None
    """Block of the mask, ROWSxCOLS: rows over outputs, columns over inputs."""
    ratio: Annotated[float | None, open_default("FLOAT", "0, dense")] = None
    """Fraction of blocks to drop, in [0, 1)."""
    mask_layers: Annotated[
        str | None, open_default("KIND,KIND", "XPatch,XChannel; resnet9: Conv")
    ] = None
    """Layer kinds to mask: XPatch (token mixing), XChannel (or XChannel1, XChannel2); resnet9: Conv
    (or Conv2 to Conv8). The rules for activations and gradients apply to the same layers."""
    backward: str = "masked"
    """Backward pass: masked (mask in dX and dW), dense (in neither), straight_through (in dX)."""
    score: str = "l2"
    """What ranks the blocks: l2 (Frobenius norm), spectral (largest singular value), l1, gradient
    (weight times gradient; not with the masked backward, which leaves dropped blocks none)."""
    score_decay: float = 0.0
    """Share of the last step's scores in the ranking, in [0, 1): an exponential mean."""
    hysteresis: float = 0.0
    """A dropped block returns only if its score reaches a kept one's raised by this share."""
    budget: str = "uniform"
    """How the kept blocks are shared out among the layers: uniform, erk (small layers keep more),
    or global (all blocks ranked together when masking starts)."""
    ratio_schedule: str = "constant"
    """How the ratio grows once masking has started: constant (it does not), cubic (a ramp over
    --ramp-epochs), adaptive (a level up after an epoch whose loss on the held-out images is near
    the best, else one down). In 8 levels, each compiled once."""
    ramp_epochs: Annotated[
        int | None, open_default("INT", "half of the epochs that mask; of --ratio-schedule=cubic")
    ] = None
    """Epochs of the cubic ramp."""
    freeze_epoch: Annotated[int | None, open_default("INT", "never")] = None
    """Epoch from which on the masks of the last step stay, from 0. Dropped blocks then need no
    gradient: --backward=straight_through goes on as masked."""
    dropped_decay: float = 0.0
    """SR-STE: factor of the dropped weights that is added to their gradient; needs
    --backward=straight_through (or dense)."""
    moments: str = "keep"
    """The optimizer's moments of a block that returns: keep, or reset to zero."""
    hold_out: Annotated[
        float | None, open_default("FLOAT", "0; with --ratio-schedule=adaptive 0.1")
    ] = None
    """Share of the training images that is held out, for a validation loss."""
    activation: Annotated[str | None, open_default("RULE", "none, kept as it is")] = None
    """What is kept of activations for dW: ROWSxCOLS:RATIO, all blocks but that fraction, as
    8x8:0.7; or mean:TOKENSxFEATURES (resnet9: mean:HEIGHTxWIDTH), the means of windows, as
    mean:2x2."""
    gradient: Annotated[str | None, open_default("N:M", "none, all of it")] = None
    """How many of M neighbours of the output gradient are kept for dX, as 2:4; in a ResMLP that
    held in the channel linears alone (--mask-layers=XChannel)."""
    gradient_method: Annotated[str | None, open_default("STR", "magnitude")] = None
    """Which ones: random, magnitude, or rescaled (magnitude, scaled to the lost sum)."""
    config: Annotated[str | None, open_default("TEXT", "none")] = None
    """resmlp: model string instead of --block, --ratio, --mask-layers, --depth, --activation and
    --gradient; README shows one."""
    mask_start_epoch: Annotated[
        int | None, open_default("INT", "min(10, epochs // 10); ImageNet: 0")
    ] = None
    """Epochs that are trained with dense weights before masking starts."""

    epochs: Annotated[
        int | None, open_default("INT", "200; resnet9: 150; ImageNet: 90; digits: 30")
    ] = None
    """Epochs to train."""
    batch_size: Annotated[
        int | None, open_default("INT", "128; resnet9: 512; ImageNet: 64; digits: 32")
    ] = None
    """Images in a step."""
    optimizer: Annotated[str | None, open_default("STR", "adam; resnet9: sgd; ImageNet: adamw")] = (
        None
    )
    """adam (L2 in the gradient), adamw (decoupled decay), or sgd with momentum 0.9."""
    schedule: Annotated[str | None, open_default("STR", "cosine; resnet9: triangular")] = None
    """After the warm-up: cosine, anew each epoch, or triangular, a straight line anew each step."""
    lr: Annotated[float | None, open_default("FLOAT", "0.01; resnet9: 0.5; ImageNet: 0.001")] = None
    """Peak learning rate."""
    min_lr: Annotated[float | None, open_default("FLOAT", "1e-5; resnet9: 0")] = None
    """Learning rate that the schedule ends at."""
    warmup_lr: Annotated[
        float | None,
        open_default("FLOAT", "a tenth of --lr; resnet9: 1e-4 of it; ImageNet: 1e-2 of it"),
    ] = None
    """Learning rate that the warm-up starts at."""
    warmup_epochs: Annotated[
        int | None,
        open_default(
            "INT", "min(5, epochs // 10); resnet9: min(5, epochs // 4); digits: 1 if there are 2"
        ),
    ] = None
    """Epochs of linear warm-up."""
    weight_decay: Annotated[
        float | None, open_default("FLOAT", "1e-4; resnet9: 5e-4; ImageNet: 5e-3")
    ] = None
    """L2 added to the gradient, with adamw decoupled; not on biases and others of rank 1."""
    seed: int = 0
    """Seed of everything random: initial weights, order, augmentation."""
    precision: str = "float32"
    """Dtype of the computation: float32 or bfloat16. Parameters are float32."""
    engine: str = "auto"
    """Who computes the sparse products: auto, cpu, mosaic (a Hopper GPU; in bfloat16 also Ampere),
    triton (an NVIDIA GPU), jax-triton (the same with the extra triton), reference."""
    devices: Annotated[int | None, open_default("INT", "all that JAX sees")] = None
    """Devices that share every batch; the numbers are those of one to rounding."""
    remat: bool = False
    """Compute each block again in the backward pass instead of keeping what it needs: less memory,
    the arithmetic of one more forward pass. resnet9: what stands between the convolutions."""
    accumulate: int = 1
    """Parts that a batch is computed in, one after another: the memory of a part, the numbers of
    the batch to rounding. --activation=ROWSxCOLS:RATIO chooses its blocks in each part."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, in [0, 1), which is evaluated in their
    place; 0 for none. After t steps it is min(EMA, (1 + t) / (10 + t)), as in TensorFlow."""
    allow_nan: bool = False
    """Go on when the loss becomes NaN or infinite, instead of stopping with exit code 3."""

    patch_size: Annotated[int | None, open_default("INT", "4; see ResMLP's sizes")] = None
    """resmlp: height and width of a patch, in pixels."""
    dim: Annotated[int | None, open_default("INT", "64; see ResMLP's sizes")] = None
    """resmlp: features of a token."""
    depth: Annotated[int | None, open_default("INT", "5; see ResMLP's sizes")] = None
    """resmlp: blocks of the model."""
    expansion: Annotated[int | None, open_default("INT", "4")] = None
    """resmlp: hidden features over features of the channel linears."""
    layer_scale: Annotated[float | None, open_default("FLOAT", "0.1 up to depth 18")] = None
    """resmlp: value that the layer scales start from."""
    drop_path: Annotated[float | None, open_default("FLOAT", "0")] = None
    """resmlp: probability that an image skips a residual branch in training."""
    width: Annotated[int | None, open_default("INT", "128")] = None
    """resnet9: channels of the first convolution; the others have two or four times as many."""

    flip: Annotated[float | None, open_default("FLOAT", "0.5; digits: 0")] = None
    """Probability of a horizontal flip. Large sets, such as ImageNet, are cropped and flipped as
    they are decoded, and take neither option."""
    crop_padding: Annotated[int | None, open_default("INT", "4; resnet9: 2")] = None
    """Pixels of padding before the random crop; 0 for no crop."""
    cutout: Annotated[int | None, open_default("INT", "0; resnet9: 4")] = None
    """Side of a square that is cut out of each image, in pixels; 0 for none."""
    mixup: Annotated[float | None, open_default("FLOAT", "0.2; resnet9: 0; ImageNet: 0.8")] = None
    """Alpha of mixup; 0 for none."""
    cutmix: Annotated[
        float | None, open_default("FLOAT", "0.8; resnet9, digits: 0; ImageNet: 1")
    ] = None
    """Alpha of CutMix; 0 for none."""
    mix_probability: float = 1.0
    """Probability that a batch is mixed at all."""
    switch_probability: float = 0.5
    """Probability of CutMix rather than mixup, when both are on."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over all classes."""
    flip_test: Annotated[
        bool | None, open_default("True|False", "False; resnet9: True, digits: False")
    ] = None
    """Whether a test image is judged by the mean of its logits and those of its mirror image."""

    dataset: str = "auto"
    """auto (cifar10 if at hand or downloadable, else digits), cifar10, digits, FILE.npz; a folder
    with train/CLASS/*.JPEG and val/CLASS/*.JPEG; or a set in TFDS as imagenet2012."""
    data_dir: Annotated[Path | None, open_default("FOLDER", "that of TensorFlow Datasets")] = None
    """Folder of prepared data sets."""
    image_size: Annotated[int | None, open_default("INT", "224; small sets have their own")] = None
    """Height and width that images of a large set are decoded to, in pixels."""
    workers: Annotated[int | None, open_default("INT", "as many as cores")] = None
    """Processes that decode the images of a large set; 0 for none beside this one."""
    unreadable: float = 0.001
    """Share of a large set's images that may be unreadable, in each process; all are reported."""
    checkpoint_every: float = 30.0
    """Seconds between checkpoints: about what a crash can lose. Runs that are trained together
    are saved less often if that takes more than a twentieth of the time."""
    tensorboard: bool = False
    """Write TensorBoard events as well (needs tensorboardX)."""


OF_THE_MACHINE = (
    "checkpoint_every",
    "tensorboard",
    "data_dir",
    "allow_nan",
    "devices",
    "workers",
    "unreadable",
)
"""Options of where and how a run is carried out, not of what is computed."""

CHANGEABLE = (*OF_THE_MACHINE, "remat", "accumulate")
"""Options that may differ when a run is resumed: they do not change its numbers, or by rounding."""


def with_data(config: Config, found: str) -> Config:
    """The same configuration with its data named so that they are found again from anywhere.

    Args:
      config: what the user chose.
      found: name of the data set that was loaded, which takes the place of `auto`.
    """
    data_dir = None if config.data_dir is None else at_home(config.data_dir).absolute()
    name = found if config.dataset == "auto" else located(config.dataset)
    return dataclasses.replace(config, dataset=name, data_dir=data_dir)


def located(dataset: str) -> str:
    """The name of a data set that holds wherever the run is resumed from."""
    is_path = is_npz(dataset) or (is_streamed(dataset) and names_folder(dataset))
    return str(at_home(Path(dataset)).absolute()) if is_path else dataset


def is_file(dataset: str) -> bool:
    """Whether a data set is named by its place, which may change, as `located` wrote it."""
    return is_npz(dataset) or Path(dataset).is_absolute()
