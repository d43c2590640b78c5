"""Everything that a training needs, gathered and checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from draftbench.decoder.device import device_of, dtype_of, set_threads
from draftbench.decoder.runner import Runner
from draftbench.errors import ModelError, UsageError
from draftbench.measure.replay import ServedTarget
from draftbench.memory import LOGIT_BYTES, format_size, memory_left, training_bytes
from draftbench.models.compatibility import check_pair, context_length_of
from draftbench.models.drafting import Method, parsed
from draftbench.models.eagle import check_eagle, shape_of
from draftbench.models.heads import methods_of
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF, STACK, Candidate, draft_of_stack
from draftbench.run_folder.manifest import portable
from draftbench.run_folder.run import Run
from draftbench.training.draft_model import ModelInTraining
from draftbench.training.examples import Examples
from draftbench.training.fit import InTraining
from draftbench.training.head import DEPTHS, HeadInTraining
from draftbench.training.held_out import Replayer, Speeds
from draftbench.training.settings import TrainingSettings


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
    def is_head(self) -> bool:
        """Whether the draft is an EAGLE-3 head."""
        return parsed(self.candidate.draft)[0] == "eagle3"

    @cached_property
    def _target(self) -> Any:
        """The loaded target: a head reads its states, and a draft learns its distribution."""
        return self.target.load(_computed_in(self.device), self.device)

    def in_training(self) -> InTraining:
        """The original draft, ready to be trained."""
        if self.is_head:
            return HeadInTraining(self.draft, self._target)
        teacher = self._target if samples(self.examples) else None
        return ModelInTraining(self.draft, self.device, teacher, self.settings.lora)

    @cached_property
    def replayer(self) -> Replayer:
        """Replays drafts the way the run did."""
        question, context = self.run.manifest.question, context_length_of(self.target)
        assert context is not None  # or it could not have been swept
        facts = self.run.facts_of(self.candidate)
        rows = facts.least_rows if facts else 1  # with another number, sums round differently
        dtype = dtype_of(question.dtype, self.device)
        build = Build(dtype, "none", self.device, least_rows=rows)
        target: Runner | ServedTarget = ServedTarget(context)
        if self.is_head:
            held = replace(build, level=question.target_quant, least_rows=None)
            target, _ = build_runner(self.target, held, None)
        return Replayer(self.candidate, self.target, target, build, question.mode, question.ks)

    @cached_property
    def _answer(self) -> Recommendation | None:
        return recommend(self.run) if self.run.candidates else None

    @property
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
    question, specs = run.manifest.question, run.manifest.specs
    spec = specs.get(draft, draft)
    method, model = parsed(spec)
    source, target = ModelSource(model), ModelSource(question.target)
    if not (target.local or target.on_hub):
        raise UsageError(
            f"the run's target, `{question.target}`, is not here",
            hint="train where you swept: training needs the target's tokenizer, or all of it",
        )
    if spec == SELF or method not in ("draft-model", "eagle3"):
        raise UsageError(
            f"`{spec}` has no weights that can be trained here",
            hint="give a draft model, or an EAGLE-3 head as `eagle3:HEAD`",
        )
    if (fallback := draft_of_stack(spec)) is not None:
        trained = f"{STACK}{fallback.removesuffix(model)}FOLDER"
        raise UsageError(
            f"`{draft}` is prompt lookup before `{fallback}`, and only the latter has weights",
            hint=f"train it, `--draft {fallback}`, then sweep the result as `{trained}`",
        )
    if method == "eagle3":
        check_eagle(target, source)
    elif "eagle3" in methods_of(source.raw_config):
        raise UsageError(f"`{spec}` is an EAGLE-3 head", hint=f"write `--draft eagle3:{spec}`")
    else:
        _check_model(target, source)
    if settings.lora is not None:
        _check_adapters(method)
    where = device_of(device)
    if where not in ("cpu", "cuda", "cuda:0"):
        raise UsageError(
            f"--device {where}: a draft is trained on the first visible GPU",
            hint="choose another with CUDA_VISIBLE_DEVICES, and `--device cuda`",
        )
    set_threads(run.manifest.environment.threads if where == "cpu" else None)
    plan = Plan(run, examples, source, target, _in_run(run, spec, source), settings, where)
    _check_memory(plan)
    return plan


def _in_run(run: Run, spec: str, draft: ModelSource) -> Candidate:
    """The run's name for these weights, or a new one if the run does not have them."""
    names = {
        facts.fingerprint: facts.candidate.draft
        for facts in run.facts
        if facts.candidate is not None and facts.quant == "none"
    }
    return Candidate(draft=names.get(draft.fingerprint(), portable(spec)))


def _check_model(target: ModelSource, draft: ModelSource) -> None:
    check_pair(target, draft)
    if level := stored_level(draft):
        raise ModelError(
            f"`{draft.name}` is stored as {level}, which cannot be trained",
            hint="train the checkpoint that it was made from, and quantize the result",
        )
    if not keeps_ids(target, draft):
        raise ModelError(
            f"`{draft.name}` has other token ids than the target, whose ids it would be trained on",
            hint="take a draft of the target's family",
        )


def _check_adapters(method: Method) -> None:
    if method == "eagle3":
        raise UsageError(
            "--lora trains adapters of a draft model; a head is one layer, trained as a whole",
            hint="leave --lora out",
        )
    if find_spec("peft") is None:
        raise UsageError("--lora needs peft, which is not installed", hint="pip install peft")


def samples(examples: Examples) -> bool:
    """Whether the target sampled any of the responses to train on."""
    return any(r.trajectory.sampling.temperature > 0 for r in examples.train)


def _computed_in(device: str) -> torch.dtype:
    """The dtype in which a device trains and a teacher computes."""
    return torch.float32 if device == "cpu" else torch.bfloat16


def _check_memory(plan: Plan) -> None:
    """Raise a ModelError if a step does not fit in memory; name a batch that does."""
    draft, settings, itemsize = plan.draft, plan.settings, _computed_in(plan.device).itemsize
    longest = max(r.length for r in plan.examples.train)
    if plan.is_head:
        sizes = [tensor.numel() for tensor in draft.tensors().values()]
        layers = plan.target.config.get_text_config().num_hidden_layers
        parameters = trained = sum(sizes)
        shape = shape_of(draft.raw_config, layers)
        # Every depth is another pass through its only layer.
        work = DEPTHS, shape.layer.hidden_size, DEPTHS * shape.drafted
    else:
        text, model = draft.config.get_text_config(), draft.skeleton
        parameters = trained = model.num_parameters()
        if settings.lora is not None:
            last = model.get_output_embeddings()  # gets no adapter
            linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not last]
            trained = settings.lora * sum(each.in_features + each.out_features for each in linear)
            parameters += trained
        work = text.num_hidden_layers, text.hidden_size, text.vocab_size
    states, of_row = training_bytes(parameters, trained, *work, longest, itemsize)
    if plan.is_head or samples(plan.examples):
        # For a head it is loaded twice: by transformers, and as the decoder runs it.
        copies = 2 if plan.is_head else 1
        states += copies * plan.target.skeleton.num_parameters() * itemsize
        of_row += longest * plan.target.config.get_text_config().vocab_size * LOGIT_BYTES
    left = memory_left() if plan.device == "cpu" else torch.cuda.mem_get_info(plan.device)[0]
    needed = states + settings.batch * of_row
    if needed <= left:
        return
    batch, smaller = int((left - states) // of_row), "take a smaller draft, or a larger device"
    if not plan.is_head and settings.lora is None:
        smaller += "; adapters alone (`--lora 16`) need a quarter of the memory for weights"
    raise ModelError(
        f"training `{draft.name}` takes about {format_size(needed)}, and {format_size(left)} are "
        f"free: {format_size(states)} for weights, gradients and AdamW, and {format_size(of_row)} "
        f"for each of the {settings.batch} responses of a step",
        hint=f"`--batch {batch}` fits" if batch > 0 else smaller,
    )
