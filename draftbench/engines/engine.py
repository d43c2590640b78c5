"""The record of a serving engine: all that draftbench knows of it. A file for each fills it in.

Its functions are given a server to start (`ServerStart`) or what to serve (`ServePlan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftbench.drafts.kind import Method
from draftbench.drafts.speculation import Speculation
from draftbench.drafts.stopping import STOP_RULES
from draftbench.engines.pair_rules import EngineAnswer, PairFacts, PairRule, findings, size_findings
from draftbench.engines.server import Server
from draftbench.errors import UsageError
from draftbench.hub import short_name, split_revision
from draftbench.memory import level_of
from draftbench.records import (
    BUILT_IN_LOOKUP,
    Candidate,
    DraftingMode,
    LookupRule,
    Sampling,
    StopKind,
)

# Tokens a round where nothing says how many pay.
USUAL_K = 3
Version = tuple[int, int]  # its first two numbers; of llama.cpp the build, and 0
# First and last number of concurrent requests, and the draft length between; 0: no speculation.
Schedule = tuple[tuple[int, int, int], ...]
KEEPS_DRAFTING = "it keeps drafting beyond the draft's context of {} tokens, up to the target's {}"


@dataclass(frozen=True)
class ServerStart:
    """A server to be started; without `speculation` it is the baseline."""

    engine: str
    target: str
    speculation: Speculation | None = None
    args: str = ""  # the user's flags, as a shell would read them
    command: str | None = None  # the user's, with placeholders; None: the engine's usual one
    stop_command: str | None = None  # ends what lives outside the process group
    concurrency: int = 1  # requests that it must at least answer at once
    # Requests that it may answer at once; None: the engine's default.
    max_concurrency: int | None = None
    context_length: int | None = None  # tokens of prompt and response; None: the model's
    threads: int | None = None  # of the server, on a CPU; None: as many as it takes
    ready_timeout: float = 900.0  # seconds until it answers
    version: str | None = None  # that servers of this run named; None: the first is yet to start

    def limits(self, context: str, concurrency: str, usual: int) -> list[str]:
        """An engine's flags, by their names, for the context and the requests at once, where it
        would not take as many by itself: it takes the `usual` number.
        """
        words = [] if self.context_length is None else [context, str(self.context_length)]
        if self.max_concurrency is not None or self.concurrency > usual:
            words += [concurrency, str(self.concurrency)]
        return words


@dataclass(frozen=True, kw_only=True)
class Starting:
    """How draftbench starts an engine's server, and what it makes of its log."""

    command: str  # that starts it, unless the user names another
    flags: Callable[[ServerStart], list[str]]
    reserved_flags: tuple[str, ...]  # draftbench's, so not the user's
    seconds: float = 30.0  # until it answers, without reading the weights, on two cores
    sampling_mode: DraftingMode | None = None  # the --mode beside greedy that it is measured in
    takes_dtype: bool = False  # whether it is started with --dtype, in which drafts are replayed
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that are set
    thread_environment: Mapping[str, str] = field(default_factory=dict)  # set where threads are
    read_variables: tuple[str, ...] = ()  # the user's, by which it drafts otherwise
    log_hints: Mapping[str, str] = field(default_factory=dict)  # what its log says → what helps


@dataclass(frozen=True)
class ServePlan:
    """What to serve."""

    target: str  # without its revision
    target_quant: str
    speculation: Speculation  # the draft by the name that the engine will find
    sampled: bool  # whether any request is above temperature 0, where the drafting mode matters
    vocabularies: tuple[int, int] | None  # sizes of the target's and a draft model's
    on_gpu: bool
    other_ids: bool = False  # whether the draft has other ids than the target, or lacks tokens
    misread: Mapping[str, str] = field(default_factory=dict)  # what engines make of a head
    target_revision: str | None = None
    sampling: Sampling = field(default_factory=Sampling)  # of most requests
    mixed: bool = False  # whether other requests have another sampling
    limit: int = 128  # longest response in tokens
    contexts: tuple[int, int] | None = None  # lengths of the target's and the draft's
    concurrency: int = 1  # largest number of concurrent requests that was measured
    schedule: Schedule = ()  # draft lengths by load; empty if one length serves all
    open_loads: tuple[str, ...] = ()  # sentences on loads at which the run is inconclusive
    differences: tuple[str, ...] = ()  # from what the run recommends
    doubts: tuple[str, ...] = ()  # why not to trust the answer, or not for whole requests
    # With --synthetic, the share of rounds that accept their first 1, 2, … draft tokens.
    survival: tuple[float, ...] = ()
    engine: str | None = None  # the engine that measured; None: the built-in decoder
    costs_given: bool = False  # whether its times came from --costs

    @property
    def draft(self) -> str | None:
        """The draft model, without its revision; None for a method that needs none."""
        return self.speculation.model and split_revision(self.speculation.model)[0]

    @property
    def draft_revision(self) -> str | None:
        return self.speculation.model and split_revision(self.speculation.model)[1]

    def speculation_at(self, k: int) -> Speculation:
        """How to draft k tokens instead."""
        return replace(self.speculation, k=k, translated=self.translated)

    @property
    def longest(self) -> int:
        """The most tokens that are drafted at any load."""
        return max((k for _, _, k in self.schedule), default=self.speculation.k)

    @property
    def translated(self) -> bool:
        """Whether tokens have to be translated between target and draft."""
        target, draft = self.vocabularies or (0, 0)
        return self.other_ids or target != draft


@dataclass(frozen=True)
class Written:
    """The configuration of an engine."""

    text: str
    mode: DraftingMode | None  # in which the engine will draft; None for a method without modes
    scheduled: bool = False  # whether the text has the draft lengths by load
    command: str | None = None  # starts the engine with the text in FILE; None: the text does
    to_do: Sequence[str] = ()
    differences: Sequence[str] = ()  # from what the run measured


@dataclass(frozen=True)
class Source:
    """Where a rule was read, and in which version it was tried."""

    rule: str
    read: str  # version and file
    tried: str  # version; empty: none that has it could be had


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A serving engine. What is left out is unknown, or as the built-in decoder does it."""

    key: str  # as `--engine` names it
    name: str
    sources: tuple[Source, ...]

    # How it drafts
    methods: tuple[Method, ...]  # that it is known to have
    option: Callable[[Speculation], str]  # what to pass to it so that it drafts like this
    # What to pass to it so that it drafts k tokens with the DSpark drafter that the target carries.
    own_dspark: Callable[[int], str] | None = None  # None: it is not known to
    stacks: bool = False  # whether it can try prompt lookup before another draft
    # The methods whose draft it stops where it is unsure, by the rules of `stop_kinds`.
    stops: tuple[Method, ...] = ()
    lookup: LookupRule = BUILT_IN_LOOKUP  # how its prompt lookup works
    # Another rule: on a CPU, or where this variable of its environment is 0.
    older_lookup: tuple[str, LookupRule] | None = None
    quantizes: Mapping[str, str] = field(default_factory=dict)  # level → its name, while it loads
    rounds_activations: bool = False  # to 8 bits, whatever the type of its weights

    # Which models it takes
    rules: tuple[PairRule, ...]  # for a pair; the first whose finding is not empty applies
    own_findings: Callable[[PairFacts], Mapping[str, str]] = lambda pair: {}  # for these rules
    most_rows_apart: int = 0  # vocabularies may differ by as many
    special: str = ""  # what else it needs for a pair that it takes only with an option
    refused: str = ""  # what it does with a pair that it refuses, if it starts all the same
    # What it does if the draft's context ends at {} tokens, the target's at {}.
    short_context: str = (
        "try a request beyond the draft's context of {} tokens, which was not tested (target: {})"
    )
    # What makes the quantized files that it loads, and those of heads; empty: it loads checkpoints.
    converter: str = ""
    head_converter: str = ""
    reads_gguf: bool = False  # whether it is known to load .gguf files
    # How it uses a head of this method, with this config.json, which reads these layers of the
    # target, differently from its training; empty: as it was trained. Last, the layers that engines
    # take where none are named.
    misreads: Callable[[Method, Mapping[str, Any], list[int], list[int]], str] = lambda *_: ""
    # What it takes flags for if the config.json of a head in the speculators format lacks them.
    head_defaults: Mapping[str, bool] = field(default_factory=dict)

    # Its servers
    start: Starting | None = None  # None: draftbench does not start it
    server: type[Server] | None = None  # how one is asked; None: it has none, or was not tried
    default_max_concurrency: int = 0  # requests that it answers at once; 0: unknown
    # What it calls that number in its settings, and as a flag.
    max_concurrency_names: tuple[str, str] = ("", "")
    shares_context: bool = False  # whether it divides its cache among them when it starts
    drafting_settings: tuple[str, ...] = ()  # its settings that follow from how it drafts
    number_types: tuple[str, ...] = ()  # its settings that say in which type it holds the target
    metrics_flag: str = ""  # the program, and its flag that switches counters on
    log_p_flag: str = ""  # with which it returns the log-probabilities of its tokens

    # What is exported for it
    form: str  # what the configuration is written for
    write: Callable[[ServePlan, Version], Written]
    pins: tuple[str, ...] = ("target", "draft")  # the models whose revision it names
    # Whether it accepts drafts at given rates, by position or only at their mean.
    synthetic: Literal["", "by position", "at their mean"] = ""
    # How it samples if a request does not say; None: the configuration says, or it is unknown.
    sampling: str | None = None

    @property
    def stop_kinds(self) -> tuple[StopKind, ...]:
        """The kinds of rules by which it stops a draft, as `drafts.stopping` says."""
        return tuple(kind for kind, rule in STOP_RULES.items() if rule.engine == self.key)

    def follows(self, speculation: Speculation) -> bool:
        """Whether it stops such a draft as planned."""
        stop = speculation.stop
        return stop is None or (stop.kind in self.stop_kinds and speculation.method in self.stops)

    def answer(self, pair: PairFacts) -> EngineAnswer:
        """Whether it takes a pair."""
        words = pair.vocabulary
        found = {
            **size_findings(words.target_rows, words.draft_rows, self.most_rows_apart),
            **findings(pair),
            **self.own_findings(pair),
        }
        finding, standing, template = next(rule for rule in self.rules if found[rule[0]])
        option, reason = None, template.format(found[finding])
        if standing != "refuses":
            special, model = standing == "with an option", self.file_of(pair.draft)
            how = Speculation("draft-model", model, USUAL_K, translated=special)
            option = self.option(how)
            if special:
                option += self.special.format(pair.target_tokenizer.ids.get("bos_token"))
            if cut := self.shorter_context(pair.target_context, pair.draft_context):
                reason += f"; {cut}"
        elif self.refused:
            reason += f"; {self.refused}"
        return EngineAnswer(self.name, standing, reason, option)

    def file_of(self, name: str, quant: str = "none", side: str = "draft") -> str:
        """What it loads a model from: where it reads only .gguf files, the name that one made of
        the model would have.
        """
        if not self.converter or name.endswith(".gguf"):
            return name
        stem = short_name(name).strip(".") or side
        return f"{stem}-{level_of(quant).gguf}.gguf"

    def shorter_context(self, target: int | None, draft: int | None) -> str | None:
        """What it does if the draft's context is shorter than the target's; None if not."""
        if draft is None or (target is not None and draft >= target):
            return None
        return self.short_context.format(draft, "no limit" if target is None else target)

    def refusal(self, target: int, draft: int, *, translated: bool) -> str | None:
        """Why it refuses vocabularies of these sizes, or some of whose tokens must be
        `translated`; None if it accepts them.
        """
        other = "some tokens have other ids in the draft, or are not in it" if translated else ""
        found = size_findings(target, draft, self.most_rows_apart)
        found |= {"other_vocabulary": other, "other_regular_word": other}
        for finding, standing, reason in self.rules:
            if standing == "refuses" and found.get(finding):
                return reason.format(found[finding])
        return None

    def minimum_k(self, draft: str, shortest: int) -> int:
        """The smallest k at which it drafts: some engines look up nothing shorter than their
        n-gram, of which the `shortest` length is given.
        """
        return shortest if self.lookup.one_size and Candidate(draft=draft).looks_up else 1

    def too_short(self, fewest: int) -> str:
        """Why it drafts nothing below its `minimum_k`."""
        return (
            f"{self.name}'s prompt lookup proposes no fewer tokens than its n-gram has ({fewest})"
        )

    def lookup_in(self, started: Iterable[Mapping[str, str]], *, on_cpu: bool) -> LookupRule:
        """How the prompt lookup of started servers works, by their settings; if none was started,
        as usual.
        """
        if self.older_lookup is not None:
            variable, rule = self.older_lookup
            stated = [settings.get(variable) for settings in started]
            if "0" in stated or (stated and on_cpu):
                return rule
        return self.lookup

    def other_lookup(self, plan: ServePlan, how: str) -> list[str]:
        """What to do where it looks up prompts otherwise than the run, unless that ran on it."""
        differs = plan.engine != self.key
        return [f"{self.name} {how}: measure acceptance there"] if differs else []

    def too_old(self, oldest: str, feature: str) -> UsageError:
        """The error for a version that cannot draft as planned."""
        return UsageError(
            f"{self.name} before {oldest} has no {feature}",
            hint=f"use {self.name} {oldest} or newer",
        )
