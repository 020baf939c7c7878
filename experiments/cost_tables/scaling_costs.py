"""The time of a training step on 1 to 1024 devices, on paper: a table and a picture."""

import math

from rich.console import Console

from cost_tables.scaling_options import Scaling, cluster_of, masks_in_words, model_of
from sparsemlp import InputError
from sparsemlp.cost_models.scaling import Cluster
from sparsemlp.cost_models.scaling_points import ScalingPoint, scaling_points, strong, weak
from sparsemlp.figures import save
from sparsemlp.figures.speed_up import draw_scaling, name_variant
from sparsemlp.figures.style import look
from sparsemlp.files import make_folder, write_csv

COLUMNS = (
    "scaling",
    "variant",
    "devices",
    "images_per_device",
    "dense_flops",
    "masked_flops",
    "moved_bytes",
    "exchanged_bytes",
    "compute_seconds",
    "memory_seconds",
    "exchange_seconds",
    "latency_seconds",
    "step_seconds",
    "serial_step_seconds",
    "images_per_second",
    "serial_images_per_second",
    "speed_up",
    "serial_speed_up",
    "bound",
)
"""Of `scaling.csv`. FLOPs, bytes and seconds are those of one step of one device; the latency is
part of the exchange; `serial` adds the parts up, without it they overlap and the longest counts."""

_PAYS = 1.1
"""From this speed-up on the summary says that block sparsity pays."""


def write_scaling(options: Scaling) -> None:
    """Writes the table and the picture, and prints in sentences what they say.

    Raises:
      InputError: an option that does not fit.
      SaveError: the disk refuses.
    """
    shapes, masking = model_of(options)
    cluster = cluster_of(options)
    if not options.devices or list(options.devices) != sorted(set(options.devices)):
        raise InputError("--devices must be numbers of devices, each once, the smallest first")
    if options.line_bytes < 1:
        raise InputError(f"--line-bytes={options.line_bytes}: it must be at least 1")
    images = {
        f"strong scaling, {options.batch_size} images a step": strong(options.batch_size),
        f"weak scaling, {options.images_per_device} images a device": weak(
            options.images_per_device
        ),
    }
    panels = {
        title: scaling_points(
            shapes, masking, cluster, options.devices, of_device, options.line_bytes
        )
        for title, of_device in images.items()
    }
    make_folder(options.out, f"--out={options.out}")
    rows = [_row(title, point) for title, points in panels.items() for point in points]
    write_csv(options.out / "scaling.csv", COLUMNS, rows)
    with look():
        drawing = draw_scaling(panels, _title(options))
    paths = save(drawing, options.out, options.vector)
    console = Console(highlight=False, soft_wrap=True)
    console.print(_hardware(cluster))
    for title, points in panels.items():
        console.print(f"{title}:")
        for sentence in summary(points):
            console.print(f"  {sentence}")
    console.print(options.out / "scaling.csv", *paths)


def summary(points: list[ScalingPoint]) -> list[str]:
    """For each variant a sentence: what bounds its step where, and where it pays over dense."""
    sentences = []
    for variant in dict.fromkeys(point.variant for point in points):
        own = [point for point in points if point.variant == variant]
        bounds = []
        for index, point in enumerate(own):
            if not index or point.time.bound != own[index - 1].time.bound:
                bounds.append(f"{point.time.bound} from {point.devices} on")
        sentence = f"{name_variant(variant)}: bound by {', '.join(bounds)}"
        if variant != "dense_model":
            best = max(own, key=lambda point: point.speed_up)
            pays = [point.devices for point in own if point.speed_up >= _PAYS]
            where = (
                f"{_PAYS:g}x or more over dense on {_ranges(own, pays)}"
                if pays
                else (f"nowhere {_PAYS:g}x over dense")
            )
            sentence += (
                f"; {where}; {own[0].speed_up:.2f}x on {own[0].devices}, at most "
                f"{best.speed_up:.2f}x on {best.devices}, {own[-1].speed_up:.2f}x on "
                f"{own[-1].devices} ({own[0].serial_speed_up:.2f}x, "
                f"{best.serial_speed_up:.2f}x, {own[-1].serial_speed_up:.2f}x if nothing overlaps)"
            )
        sentences.append(f"{sentence}.")
    return sentences


def _ranges(points: list[ScalingPoint], chosen: list[int]) -> str:
    """Numbers of devices as ranges of neighbours among the points."""
    found: list[list[int]] = []
    for index, point in enumerate(points):
        if point.devices not in chosen:
            continue
        if found and index and points[index - 1].devices == found[-1][-1]:
            found[-1].append(point.devices)
        else:
            found.append([point.devices])
    texts = [f"{r[0]} to {r[-1]}" if len(r) > 1 else f"{r[0]}" for r in found]
    return f"{' and '.join(texts)} devices"


def _row(title: str, point: ScalingPoint) -> list[object]:
    costs, time = point.costs, point.time
    images = point.images * point.devices
    return [
        title.split()[0],
        point.variant,
        point.devices,
        point.images,
        costs.dense_flops,
        costs.masked_flops,
        costs.moved_bytes,
        costs.exchanged_bytes if point.devices > 1 else 0,
        time.compute,
        time.memory,
        time.exchange,
        time.latency,
        time.overlapped,
        time.serial,
        images / time.overlapped if time.overlapped else math.inf,
        images / time.serial if time.serial else math.inf,
        point.speed_up,
        point.serial_speed_up,
        time.bound,
    ]


def _title(options: Scaling) -> str:
    given = options.peak_flops is not None or options.memory_bandwidth is not None
    masks = masks_in_words(options)
    device = "a device by numbers" if given else options.device.upper()
    return f"{options.model}, {masks.rstrip('; ')}, {device}, {options.dtype} (theoretical)"


def _hardware(cluster: Cluster) -> str:
    device, inside, between = cluster.device, cluster.inside, cluster.between
    return (
        f"On paper, nothing measured. Device: {device.flops[cluster.dtype] / 1e12:g} TFLOP/s in "
        f"{cluster.dtype}, {device.memory_bandwidth / 1e12:g} TB/s ({device.source}). Links: "
        f"inside a host of {cluster.devices_per_host} {inside.bandwidth / 1e9:g} GB/s and "
        f"{1e6 * inside.latency:g} us a hop ({inside.source}), between hosts "
        f"{between.bandwidth / 1e9:g} GB/s and {1e6 * between.latency:g} us ({between.source})."
    )
