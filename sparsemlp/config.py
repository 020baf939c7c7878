"""What a user may choose for a run.

None means "what suits the data set"; `settings.resolve` fills that in.
"""

import dataclasses
import json
from pathlib import Path

from sparsemlp.errors import InputError


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of a training run; the help text of each is the docstring below it."""

    block: str | None = None
    """Block of the mask, ROWSxCOLS: rows over outputs, columns over inputs. Default 32x32."""
    ratio: float | None = None
    """Fraction of blocks to drop, in [0, 1). Default 0: dense."""
    mask_layers: str | None = None
    """Layer kinds to mask, separated by commas: XPatch (token mixing), XChannel (both channel
    linears), XChannel1, XChannel2. Default XPatch,XChannel."""
    backward: str = "masked"
    """Backward pass: masked (mask in dX and dW), dense (in neither), straight_through (in dX)."""
    score: str = "l2"
    """What ranks the blocks: l2 (Frobenius norm), spectral (largest singular value), l1."""
    config: str | None = None
    """Model string instead of --block, --ratio, --mask-layers and --depth, such as
    "ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (1, 1);"."""
    mask_start_epoch: int | None = None
    """Epochs that are trained dense before masking starts. Default min(10, epochs // 10)."""

    epochs: int | None = None
    """Epochs to train. Default 200 (digits: 30)."""
    batch_size: int | None = None
    """Images in a step. Default 128 (digits: 32)."""
    lr: float = 0.01
    """Peak learning rate."""
    min_lr: float = 1e-5
    """Learning rate that the cosine ends at."""
    warmup_lr: float | None = None
    """Learning rate of the first warm-up epoch. Default a tenth of --lr."""
    warmup_epochs: int | None = None
    """Epochs of linear warm-up. Default min(5, epochs // 10) (digits: 1 if there are 2)."""
    weight_decay: float = 1e-4
    """L2 added to the gradient, not on biases and other parameters of rank 1."""
    seed: int = 0
    """Seed of everything random: initial weights, order, augmentation."""
    precision: str = "float32"
    """Dtype of the computation: float32 or bfloat16. Parameters are float32."""
    engine: str = "auto"
    """Who computes the masked products: auto, reference."""
    allow_nan: bool = False
    """Go on when the loss becomes NaN or infinite, instead of stopping with exit code 3."""

    patch_size: int = 4
    """Height and width of a patch, in pixels."""
    dim: int = 64
    """Features of a token."""
    depth: int | None = None
    """Blocks of the model. Default 5."""
    expansion: int = 4
    """Hidden features over features of the channel linears."""
    drop_path: float = 0.0
    """Probability that an image skips a residual branch in training."""

    flip: float | None = None
    """Probability of a horizontal flip. Default 0.5 (digits: 0)."""
    crop_padding: int = 4
    """Pixels of padding before the random crop; 0 for no crop."""
    mixup: float = 0.2
    """Alpha of mixup; 0 for none."""
    cutmix: float | None = None
    """Alpha of CutMix; 0 for none. Default 0.8 (digits: 0)."""
    mix_probability: float = 1.0
    """Probability that a batch is mixed at all."""
    switch_probability: float = 0.5
    """Probability of CutMix rather than mixup, when both are on."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over all classes."""

    dataset: str = "auto"
    """auto (cifar10 if it is at hand or can be downloaded, otherwise digits), cifar10, digits, or
    FILE.npz with train_images, train_labels, test_images, test_labels."""
    data_dir: Path | None = None
    """Folder of prepared data sets. Default that of TensorFlow Datasets."""
    checkpoint_every: float = 30.0
    """Seconds between checkpoints: what a crash can lose at the most."""
    tensorboard: bool = False
    """Write TensorBoard events as well (needs tensorboardX)."""


def to_json(config: Config) -> str:
    """A configuration as JSON text."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values["data_dir"] = None if config.data_dir is None else str(config.data_dir)
    return json.dumps(values, indent=2) + "\n"


def from_json(text: str, source: Path) -> Config:
    """Reads what `to_json` wrote.

    Raises:
      InputError: the text is no configuration of this version; the message names `source`.
    """
    try:
        values = json.loads(text)
        values["data_dir"] = None if values["data_dir"] is None else Path(values["data_dir"])
        return Config(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{source} is no configuration of this version: {error}") from error
