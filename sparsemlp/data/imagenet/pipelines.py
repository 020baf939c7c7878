"""The two pipelines of a training program."""

from sparsemlp.data.imagenet.batch_plan import BatchPlan
from sparsemlp.data.imagenet.loading import ImageSource
from sparsemlp.data.imagenet.pipeline import Pipeline
from sparsemlp.data.imagenet.unreadable import LARGEST_SHARE


def training_pipeline(
    source: ImageSource,
    *,
    batch_size: int,
    image_size: int,
    seed: int,
    epoch: int = 0,
    step: int = 0,
    multiple: int | None = None,
    process: int = 0,
    n_processes: int = 1,
    n_workers: int | None = None,
    largest_unreadable_share: float = LARGEST_SHARE,
    n_unreadable: int = 0,
) -> Pipeline:
    """Random crops in a new order each epoch; the last, partial batch counts.

    Args:
      source: Training images.
      batch_size: Images of a step over all processes.
      image_size: Height and width of the images, in pixels.
      seed: Seed of orders, crops and flips.
      epoch: Epoch of the first batch, from 0.
      step: Step of the first batch in that epoch, from 0.
      multiple: Rows labelled -1 fill the last batch of an epoch up to a multiple of this, such
        as the number of devices; None means the number of processes, so with one process it
        holds the images that are left and nothing else.
      process: Which process this is, from 0.
      n_processes: How many there are; each gets as many rows of every batch.
      n_workers: As for `Pipeline`.
      largest_unreadable_share: As for `Pipeline`.
      n_unreadable: As for `Pipeline`.

    Raises:
      InputError: A value that breaks a rule, or grain is missing.
    """
    plan = BatchPlan(
        len(source),
        batch_size,
        seed=seed,
        multiple=n_processes if multiple is None else multiple,
        process=process,
        n_processes=n_processes,
    )
    return Pipeline(
        source,
        plan,
        image_size,
        epoch=epoch,
        step=step,
        n_workers=n_workers,
        largest_unreadable_share=largest_unreadable_share,
        n_unreadable=n_unreadable,
    )


def validation_pipeline(
    source: ImageSource,
    *,
    batch_size: int,
    image_size: int,
    process: int = 0,
    n_processes: int = 1,
    n_workers: int | None = None,
    largest_unreadable_share: float = LARGEST_SHARE,
) -> Pipeline:
    """The centred square of every image once an epoch, all batches filled up with rows labelled -1.

    One pass is `rest_of_epoch()`; all processes get as many batches. An accuracy is over the rows
    with a label: those that cannot be read have none.

    Args:
      source: Validation images.
      batch_size: Rows of a batch over all processes.
      image_size: Height and width of the images, in pixels.
      process: Which process this is, from 0.
      n_processes: How many there are; each gets as many rows of every batch.
      n_workers: As for `Pipeline`.
      largest_unreadable_share: As for `Pipeline`.

    Raises:
      InputError: A value that breaks a rule, or grain is missing.
    """
    plan = BatchPlan(
        len(source),
        batch_size,
        multiple=batch_size,
        process=process,
        n_processes=n_processes,
    )
    return Pipeline(
        source,
        plan,
        image_size,
        n_workers=n_workers,
        largest_unreadable_share=largest_unreadable_share,
    )
