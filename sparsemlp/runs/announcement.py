"""What a training program says before it trains."""

import jax

from sparsemlp.configuration.descriptions import describe_masking
from sparsemlp.configuration.mask_options import mask_schedule
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.settings import Settings, depth_and_plan
from sparsemlp.distributed import processes
from sparsemlp.plan import masks_any
from sparsemlp.runs.progress import Reporter
from sparsemlp.runs.run import Run
from sparsemlp.schedule import LEVELS


def announce(reporter: Reporter, run: Run) -> None:
    """Says what will be trained, on what, where, and what of the options will not come to pass."""
    setup, settings, dataset = run.setup, run.setup.settings, run.setup.dataset
    if dataset.notice is not None:
        reporter.say(f"NOTE: {dataset.notice}", style="bold reverse")
    n_training = setup.training.n_train
    held_out = dataset.n_train - n_training
    parts = f"{n_training:,} training" + (f", {held_out:,} held-out" if held_out else "")
    reporter.say(
        f"data    {dataset.source}: {parts} and {dataset.n_test:,} test images, "
        f"{_counted(dataset.n_classes, 'class', 'classes')}"
    )
    masking = describe_masking(settings)
    if setup.density == 1 and masks_any(depth_and_plan(settings)[1]):
        masking += ", but of so few blocks the ratio drops none"
    elif setup.density < 1 and settings.mask_start_epoch >= settings.epochs:
        masking += f", but dense: --mask-start-epoch={settings.mask_start_epoch} is never reached"
    elif setup.density < 1:
        masking += f", {_density_in_words(settings, setup.density)}"
        if settings.freeze_epoch is not None and settings.freeze_epoch >= settings.epochs:
            masking += f", not frozen: --freeze-epoch={settings.freeze_epoch} is never reached"
    reporter.say(
        f"model   {recipe(settings.model).title}, {setup.parameters:,} parameters, {masking}"
    )
    reporter.say(
        f"run     {_counted(settings.epochs, 'epoch', 'epochs')} of "
        f"{_counted(setup.steps_per_epoch, 'step', 'steps')} of "
        f"{_counted(settings.batch_size, 'image', 'images')}, {settings.precision}, "
        f"seed {settings.seed}, on {_devices_in_words(run.trainer.mesh, settings.batch_size)}"
    )
    reporter.say(f"folder  {run.folder.path}")


def _counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _density_in_words(settings: Settings, density: float) -> str:
    """Which share of the masked kernels is kept from when on, epochs counted from 1."""
    first = settings.mask_start_epoch + 1
    if settings.ratio_schedule == "cubic":
        schedule = mask_schedule(settings)
        levels = [schedule.phase(epoch, ()).level for epoch in range(settings.epochs)]
        if LEVELS not in levels:
            return f"density falling from epoch {first} on, but frozen or over before {density:.3f}"
        whole = 1 + levels.index(LEVELS)
        return f"density falling from epoch {first} on, to {density:.3f} in epoch {whole}"
    least = "at least " if settings.ratio_schedule == "adaptive" else ""
    return f"density {least}{density:.3f} from epoch {first}"


def _devices_in_words(mesh: jax.sharding.Mesh | None, batch_size: int) -> str:
    kind = jax.devices()[0].device_kind
    if mesh is None or mesh.size == 1:
        return f"1 x {kind}"
    where = f" in {processes.count()} processes" if processes.count() > 1 else ""
    return f"{mesh.size} x {kind}{where}, {batch_size // mesh.size} images each"
