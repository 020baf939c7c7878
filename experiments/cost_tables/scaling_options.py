"""The options of `costs.py scaling`, and the model and the hardware that they describe."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cost_tables.model_shapes import check_blocks, masked_kinds, model_shapes, refuse_beside_config
from sparsemlp import InputError, parse_block, parse_model
from sparsemlp.blocks import check_ratio
from sparsemlp.cost_models.costs import Masking, Shapes
from sparsemlp.cost_models.hardware import DEVICES, LINKS, Device, Link
from sparsemlp.cost_models.scaling import Cluster
from sparsemlp.errors import require_known
from sparsemlp.options import open_default
from sparsemlp.studies.run_costs import masking_by_kind


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The time of a training step on 1 to 1024 devices, on paper: scaling.csv and one picture.

    Step time is the longest of arithmetic, memory traffic and exchange of gradients if they
    overlap, and their sum if not. Devices and links are data sheets', nothing is measured.
    """

    out: Path = Path("scaling")
    """Folder of the table and the picture."""
    model: str = "resmlp_imagenet"
    """Preset: resmlp_cifar10, resmlp_imagenet, resmlp_s12, resmlp_s24, resmlp_s36, resmlp_b24."""
    config: str | None = None
    """Model string: its depth and its masks, in the place of block, ratio and mask_layers; the
    backward passes are compared whatever it says."""
    block: Annotated[str | None, open_default("ROWSxCOLS", "32x32")] = None
    """Block of the masks."""
    ratio: Annotated[float | None, open_default("FLOAT", "0.8")] = None
    """Fraction of blocks to drop."""
    mask_layers: Annotated[str | None, open_default("KINDS", "XPatch,XChannel")] = None
    """Layer kinds to mask: XPatch, XChannel (or XChannel1, XChannel2)."""
    image_size: Annotated[int | None, open_default("INT", "the preset's")] = None
    """Height and width of an image, in pixels."""
    devices: tuple[int, ...] = tuple(2**n for n in range(11))
    """Numbers of devices."""
    batch_size: int = 4096
    """Images of a step of all devices, for strong scaling."""
    images_per_device: int = 64
    """Images of a step of one device, for weak scaling; 64 is the thesis' batch."""
    device: str = "h100"
    """A device by its data sheet: a100, h100, h200."""
    dtype: Literal["float32", "tf32", "bfloat16"] = "bfloat16"
    """Arithmetic of the products; gradients are exchanged in float32."""
    peak_flops: float | None = None
    """FLOP/s of another device, in that arithmetic."""
    memory_bandwidth: float | None = None
    """Bytes/s of another device."""
    devices_per_host: int = 8
    """Devices of a host."""
    inside: str = "nvlink4"
    """Link inside a host: nvlink3, nvlink4, infiniband_hdr, infiniband_ndr."""
    inside_bandwidth: float | None = None
    """Bytes/s in one direction of another link inside a host."""
    inside_latency: float | None = None
    """Seconds of a hop over it."""
    between: str = "infiniband_ndr"
    """Link of each device to other hosts, one of the same."""
    between_bandwidth: float | None = None
    """Bytes/s in one direction of another link between hosts."""
    between_latency: float | None = None
    """Seconds of a hop over it."""
    messages: int = 1
    """All-reduces that the gradients of a step are cut into."""
    dense_efficiency: float = 1.0
    """Share of the peak that dense products reach."""
    masked_efficiency: float = 1.0
    """Share of the peak that products of kept blocks reach."""
    memory_efficiency: float = 1.0
    """Share of the memory bandwidth that is reached."""
    link_efficiency: float = 1.0
    """Share of the links' bandwidth that is reached."""
    line_bytes: int = 128
    """Bytes of a cache line."""
    vector: Literal["svg", "pdf"] = "svg"
    """Format of the vector beside the PNG."""


def model_of(options: Scaling) -> tuple[Shapes, Masking]:
    """The sizes of the model and its masks.

    Raises:
      InputError: there is no such model, or a mask that does not fit it.
    """
    if options.config is None:
        shapes = model_shapes(options.model, None, options.image_size)
        text, ratio = _block_and_ratio(options)
        check_ratio(ratio)
        if ratio == 0:
            raise InputError("--ratio=0 masks nothing: choose a ratio above 0")
        layers = options.mask_layers
        kinds = masked_kinds("XPatch,XChannel" if layers is None else layers)
        masking: Masking = dict.fromkeys(kinds, (parse_block(text), ratio))
    else:
        refuse_beside_config(options, "block", "ratio", "mask_layers")
        depth, plan = parse_model(options.config)
        shapes = model_shapes(options.model, depth, options.image_size)
        masking = masking_by_kind(plan)
        if not masking:
            raise InputError(f"--config={options.config!r} masks nothing: give a kind a mask")
    other = () if options.config is None else ("another block in --config",)
    for kind, (block, _) in masking.items():
        check_blocks([block], [kind], shapes, *other)
    return shapes, masking


def masks_in_words(options: Scaling) -> str:
    """The masks as a title has them."""
    block, ratio = _block_and_ratio(options)
    layers = f" in {options.mask_layers}" if options.mask_layers is not None else ""
    return options.config or f"{block} at {ratio:g}{layers}"


def _block_and_ratio(options: Scaling) -> tuple[str, float]:
    block, ratio = options.block, options.ratio
    return "32x32" if block is None else block, 0.8 if ratio is None else ratio


def cluster_of(options: Scaling) -> Cluster:
    """The hosts, devices and links.

    Raises:
      InputError: a name that is unknown, or a number that cannot be.
    """
    published = _published("device", options.device, DEVICES)
    flops, bandwidth = options.peak_flops, options.memory_bandwidth
    if flops == bandwidth == math.inf:
        raise InputError(
            "--peak-flops=inf and --memory-bandwidth=inf leave a step on one device no time: give "
            "one of them a number"
        )
    device = Device(
        {options.dtype: published.flops[options.dtype] if flops is None else flops},
        published.memory_bandwidth if bandwidth is None else bandwidth,
        _source(published.source, flops=flops, bandwidth=bandwidth),
    )
    return Cluster(
        device,
        options.dtype,
        _link("inside", options.inside, options.inside_bandwidth, options.inside_latency),
        _link("between", options.between, options.between_bandwidth, options.between_latency),
        options.devices_per_host,
        options.messages,
        options.dense_efficiency,
        options.masked_efficiency,
        options.memory_efficiency,
        options.link_efficiency,
    )


def _published[T](what: str, name: str, known: Mapping[str, T]) -> T:
    return known[require_known(f"--{what}={name}", name, known)]


def _link(what: str, name: str, bandwidth: float | None, latency: float | None) -> Link:
    link = _published(what, name, LINKS)
    return Link(
        link.bandwidth if bandwidth is None else bandwidth,
        link.latency if latency is None else latency,
        _source(link.source, bandwidth=bandwidth, latency=latency),
    )


def _source(published: str, **given: float | None) -> str:
    """Where numbers are from: published, given, or which of them is given."""
    names = [name for name, value in given.items() if value is not None]
    if not names:
        return published
    return "given" if len(names) == len(given) else f"{published}, {names[0]} given"
