"""What a training needs, gathered and checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from draftbench.decoder.device import device_of, dtype_of, set_threads
from draftbench.errors import ModelError, UsageError
from draftbench.measure.replay import ServedTarget
from draftbench.memory import format_size, memory_left, training_bytes
from draftbench.models.compatibility import check_pair, context_length_of
from draftbench.models.drafting import parsed
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import Build
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate
from draftbench.run_folder.manifest import portable
from draftbench.run_folder.run import Run
from draftbench.training.draft_model import ModelInTraining
from draftbench.training.examples import Examples
from draftbench.training.fit import InTraining
from draftbench.training.held_out import Acceptance, Replayer
from draftbench.training.settings import TrainingSettings
from draftbench.training.speed import Speeds


@dataclass(frozen=True)
class Plan:
    """A training that passed every check that needs no weights."""

    run: Run
    examples: Examples
    draft: ModelSource
    target: ModelSource
    replayer: Replayer
    settings: TrainingSettings
    device: str

    @cached_property
    def _teacher(self) -> Any:
        """The target, where it samples: the run keeps what it drew, not what it might have."""
        if not samples(self.examples):
            return None
        return self.target.load(_computed_in(self.device), self.device)

    def in_training(self) -> InTraining:
        """The original, ready to be trained."""
        return ModelInTraining(self.draft, self.device, self._teacher)

    @cached_property
    def original(self) -> Acceptance:
        """The original on the responses that say when to stop."""
        return self.replayer.along(self.draft.spec, self.examples.stop)

    @cached_property
    def speeds(self) -> Speeds | None:
        """How fast the run found the draft; None where it did not time it."""
        return Speeds.of(recommend(self.run), self.replayer.candidate)


def plan_training(
    run: Run, examples: Examples, draft: str, settings: TrainingSettings, device: str | None
) -> Plan:
    """Check a draft and the device.

    Args:
        draft: a name that the run gave a draft, or a model.

    Raises:
        UsageError, ModelError: the draft cannot be trained here.
    """
    question, specs = run.manifest.question, run.manifest.specs
    spec = specs.get(draft, draft)
    if parsed(spec)[0] != "draft-model":
        raise UsageError(
            f"`{spec}` cannot be trained here: it is no draft model",
            hint="give a draft model: a folder, a Hugging Face id, or its name in the run",
        )
    source, target = ModelSource(spec), ModelSource(question.target)
    names = [name for name, of in specs.items() if of == portable(spec)]
    where = device_of(device)
    set_threads(run.manifest.environment.threads if where == "cpu" else None)
    check_pair(target, source)
    if level := stored_level(source):
        raise ModelError(
            f"`{source.name}` is stored as {level}, which cannot be trained",
            hint="train the checkpoint that it was made of, and quantize what comes out",
        )
    if not keeps_ids(target, source):
        raise ModelError(
            f"`{source.name}` has other token ids than the target, and is trained on the target's",
            hint="take a draft of the target's family",
        )
    _check_memory(source, target, examples, settings, where)
    context = context_length_of(target)
    assert context is not None  # or it could not have been swept
    candidate = Candidate(draft=next(iter(names), source.name))
    build = Build(dtype_of(question.dtype, where), "none", where)
    replayer = Replayer(candidate, target, ServedTarget(context), build, question.mode, question.ks)
    return Plan(run, examples, source, target, replayer, settings, where)


def samples(examples: Examples) -> bool:
    """Whether the target drew any of the responses to train on."""
    return any(r.trajectory.sampling.temperature > 0 for r in examples.train)


def _computed_in(device: str) -> torch.dtype:
    """The numbers in which a device trains and a teacher computes."""
    return torch.float32 if device == "cpu" else torch.bfloat16


def _check_memory(
    draft: ModelSource,
    target: ModelSource,
    examples: Examples,
    settings: TrainingSettings,
    device: str,
) -> None:
    """Raise a ModelError where a step has no room, with the batch that has."""
    text, itemsize = draft.config.get_text_config(), _computed_in(device).itemsize
    longest = max(r.length for r in examples.train)
    states, of_row = training_bytes(text, draft.skeleton.num_parameters(), longest, itemsize)
    if samples(examples):
        states += target.skeleton.num_parameters() * itemsize
        of_row += longest * target.config.get_text_config().vocab_size * 4
    left = memory_left() if device == "cpu" else torch.cuda.mem_get_info(device)[0]
    needed = states + settings.batch * of_row
    if needed <= left:
        return
    batch = int((left - states) // of_row)
    raise ModelError(
        f"training `{draft.name}` takes about {format_size(needed)}, and {format_size(left)} are "
        f"free: {format_size(states)} for weights, gradients and AdamW, and {format_size(of_row)} "
        f"for each of {settings.batch} responses a step",
        hint=f"`--batch {batch}` fits" if batch > 0 else "take a smaller draft, or a larger device",
    )
