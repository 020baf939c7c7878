"""What one run trains: its settings, applied to its data set."""

import dataclasses
from typing import Any

import jax

from sparsemlp.configuration.mask_options import mask_schedule
from sparsemlp.configuration.program import build_program, mask_density, n_parameters
from sparsemlp.configuration.settings import Settings
from sparsemlp.data import ImageDataset, LabelledImages, hold_out
from sparsemlp.data.imagenet import hold_out_images
from sparsemlp.plan import Plan
from sparsemlp.schedule import MaskSchedule
from sparsemlp.train.train_state import Program, TrainState, initial_state


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """What follows from the settings of a run and its data set.

    Attributes:
      settings: what is trained.
      dataset: what it is trained on.
      training: the data set without the images that are held out.
      held_out: what to validate on, images and labels or a source of them, or None.
      program: the program of the settings.
      shapes: the shapes of its state.
      density: share of the weights of all masked kernels that is kept at the end.
    """

    settings: Settings
    dataset: LabelledImages
    training: LabelledImages
    held_out: Any
    program: Program
    shapes: TrainState
    density: float

    @property
    def parameters(self) -> int:
        """How many numbers the parameters of the model hold."""
        return n_parameters(self.shapes.params)

    @property
    def schedule(self) -> MaskSchedule:
        """When the run masks, and how much."""
        return mask_schedule(self.settings)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the partial last batch included."""
        return self.settings.steps_per_epoch(self.training.n_train)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.settings.epochs * self.steps_per_epoch

    def with_plan(self, plan: Plan) -> "RunSetup":
        """The same with another plan, whose ratios are those of the layers."""
        program = dataclasses.replace(self.program, model=self.program.model.clone(plan=plan))
        density = mask_density(self.shapes.params, plan)
        return dataclasses.replace(self, program=program, density=density)


def set_up(settings: Settings, dataset: LabelledImages) -> RunSetup:
    """Holds out images, and builds the program for the others.

    Raises:
      InputError: the settings do not fit the data set or the model.
    """
    if isinstance(dataset, ImageDataset):
        training, held_out = hold_out(dataset, settings.hold_out)
    else:
        training, held_out = hold_out_images(dataset, settings.hold_out)
    program = build_program(settings, training)
    shapes = jax.eval_shape(lambda: initial_state(program))
    density = mask_density(shapes.params, program.model.plan, settings.budget)
    return RunSetup(settings, dataset, training, held_out, program, shapes, density)
