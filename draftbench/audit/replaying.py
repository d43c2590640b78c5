"""A run's target and one of its drafts, loaded once more, and replayed under a hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from draftbench.audit.explained import Recorded
from draftbench.decoder.device import dtype_of, set_threads
from draftbench.decoder.runner import HiddenStates, Runner
from draftbench.drafts.block.draft import BlockDraft
from draftbench.drafts.built_in import HEADS, WITH_WEIGHTS
from draftbench.drafts.heads.head import Drafted
from draftbench.drafts.kinds import DRAFT_KINDS, kind_of, parsed, parts_of
from draftbench.drafts.loading import Loading
from draftbench.errors import UsageError
from draftbench.measure.candidate import Replays
from draftbench.measure.replay import ServedTarget
from draftbench.measure.trajectories import Group
from draftbench.models.compatibility import context_length_of
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, Key
from draftbench.run_folder.run import Run

# A tensor of a checkpoint under its name → what is loaded in its place.
Change = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class ChangedSource(ModelSource):
    """A model whose tensors are changed while they are loaded."""

    original: ModelSource = field(kw_only=True)
    change: Change = field(kw_only=True)
    known: Mapping[str, Tensor] = field(kw_only=True)  # its files' tensors, read once

    @cached_property
    def raw_config(self) -> dict[str, Any]:
        return self.original.raw_config

    def tensors(self) -> dict[str, Tensor]:
        return {name: self.change(name, tensor) for name, tensor in self.known.items()}

    def load(self, dtype: torch.dtype, device: str) -> Any:
        model = super().load(dtype, device)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(self.change(name, weight))
        return model


class RememberedTarget:
    """A target that computes the states of a text once, whoever asks for them: before the layers
    that a head reads, and one to either side.
    """

    def __init__(self, runner: Runner, layers: int) -> None:
        self.runner, self.layers = runner, layers
        self._states = dict[tuple[int, ...], dict[int, Tensor]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def forget(self) -> None:
        """Free the states."""
        self._states.clear()

    def new_cache(self, capacity: int) -> int:
        return capacity

    def forward(
        self, tokens: Tensor, cache: int, *, every: bool, hidden: HiddenStates | None = None
    ) -> None:
        assert hidden is not None
        text = tuple(tokens.tolist())
        known = self._states.setdefault(text, {})
        if not known.keys() >= set(hidden.layers):
            near = {at + by for at in hidden.layers for by in (-1, 0, 1)}
            wanted = sorted(layer for layer in near if 0 <= layer <= self.layers)
            taking = HiddenStates(wanted)
            made = self.runner.new_cache(cache)
            self.runner.forward(tokens, made, every=False, hidden=taking)
            # As wide as the state of one layer each.
            joined = taking.joined()
            known |= dict(zip(wanted, joined.chunk(len(wanted), dim=1), strict=True))
        for layer in dict.fromkeys(hidden.layers):
            hidden.take(layer, known[layer])


class SeenOtherwise:
    """A target whose states reach a head changed: of each layer that it reads [n, hidden]."""

    def __init__(self, target: RememberedTarget, change: Callable[[Tensor], Tensor]) -> None:
        self.target, self.change = target, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def forward(
        self, tokens: Tensor, cache: int, *, every: bool, hidden: HiddenStates | None = None
    ) -> None:
        assert hidden is not None
        found = HiddenStates(hidden.layers)
        self.target.forward(tokens, cache, every=every, hidden=found)
        parts = found.joined().chunk(len(hidden.layers), dim=1)
        for layer, part in dict(zip(hidden.layers, parts, strict=True)).items():
            hidden.take(layer, self.change(part))


@dataclass(frozen=True)
class Replaying:
    """A draft as a run loaded it: a candidate, or the part of a stack that has weights."""

    run: Run
    candidate: Candidate
    source: ModelSource
    target: ModelSource
    build: Build
    runner: RememberedTarget | ServedTarget
    answers: Mapping[Key, Sequence[Recorded]]  # what was counted, by response

    @property
    def method(self) -> str:
        return parsed(self.candidate.draft)[0]

    @property
    def known_target(self) -> RememberedTarget:
        """The target of a draft that reads its states."""
        assert isinstance(self.runner, RememberedTarget)
        return self.runner

    @cached_property
    def draft(self) -> Any:
        """The draft as it is; what changes it works on a copy."""
        return self.loaded()

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """What the files of a head hold."""
        return self.source.tensors()

    def loaded(self, source: ModelSource | None = None, **build: Any) -> Any:
        """The draft, or other weights in its place, loaded in another form."""
        loading = Loading(
            self.candidate,
            source=source or self.source,
            build=replace(self.build, **build),
            target=self.target,
            runner=self.runner,  # type: ignore[arg-type]
            mode=self.run.manifest.question.mode,
            engine=self.run.manifest.question.engine,
        )
        method, _ = parsed(self.candidate.draft)
        draft, _ = WITH_WEIGHTS[method].load(loading)
        return draft

    def changed(self, change: Change) -> Any:
        """The draft with changed tensors."""
        spec, trust = self.source.spec, self.source.trust
        known = self.tensors if self.method in HEADS else {}
        return self.loaded(
            ChangedSource(spec, trust, original=self.source, change=change, known=known)
        )

    def with_head(self, **fields: Any) -> Any:
        """The draft with some fields of its head changed."""
        head = copy(self.draft.head)
        for name, value in fields.items():
            setattr(head, name, value)
        return type(self.draft)(head, self.draft.target)

    def with_states(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The draft on a target whose states reach it changed."""
        return type(self.draft)(self.draft.head, SeenOtherwise(self.known_target, change))

    def replay(self, draft: Any, group: Group, lengths: Collection[int], *, stops: bool) -> Replays:
        """What a draft would have proposed in rounds of some lengths."""
        window = max(self.run.manifest.question.ks)
        if isinstance(draft, BlockDraft):
            draft = of_lengths(draft, lengths)
        with torch.inference_mode():
            found: Replays = draft.replay(self.candidate, group, window, stops=stops)
        return found


def of_lengths(draft: BlockDraft, wanted: Collection[int]) -> BlockDraft:
    """A block drafter that computes blocks of some numbers of tokens alone; what it says of others
    is not to be read.
    """
    head, every = copy(draft.head), draft.head.along

    def along(
        text: Tensor, states: Tensor, first: int, lengths: Sequence[int], *, stops: bool = False
    ) -> dict[int, Drafted]:
        last = lengths[-1]
        some = [k for k in lengths if k in wanted or (k == last and last < max(wanted))]
        found = every(text, states, first, some or [last], stops=stops)
        any_other = [*found.values()][-1]
        return {k: found.get(k, any_other) for k in lengths}

    head.along = along  # type: ignore[method-assign, assignment]
    return BlockDraft(head, draft.target)


def replaying(
    run: Run, candidate: Candidate, answers: Mapping[Key, Sequence[Recorded]] | None = None
) -> Replaying:
    """Load a run's target, as far as a draft of this kind needs it.

    Args:
        answers: what was counted of its rounds, for what depends on them.

    Raises:
        UsageError: the models are not here, or the kind cannot be replayed again.
        ModelError: they cannot be loaded.
    """
    candidate = (candidate, *parts_of(candidate))[-1]
    question, kind = run.manifest.question, kind_of(candidate.draft)
    spec = run.manifest.specs.get(candidate.draft, candidate.draft)
    _, model = parsed(spec)
    source, target = ModelSource(model), ModelSource(question.target)
    for what, each in (("target", target), ("draft", source)):
        if not (each.local or each.on_hub):
            raise UsageError(
                f"the run's {what}, `{each.spec}`, is not here",
                hint="audit where you swept: the hypotheses are replayed with its models",
            )
    assert kind is DRAFT_KINDS[parsed(spec)[0]]
    set_threads(run.manifest.environment.threads if question.device == "cpu" else None)
    dtype = dtype_of(question.dtype, question.device)
    build = Build(dtype, candidate.quant, question.device, simulate=True)
    runner: RememberedTarget | ServedTarget
    if kind.reads_states:
        level = "none" if question.engine else question.target_quant
        known, _ = build_runner(target, replace(build, level=level), None)
        runner = RememberedTarget(known, target.config.get_text_config().num_hidden_layers)
    else:
        context = context_length_of(target)
        assert context is not None  # or it could not have been swept
        runner = ServedTarget(context)
    return Replaying(run, candidate, source, target, build, runner, answers or {})
