"""Everything that a training needs, gathered and checked before anything is computed, and how its
draft is replayed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from draftbench.decoder.device import device_of, dtype_of, set_threads
from draftbench.decoder.runner import Runner
from draftbench.drafts.built_in import WITH_WEIGHTS
from draftbench.drafts.eagle3 import training as eagle3_training
from draftbench.drafts.kind import Method
from draftbench.drafts.kinds import DRAFT_KINDS, parsed, with_weights
from draftbench.drafts.laws import AnyReplay
from draftbench.drafts.loading import Loading
from draftbench.drafts.model import training as model_training
from draftbench.errors import ModelError, UsageError
from draftbench.measure.replay import ServedTarget
from draftbench.measure.trajectories import GROUP, ScoredResponse
from draftbench.memory import LOGIT_BYTES, format_size, memory_left, training_bytes
from draftbench.models.compatibility import context_length_of
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF, Candidate
from draftbench.run_folder.manifest import portable
from draftbench.run_folder.run import Run
from draftbench.training.examples import Examples
from draftbench.training.fit import writing
from draftbench.training.held_out import Acceptance, Speeds
from draftbench.training.settings import TrainingSettings
from draftbench.training.trainable import InTraining, Trainable, TrainingSize

# Those of DRAFT_KINDS that are `trainable`.
TRAINABLE: dict[Method, Trainable] = {"draft-model": model_training, "eagle3": eagle3_training}


@dataclass(frozen=True)
class Plan:
    """A training that passed every check that needs no weights."""

    run: Run
    examples: Examples
    draft: ModelSource
    target: ModelSource
    candidate: Candidate
    settings: TrainingSettings
    device: str

    @property
    def method(self) -> Method:
        """The kind of the draft, which the run may have behind prompt lookup alone."""
        return parsed(self.candidate.draft)[0]

    @cached_property
    def size(self) -> TrainingSize:
        """How large the training is."""
        lora = self.settings.lora
        return TRAINABLE[self.method].size_of(self.draft, self.target, lora, samples=self.samples)

    @property
    def dtype(self) -> torch.dtype:
        """In which the device trains and a teacher computes."""
        return torch.float32 if self.device == "cpu" else torch.bfloat16

    @property
    def samples(self) -> bool:
        """Whether the target sampled any of the responses to train on."""
        return any(r.trajectory.sampling.temperature > 0 for r in self.examples.train)

    @cached_property
    def _target(self) -> Any:
        """The loaded target: a head reads its states, and a draft learns its distribution."""
        return self.target.load(self.dtype, self.device)

    def in_training(self) -> InTraining:
        """The original draft, ready to be trained."""
        target = self._target if self.size.targets else None
        return TRAINABLE[self.method].begin(self.draft, target, self.device, self.settings.lora)

    @cached_property
    def _build(self) -> Build:
        """How a sweep loads the draft."""
        dtype = dtype_of(self.run.manifest.question.dtype, self.device)
        return Build(dtype, "none", self.device)

    @cached_property
    def _runner(self) -> Runner:
        """The target as a sweep runs it: a head reads its states."""
        level = self.run.manifest.question.target_quant
        build = replace(self._build, level=level)
        runner, _ = build_runner(self.target, build, None)
        return runner

    def along(self, checkpoint: Path | str, responses: Sequence[ScoredResponse]) -> Acceptance:
        """Replay the draft in a folder along some responses, the way the run did."""
        question, context = self.run.manifest.question, context_length_of(self.target)
        assert context is not None  # or it could not have been swept
        kind = DRAFT_KINDS[self.method]
        loading = Loading(
            self.candidate,
            source=ModelSource(str(checkpoint)),
            build=self._build,
            target=self.target,
            runner=self._runner if kind.reads_states else ServedTarget(context),
            mode=question.mode,
        )
        draft, _ = WITH_WEIGHTS[kind.method].load(loading)
        begun, window, made = time.monotonic(), max(question.ks), list[AnyReplay]()
        for at in range(0, len(responses), GROUP):
            some = responses[at : at + GROUP]
            made += draft.replay(self.candidate, some, window, stops=False)
        pairs = list(zip([each.trajectory for each in responses], made, strict=True))
        return Acceptance(pairs, time.monotonic() - begun)

    def now(
        self, draft: InTraining, folder: Path, responses: Sequence[ScoredResponse]
    ) -> Acceptance:
        """Replay a draft in training along some responses, from a temporary checkpoint."""
        with writing(folder.parent):
            draft.save(folder)
        found = self.along(folder, responses)
        shutil.rmtree(folder)
        return found

    @cached_property
    def _answer(self) -> Recommendation | None:
        return recommend(self.run) if self.run.candidates else None

    @cached_property
    def speeds(self) -> Speeds | None:
        """How fast the draft was in the run; None if the run did not time it."""
        return Speeds.of(self._answer, self.candidate) if self._answer else None

    @property
    def most(self) -> float:
        """The highest possible rate. For a greedy draft of a target that samples it is the rate of
        the target as its own draft.
        """
        ceiling = self._answer.ceiling_alpha if self._answer else None
        return 1.0 if ceiling is None else ceiling


def plan_training(
    run: Run, examples: Examples, draft: str, settings: TrainingSettings, device: str | None
) -> Plan:
    """Check the draft, the device and the memory.

    Args:
        draft: one of the run's names of drafts, or an entry of `--drafts`.

    Raises:
        UsageError, ModelError: the draft cannot be trained here.
    """
    question = run.manifest.question
    spec = run.manifest.specs.get(draft, draft)
    method, model = parsed(spec)
    source, target = ModelSource(model), ModelSource(question.target)
    if not (target.local or target.on_hub):
        raise UsageError(
            f"the run's target, `{question.target}`, is not here",
            hint="train where you swept: training needs the target's tokenizer, or all of it",
        )
    if spec == SELF or not DRAFT_KINDS[method].trainable:
        raise UsageError(
            f"`{spec}` has no weights that can be trained here",
            hint="give a draft model, or an EAGLE-3 head as `eagle3:HEAD`",
        )
    if (last := with_weights(spec)) != spec:
        trained = f"{spec.removesuffix(model)}FOLDER"
        raise UsageError(
            f"`{draft}` is prompt lookup before `{last}`, and only the latter has weights",
            hint=f"train it, `--draft {last}`, then sweep the result as `{trained}`",
        )
    TRAINABLE[method].check(source, target, settings.lora)
    if settings.lora is not None and find_spec("peft") is None:
        raise UsageError("--lora needs peft, which is not installed", hint="pip install peft")
    where = device_of(device)
    if where not in ("cpu", "cuda", "cuda:0"):
        raise UsageError(
            f"--device {where}: a draft is trained on the first visible GPU",
            hint="choose another with CUDA_VISIBLE_DEVICES, and `--device cuda`",
        )
    set_threads(run.manifest.environment.threads if where == "cpu" else None)
    # The run's name for these weights, or a new one if the run does not have them.
    names = {
        facts.fingerprint: facts.candidate.draft
        for facts in run.facts
        if facts.candidate is not None and facts.quant == "none"
    }
    candidate = Candidate(draft=names.get(source.fingerprint(), portable(spec)))
    plan = Plan(run, examples, source, target, candidate, settings, where)
    _check_memory(plan)
    return plan


def _check_memory(plan: Plan) -> None:
    """Raise a ModelError if a step does not fit in memory; name a batch that does."""
    draft, batch, itemsize, size = plan.draft, plan.settings.batch, plan.dtype.itemsize, plan.size
    longest = max(r.length for r in plan.examples.train)
    states, of_row = training_bytes(size.parameters, size.trained, *size.work, longest, itemsize)
    if size.targets:
        states += size.targets * plan.target.skeleton.num_parameters() * itemsize
        of_row += longest * plan.target.config.get_text_config().vocab_size * LOGIT_BYTES
    left = memory_left() if plan.device == "cpu" else torch.cuda.mem_get_info(plan.device)[0]
    if (needed := states + batch * of_row) > left:
        fits = int((left - states) // of_row)
        raise ModelError(
            f"training `{draft.name}` needs about {format_size(needed)} ({format_size(states)} for "
            f"weights, gradients and AdamW, {format_size(of_row)} for each of {batch} responses in "
            f"a step), and {format_size(left)} are free",
            hint=f"`--batch {fits}` fits" if fits > 0 else size.smaller,
        )
