"""One run from its settings to its folder: epochs, records, checkpoints, pictures."""

from sparsemlp.data import ImageDataset
from sparsemlp.files import Record
from sparsemlp.interruption import Interruption
from sparsemlp.progress import Reporter
from sparsemlp.recorder import Recorder
from sparsemlp.run_folder import RunFolder
from sparsemlp.settings import Settings
from sparsemlp.train_state import TrainState, initial_state
from sparsemlp.trainer import Trainer

_CHUNK_SECONDS = 2.0
"""About how long one call of the training program lasts: how soon a signal is obeyed."""


class NotFiniteError(ArithmeticError):
    """The loss or a parameter became NaN or infinite; one line says when and what is left."""


class Run:
    """One training run in its folder.

    Attributes:
      parameters: how many numbers the parameters of the model hold.
      density: share of the weights of all masked kernels that is kept.

    Args:
      settings: what to train.
      dataset: what to train on.
      folder: where everything goes; made before `train`.
      title: the run in a few words, for pictures.

    Raises:
      InputError: the settings do not fit the data set or the model, or a package is missing.
    """

    def __init__(
        self, settings: Settings, dataset: ImageDataset, folder: RunFolder, title: str
    ) -> None:
        self.settings = settings
        self.dataset = dataset
        self.folder = folder
        self._recorder = Recorder(settings, dataset, folder, title)
        self.parameters = self._recorder.parameters
        self.density = self._recorder.density
        self.trainer = Trainer(self._recorder.program, dataset, settings.batch_size)

    def train(
        self, reporter: Reporter, interruption: Interruption, *, resume: bool
    ) -> Record | None:
        """Trains to the last epoch, or until a signal asks to stop.

        Args:
          reporter: who hears of the progress.
          interruption: whether to stop.
          resume: whether to continue from the newest checkpoint.

        Returns:
          The summary, also in `summary.json`; None if the run was interrupted. All is saved then.

        Raises:
          InputError: nothing to resume, or a run on other data.
          NotFiniteError: loss or parameters are NaN or infinite, and the settings forbid it.
          SaveError: the disk is full or refuses a write.
        """
        trainer, total_steps = self.trainer, self._recorder.total_steps
        with self._recorder as recorder:
            state, step = self._start(resume=resume)
            recorder.begin(step)
            while step < total_steps:
                epoch, position = divmod(step, trainer.steps_per_epoch)
                masked = epoch >= self.settings.mask_start_epoch
                if not trainer.is_compiled(position, masked=masked):
                    reporter.waiting("compiling")
                state, n_steps, healthy = trainer.train(
                    state, epoch, position, seconds=_CHUNK_SECONDS, masked=masked
                )
                step += n_steps
                if not healthy and not self.settings.allow_nan:
                    recorder.save_waiting()
                    raise NotFiniteError(recorder.not_finite(epoch, step))
                self._report(reporter, state, epoch, step)
                if step % trainer.steps_per_epoch == 0:
                    reporter.waiting("evaluating")
                    found = trainer.evaluate(state, masked=masked)
                    seconds, trainer.seconds = trainer.seconds, 0.0
                    state, record = recorder.finish_epoch(
                        state, found, epoch, step, masked=masked, seconds=seconds
                    )
                    reporter.epoch(record)
                last = step == total_steps or interruption.signal is not None
                recorder.offer(step, state, trainer.seconds, now=last)
                if interruption.signal is not None:
                    break
            return recorder.end(step, state)

    def _start(self, *, resume: bool) -> tuple[TrainState, int]:
        """The state to begin with, saved already, and its step; then says what the run is."""
        restored = self._recorder.restore() if resume else None
        self._recorder.describe()
        if restored is None:
            state = initial_state(self._recorder.program)
            self._recorder.save_first(state)
            return state, 0
        self.trainer.seconds = float(restored.metadata["seconds"])
        return restored.state, restored.step

    def _report(self, reporter: Reporter, state: TrainState, epoch: int, step: int) -> None:
        images = int(state.totals["images"])
        seconds = self.trainer.seconds
        reporter.steps(
            done=step,
            total=self._recorder.total_steps,
            epoch=epoch + 1,
            loss=float(state.totals["loss"]) / images,
            top1=int(state.totals["top1"]) / images,
            rate=images / seconds if seconds else None,
        )
