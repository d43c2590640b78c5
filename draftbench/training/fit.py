"""Trains a draft with transformers' Trainer: AdamW after a warm-up. A whole training (`fit`) stops
when acceptance on held-out responses stops growing, and resumes from its last checkpoint. For a
forecast, only the first steps are taken (`begin`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME

from draftbench.measure.trajectories import ScoredResponse
from draftbench.run_folder.append_log import cannot_write
from draftbench.training.settings import TrainingSettings
from draftbench.training.trainable import Batch, InTraining

# Acceptance is looked at twice an epoch; after this many looks without a better one, training ends.
LOOKS_AN_EPOCH, PATIENCE = 2, 3
# The share of all steps in which the learning rate rises from 0; afterwards it falls to 0.
WARM_UP = 0.1


class Progress(Protocol):
    """Shows the progress of a training."""

    def stage(self, what: str, total: int) -> None: ...

    def advance(self, units: int = 1) -> None: ...

    def note(self, text: str, *, always: bool = False) -> None: ...


def warm_up_of(steps: int) -> int:
    """The warm-up steps of this many."""
    return round(WARM_UP * steps)


def fit(
    draft: InTraining,
    responses: Sequence[ScoredResponse],
    settings: TrainingSettings,
    checkpoints: Path,
    progress: Progress,
    look: Callable[[], float],
) -> list[tuple[int, float]]:
    """Train a draft in place on some responses.

    Args:
        checkpoints: the folder of the trainer's checkpoints; training resumes from the last one.
        look: gives the draft's acceptance now; the weights with the highest are kept.

    Returns:
        The acceptance at each look, after how many steps.
    """
    steps = settings.steps(len(responses))
    every = max(1, round(steps / settings.epochs / LOOKS_AN_EPOCH))
    trainer = _Trainer(
        *(draft, responses, settings, checkpoints, progress, "training", look),
        num_train_epochs=settings.epochs,
        lr_scheduler_type="linear",
        warmup_steps=warm_up_of(steps),
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="rate",
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,  # how many looks saw nothing better
    )
    trainer.add_callback(EarlyStoppingCallback(PATIENCE))
    for checkpoint in checkpoints.glob("checkpoint-*"):
        # The state is written last: without it the checkpoint was cut off.
        if not (checkpoint / TRAINER_STATE_NAME).exists():
            shutil.rmtree(checkpoint)
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")) or None)
    history = trainer.state.log_history
    return [(row["step"], row["eval_rate"]) for row in history if "eval_rate" in row]


def begin(
    draft: InTraining,
    responses: Sequence[ScoredResponse],
    settings: TrainingSettings,
    folder: Path,
    progress: Progress,
    looks: Sequence[int],
    look: Callable[[], float],
) -> None:
    """Train a draft in place up to the last look, at the largest learning rate of a whole training.

    Args:
        folder: for the trainer, which leaves nothing there.
        looks: after which steps to look, ascending.
        look: gives the draft's acceptance now.
    """
    trainer = _Trainer(
        *(draft, responses, settings, folder, progress, "forecast", look, looks),
        max_steps=looks[-1],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=warm_up_of(looks[-1]),
        save_strategy="no",
    )
    trainer.train()


class _Trainer(Trainer):  # type: ignore[misc]
    """A trainer that evaluates the draft by its acceptance."""

    def __init__(
        self,
        draft: InTraining,
        responses: Sequence[ScoredResponse],
        settings: TrainingSettings,
        folder: Path,
        progress: Progress,
        what: str,
        look: Callable[[], float],
        looks: Sequence[int] = (),
        **more: Any,
    ) -> None:
        self.draft, self.look, self.progress, self.what = draft, look, progress, what
        on_cpu = next(draft.module.parameters()).device.type == "cpu"
        arguments = TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=settings.batch,
            learning_rate=settings.rate_for(draft.width),
            seed=settings.seed,
            use_cpu=on_cpu,
            bf16=not on_cpu,
            dataloader_pin_memory=not on_cpu,
            remove_unused_columns=False,
            disable_tqdm=True,
            logging_strategy="no",
            report_to="none",
            **more,
        )
        super().__init__(
            draft.module,
            arguments,
            data_collator=draft.batch,
            train_dataset=responses,
            eval_dataset=(),
            callbacks=[_Shown(progress, what, looks)],
        )
        self.remove_callback(PrinterCallback)

    def compute_loss(self, model: nn.Module, inputs: Batch, *_: Any, **__: Any) -> Tensor:
        return self.draft.loss(inputs)

    def _save_checkpoint(self, *given: Any, **more: Any) -> None:
        with writing(Path(self.args.output_dir)):
            super()._save_checkpoint(*given, **more)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        seen = {"eval_rate": self.look()}
        self.log(seen)
        # This is where early stopping is decided.
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics=seen)
        left = self.state.max_steps - self.state.global_step
        self.progress.stage(f"{self.what}, {seen['eval_rate']:.1%} accepted", left)
        return seen


class _Shown(TrainerCallback):  # type: ignore[misc]
    """Reports progress, and makes the trainer evaluate after given steps."""

    def __init__(self, progress: Progress, what: str, looks: Sequence[int]) -> None:
        self.progress, self.what, self.looks = progress, what, looks

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.stage(self.what, state.max_steps - state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.advance()
        control.should_evaluate |= state.global_step in self.looks


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what PyTorch, safetensors and the system raise while a folder is written into one error.

    Raises:
        RunFolderError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error) from error
    except (RuntimeError, SafetensorError) as error:  # PyTorch, safetensors
        refused = OSError(None, str(error).partition("\n")[0])
        raise cannot_write(folder, refused) from refused
