"""One run from its settings to its folder: epochs, records, checkpoints, pictures."""

from functools import partial

from sparsemlp.budgets import global_ratios, with_ratios
from sparsemlp.configuration.program import mask_density
from sparsemlp.configuration.settings import Settings
from sparsemlp.data import ImageDataset, LabelledImages
from sparsemlp.device import training_memory
from sparsemlp.distributed.parallel import own_copy, replicate_first
from sparsemlp.distributed.processes import agree, is_first, require_alike, shared
from sparsemlp.errors import InputError, NotFiniteError
from sparsemlp.files import Record, write_json
from sparsemlp.planned_kernels import masked_kernels
from sparsemlp.runs.follower import Follower
from sparsemlp.runs.interruption import CHUNK_SECONDS, Interruption
from sparsemlp.runs.progress import Reporter
from sparsemlp.runs.recorder import Recorder
from sparsemlp.runs.run_folder import ANEW, RunFolder
from sparsemlp.runs.run_setup import RunSetup, set_up
from sparsemlp.schedule import Phase
from sparsemlp.train.stream_trainer import StreamTrainer
from sparsemlp.train.train_state import TrainState, initial_state
from sparsemlp.train.trainer import PhasedTrainer, Trainer


class Run:
    """One training run in its folder.

    Attributes:
      setup: what is trained.
      trainer: who trains it.

    Args:
      settings: what to train.
      dataset: what to train on.
      folder: where everything goes; made before `train`.
      title: the run in a few words, for pictures.

    Raises:
      InputError: the settings do not fit the data set, the model or the memory, or a package is
        missing.
    """

    @training_memory()
    def __init__(
        self,
        settings: Settings,
        dataset: LabelledImages,
        folder: RunFolder,
        title: str,
    ) -> None:
        setup = set_up(settings, dataset)
        self.folder = folder
        recorder_of = Recorder if is_first() else Follower
        self._recorder = recorder_of(setup, folder, title)
        self.trainer = _trainer(setup)
        self._shared_out = settings.budget != "global"

    @property
    def setup(self) -> RunSetup:
        """What is trained; a budget over all layers gives it another plan when masking starts."""
        return self._recorder.setup

    @training_memory()
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
          InputError: nothing to resume, a run on other data, or not enough memory.
          NotFiniteError: loss or parameters are NaN or infinite, and the settings forbid it.
          SaveError: the disk is full or refuses a write.
          WorkerError: a process that decodes images died.
        """
        trainer, total_steps = self.trainer, self.setup.total_steps
        with self._recorder as recorder, trainer:
            state, step = self._start(resume=resume)
            recorder.begin(step)
            reporter.begins_at(step, total_steps)
            while step < total_steps:
                epoch, position = divmod(step, trainer.steps_per_epoch)
                phase = self._phase(epoch)
                if phase.masked and not self._shared_out:
                    self._fix_budget(state, step)
                if not trainer.is_compiled(position, phase):
                    reporter.waiting("compiling")
                state, n_steps, healthy = trainer.train(
                    state, epoch, position, seconds=CHUNK_SECONDS, phase=phase
                )
                step += n_steps
                if not healthy and not self.setup.settings.allow_nan:
                    recorder.save_waiting()
                    raise NotFiniteError(shared(partial(self._broken_down, epoch, step)))
                self._report(reporter, state, epoch, step)
                if step % trainer.steps_per_epoch == 0:
                    reporter.waiting("evaluating")
                    found = trainer.evaluate(state, phase)
                    seconds, trainer.seconds = trainer.seconds, 0.0
                    state, record = recorder.finish_epoch(
                        state,
                        found,
                        epoch,
                        step,
                        density=self._density(phase),
                        seconds=seconds,
                        validation_loss=trainer.validate(state, phase),
                        more=trainer.measures(),
                    )
                    reporter.epoch(record)
                _, signal = agree(0, interruption.signal)
                last = step == total_steps or signal is not None
                counted = trainer.counted()
                recorder.offer(step, state, trainer.seconds, counted=counted, now=last)
                if signal is not None:
                    interruption.signal = signal
                    break
            return shared(lambda: recorder.end(step, state))

    def _start(self, *, resume: bool) -> tuple[TrainState, int]:
        """The state to begin with, saved already, and its step; then says what the run is."""
        recorder = self._recorder
        require_alike({"the checksum of the data": self.setup.dataset.digest})
        restored = recorder.restore() if resume else None
        recorder.describe()
        found = None
        if restored is not None:
            # Of this process alone, and of none in a run that an older version began.
            self.trainer.go_on_from(restored.metadata.get("counted", {}))
            found = restored.step, restored.metadata["seconds"]
        own = initial_state(self.setup.program) if restored is None else restored.state
        begun = shared(lambda: found)
        state = replicate_first(own, self.setup.program.mesh)
        if begun is None:
            recorder.save_first(state)
            return state, 0
        step, seconds = begun
        self.trainer.seconds = float(seconds)
        return state, step

    def _broken_down(self, epoch: int, step: int) -> str:
        """Records and says that the run broke down."""
        told = self._recorder.not_finite(epoch, step)
        self.folder.write_failure(NotFiniteError(told))
        return told

    def _phase(self, epoch: int) -> Phase:
        """What is masked in an epoch, from 0; a function of the settings and the records."""
        schedule = self.setup.schedule
        if schedule.kind != "adaptive":
            return schedule.phase(epoch, ())
        records = self._recorder.history.read()
        return schedule.phase(epoch, [float(r["validation_loss"]) for r in records[:epoch]])

    def _density(self, phase: Phase) -> float:
        if not phase.masked:
            return 1.0
        plan = self.trainer.program(phase).model.plan
        return mask_density(self.setup.shapes.params, plan)

    def _fix_budget(self, state: TrainState, step: int) -> None:
        """Shares out the kept blocks among the layers, once, when masking starts."""
        ratios = shared(lambda: self._ratios(state, step))
        plan = with_ratios(self.setup.shapes.params, self.setup.program.model.plan, ratios)
        self._recorder.setup = self.setup.with_plan(plan)
        self.trainer.use(self.setup.program)
        self._shared_out = True

    def _ratios(self, state: TrainState, step: int) -> dict[str, float]:
        """The ratio of each layer as `budget.json` says, which the first masked step writes."""
        setup, saved = self.setup, self.folder.budget
        if saved.is_file():
            masked = masked_kernels(setup.shapes.params, setup.program.model.plan)
            return self.folder.read_budget({path for path, _, _ in masked})
        if step > setup.schedule.start * setup.steps_per_epoch:
            raise InputError(
                f"{saved} is lost, which says how many blocks each layer keeps: restore the file, "
                f"or {ANEW}"
            )
        ratios = global_ratios(own_copy(state.params), setup.program.model.plan)
        write_json(saved, ratios)
        return ratios

    def _report(self, reporter: Reporter, state: TrainState, epoch: int, step: int) -> None:
        images = int(state.totals["images"])
        seconds = self.trainer.seconds
        reporter.steps(
            done=step,
            total=self.setup.total_steps,
            epoch=epoch + 1,
            loss=float(state.totals["loss"]) / images,
            top1=int(state.totals["top1"]) / images,
            rate=images / seconds if seconds else None,
        )


def _trainer(setup: RunSetup) -> PhasedTrainer:
    settings, training = setup.settings, setup.training
    if isinstance(training, ImageDataset):
        return Trainer(setup.program, training, settings.batch_size, setup.held_out)
    return StreamTrainer(
        setup.program,
        training,
        settings.batch_size,
        setup.held_out,
        n_workers=settings.workers,
        largest_unreadable_share=settings.unreadable,
    )
