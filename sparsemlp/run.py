"""One run from its settings to its folder: epochs, records, checkpoints, pictures."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np

from sparsemlp.budgets import global_ratios, with_ratios
from sparsemlp.checkpoint import Checkpoints
from sparsemlp.config import to_json
from sparsemlp.data import ImageDataset, hold_out
from sparsemlp.environment import describe_environment
from sparsemlp.errors import InputError
from sparsemlp.files import Record, write_json, write_whole
from sparsemlp.history import History
from sparsemlp.interruption import Interruption
from sparsemlp.keeper import Keeper
from sparsemlp.mask_options import mask_schedule
from sparsemlp.parallel import replicate
from sparsemlp.pictures import draw
from sparsemlp.plan import mask_shapes
from sparsemlp.program import (
    build_program,
    data_digest,
    epoch_learning_rate,
    mask_density,
    n_parameters,
)
from sparsemlp.progress import Reporter
from sparsemlp.resume import restore_run
from sparsemlp.run_folder import RunFolder
from sparsemlp.schedule import Phase
from sparsemlp.settings import Settings
from sparsemlp.tensorboard import TensorBoard, require_tensorboardx
from sparsemlp.train_state import TrainState, initial_state, no_totals
from sparsemlp.trainer import Trainer
from sparsemlp.training import Evaluation

_CHUNK_SECONDS = 2.0
"""About how long one call of the training program lasts: how soon a signal is obeyed."""


class NotFiniteError(ArithmeticError):
    """The loss or a parameter became NaN or infinite; one line says when and what is left."""


class Run:
    """One training run in its folder.

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
        self.title = title
        if settings.tensorboard:
            require_tensorboardx()
        self.schedule = mask_schedule(settings)
        dataset, held_out = hold_out(dataset, settings.hold_out)
        self.program = build_program(settings, dataset)
        self.shapes = jax.eval_shape(lambda: initial_state(self.program))
        self.parameters = n_parameters(self.shapes.params)
        self.density = mask_density(self.shapes.params, self.program.model.plan)
        self.digest = data_digest(self.dataset)
        self.history = History(folder.metrics)
        self._budget: dict[str, float] | None = None
        self.trainer = Trainer(self.program, dataset, settings.batch_size, held_out)
        self.total_steps = settings.epochs * self.trainer.steps_per_epoch

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
        with Checkpoints(self.folder.checkpoints) as checkpoints:
            keeper = Keeper(checkpoints, self.settings.checkpoint_every)
            state, step = self._start(checkpoints, resume=resume)
            board = (
                TensorBoard(self.folder.tensorboard, step) if self.settings.tensorboard else None
            )
            counting = (r for r in self.history.read() if self._counts(r["epoch"] - 1))
            best = max((float(record["test_top1"]) for record in counting), default=-1.0)
            while step < self.total_steps:
                epoch, position = divmod(step, self.trainer.steps_per_epoch)
                phase = self._phase(epoch)
                if phase.masked and self.settings.budget == "global":
                    self._fix_budget(state)
                if not self.trainer.is_compiled(position, phase):
                    reporter.waiting("compiling")
                state, n_steps, healthy = self.trainer.train(
                    state, epoch, position, seconds=_CHUNK_SECONDS, phase=phase
                )
                step += n_steps
                if not healthy and not self.settings.allow_nan:
                    keeper.save_waiting()
                    raise NotFiniteError(self._not_finite(epoch, step, checkpoints))
                self._report(reporter, state, epoch, step)
                score = None
                if step % self.trainer.steps_per_epoch == 0:
                    reporter.waiting("evaluating")
                    state, record = self._finish_epoch(state, epoch, step, phase)
                    reporter.epoch(record)
                    if board is not None:
                        board.write(record)
                    if self._counts(epoch) and record["test_top1"] >= best:
                        best = score = float(record["test_top1"])
                last = step == self.total_steps or interruption.signal is not None
                keeper.offer(step, state, self._metadata(), score, now=last)
                if interruption.signal is not None and step < self.total_steps:
                    break
            if board is not None:
                board.close()
            self._write_activity(state, step)
            draw(self.folder, self.title)
            return self._summarise(best) if step == self.total_steps else None

    def _start(self, checkpoints: Checkpoints, *, resume: bool) -> tuple[TrainState, int]:
        """The state to begin with, saved already, and its step; then says what the run is."""
        restored = None
        if resume:
            restored = restore_run(
                self.folder,
                checkpoints,
                self.shapes,
                steps_per_epoch=self.trainer.steps_per_epoch,
                data=self.digest,
            )
        self._write_description()
        if restored is None:
            state = replicate(initial_state(self.program), self.program.mesh)
            checkpoints.save(0, state, self._metadata())
            return state, 0
        self.trainer.seconds = float(restored.metadata["seconds"])
        return replicate(restored.state, self.program.mesh), restored.step

    def _write_description(self) -> None:
        """Writes configuration and environment; that of an earlier start is kept below it."""
        earlier: list[Any] = []
        if before := self.folder.read_environment():
            earlier = [*before.pop("earlier", []), before]
        write_whole(self.folder.config, lambda file: file.write(to_json(self.settings).encode()))
        data: Record = {"dataset": self.dataset.source, "notice": self.dataset.notice}
        write_json(self.folder.environment, describe_environment() | data | {"earlier": earlier})

    def _metadata(self) -> Record:
        source = self.dataset.source
        return {"seconds": self.trainer.seconds, "dataset": source, "data": self.digest}

    def _phase(self, epoch: int) -> Phase:
        """What is masked in an epoch, from 0; a function of the settings and the records."""
        if self.schedule.kind != "adaptive":
            return self.schedule.phase(epoch, ())
        losses = [float(record["validation_loss"]) for record in self.history.read()]
        return self.schedule.phase(epoch, losses[:epoch])

    def _density(self, phase: Phase) -> float:
        if not phase.masked:
            return 1.0
        return mask_density(self.shapes.params, self.trainer.program(phase).model.plan)

    def _counts(self, epoch: int) -> bool:
        """Whether an epoch, from 0, can be the best: one at the highest ratio that the run reaches.

        Where the ratio goes up and down, any masked one.
        """
        if self.schedule.kind == "adaptive":
            return self.density == 1 or epoch >= min(self.schedule.start, self.settings.epochs)
        levels = [self.schedule.phase(e, ()).level for e in range(self.settings.epochs)]
        return self.density == 1 or levels[epoch] == max(levels)

    def _fix_budget(self, state: TrainState) -> None:
        """Shares out the kept blocks among the layers, once, when masking starts."""
        if self._budget is not None:
            return
        saved = self.folder.budget
        if saved.is_file():
            ratios: dict[str, float] = json.loads(saved.read_text())
        elif int(state.step) > self.schedule.start * self.trainer.steps_per_epoch:
            raise InputError(
                f"{saved} is lost, which says how many blocks each layer keeps: restore the file, "
                "or start anew with --out"
            )
        else:
            ratios = global_ratios(state.params, self.program.model.plan)
            write_json(saved, ratios)
        self._budget = ratios
        model = self.program.model
        plan = with_ratios(self.shapes.params, model.plan, ratios)
        self.program = dataclasses.replace(self.program, model=model.clone(plan=plan))
        self.trainer.use(self.program)
        self.density = mask_density(self.shapes.params, plan)

    def _report(self, reporter: Reporter, state: TrainState, epoch: int, step: int) -> None:
        images = int(state.totals["images"])
        seconds = self.trainer.seconds
        reporter.steps(
            done=step,
            total=self.total_steps,
            epoch=epoch + 1,
            loss=float(state.totals["loss"]) / images,
            top1=int(state.totals["top1"]) / images,
            rate=images / seconds if seconds else None,
        )

    def _finish_epoch(
        self, state: TrainState, epoch: int, step: int, phase: Phase
    ) -> tuple[TrainState, dict[str, Any]]:
        """Evaluates, writes the record of the epoch, and makes the state ready for the next."""
        found = self.trainer.evaluate(state, phase)
        totals = jax.device_get(state.totals)
        n_images, n_test = int(totals["images"]), len(self.dataset.test_labels)
        seconds, self.trainer.seconds = self.trainer.seconds, 0.0
        record: dict[str, Any] = {
            "epoch": epoch + 1,
            "step": step,
            "loss": float(totals["loss"]) / n_images,
            "train_top1": int(totals["top1"]) / n_images,
            "train_top5": int(totals["top5"]) / n_images,
            "test_top1": int(found.top1) / n_test,
            "test_top5": int(found.top5) / n_test,
            "test_loss": float(found.loss) / n_test,
            "density": self._density(phase),
            "changed_blocks": _changed_blocks(state, found),
            "dropped_norm": float(found.dropped_norm),
            "learning_rate": float(epoch_learning_rate(self.settings)(epoch)),
            "seconds": seconds,
            "images_per_second": n_images / seconds,
            "dataset": self.dataset.source,
        }
        if self.settings.hold_out:
            record["validation_loss"] = self.trainer.validate(state, phase)
        self.history.append(record)
        totals = replicate(no_totals(), self.program.mesh)
        state = dataclasses.replace(state, totals=totals, last_kept=found.kept)
        self._write_activity(state, step)
        return state, record

    def _write_activity(self, state: TrainState, step: int) -> None:
        grids = mask_shapes(state.params, self.program.model.plan)
        first = self.schedule.start * self.trainer.steps_per_epoch
        arrays: dict[str, Any] = {
            path: np.asarray(count).reshape(grids[path].grid_shape)
            for path, count in state.activity.items()
        }
        arrays |= {"masked_steps": max(0, step - first), "dataset": self.dataset.source}
        write_whole(self.folder.mask_activity, lambda file: np.savez(file, **arrays))

    def _summarise(self, best: float) -> Record:
        records = self.history.read()
        summary: Record = {
            "dataset": self.dataset.source,
            "notice": self.dataset.notice,
            "epochs": self.settings.epochs,
            "steps": self.total_steps,
            "parameters": self.parameters,
            "density": records[-1]["density"],
            "loss": records[-1]["loss"],
            "test_top1": records[-1]["test_top1"],
            "test_top5": records[-1]["test_top5"],
            "best_test_top1": best,
            "seconds": sum(float(record["seconds"]) for record in records),
        }
        write_json(self.folder.summary, summary)
        return summary

    def _not_finite(self, epoch: int, step: int, checkpoints: Checkpoints) -> str:
        good = self.folder.checkpoints / str(checkpoints.steps()[-1])
        return (
            f"loss or parameters became NaN or infinite in epoch {epoch + 1}, at or before step "
            f"{step}; the last good checkpoint is {good}; lower --lr, or go on with --allow-nan"
        )


def _changed_blocks(state: TrainState, found: Evaluation) -> float:
    """The share of the blocks that were dropped or regrown since the end of the last epoch."""
    before, after = jax.device_get(state.last_kept), jax.device_get(found.kept)
    changed = sum(int(np.sum(before[path] != after[path])) for path in after)
    n_blocks = sum(after[path].size for path in after)
    return changed / n_blocks if n_blocks else 0.0
