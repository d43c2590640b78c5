"""The records: draftbench's vocabulary as frozen, strictly typed values.

A `Request` is what a user asked the target. Every `Observation` is a raw fact that a sweep
measured, written once and never changed. Figures (α, τ, speed-up) are computed from observations
and are not records. Times are seconds, sizes bytes or tokens; `None` means unknown.

They are msgspec structs, because a run folder is read back strictly: a wrong type or an unknown
field is an error that names the place.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence, Sized
from enum import StrEnum
from hashlib import sha256
from itertools import accumulate, pairwise
from struct import pack
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta


class DraftingMode(StrEnum):
    """How the draft proposes; figures of different modes are never compared unlabelled."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    SAMPLED_TEMPERATURE_ONLY = "sampled-temperature-only"


# The drafts without a model: prompt lookup, and the target as its own draft, which is the control.
LOOKUP, SELF = "ngram", "self"
# How a stack is named, before its draft: this drafts where prompt lookup finds nothing.
STACK = f"{LOOKUP}+"


def draft_of_stack(name: str) -> str | None:
    """What drafts in a stack of this name where prompt lookup finds nothing; None: no stack."""
    return name.removeprefix(STACK) if name.startswith(STACK) else None


class NGramSizes(NamedTuple):
    """Tokens of the n-grams that prompt lookup tries, the longest first."""

    longest: int
    shortest: int


NGRAMS = NGramSizes(4, 2)


class LookupRule(NamedTuple):
    """Which earlier occurrence of a text's ending prompt lookup copies from, and how much."""

    first: bool = False  # whether it takes the first of several occurrences instead of the last
    unseen: int = 0  # newest tokens in which it neither looks nor copies
    begin: int = 0  # the first token at which an occurrence may start
    # Whether it looks for n-grams of the shortest size alone, and proposes nothing shorter.
    one_size: bool = False
    fills: bool = False  # whether the text's last token fills what is missing of k


BUILT_IN_LOOKUP = LookupRule()  # what followed the last occurrence of the longest n-gram

# Two logits that differ by less are a near tie: computing them in another order may swap them.
NEAR_TIE_MARGIN = {"bfloat16": 0.5, "float16": 0.06, "float32": 0.001}

# Far beyond anything that is counted, so that sums stay finite.
MOST = 10**15
Count = Annotated[int, Meta(ge=0, le=MOST)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Amount = Annotated[float, Meta(ge=0, le=MOST)]
AboveZero = Annotated[float, Meta(gt=0, le=MOST)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Finish = Annotated[str, Meta(pattern="^(stop|length)$")]
Origin = Annotated[str, Meta(pattern="^(target|log|engine)$")]


# Records hold no cycles, so the garbage collector need not walk through ten thousands of them.
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A frozen value, compared by its fields."""


def to_json(value: object) -> str:
    """A record, or lists and dicts of records, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class Sampling(Record, frozen=True):
    """How the target draws its next token: temperature, top-k, top-p and min-p are applied in this
    order; temperature 0 is the argmax.
    """

    temperature: float = 0.0
    top_k: int | None = None  # None: off
    top_p: float | None = None  # None: off
    min_p: float | None = None  # None: off
    seed: int | None = None  # of the request's sampling


class Request(Record, frozen=True):
    """One request of the traffic. It is private, since it holds what somebody wrote.

    Exactly one of `prompt` (plain text, used as it is) and `messages` (rendered by the target's
    chat template) is set. `id` is a keyed hash of the raw request, by which runs are paired without
    its text; `weight` counts the rows of the log that this request stands for.
    """

    id: str
    source: str  # where the row stood, FILE:ROW
    segment: str | None = None
    weight: float = 1.0
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None  # function schemas of the request
    template: dict[str, Any] = {}  # arguments of the chat template
    sampling: Sampling = Sampling()
    max_tokens: int | None = None  # most output tokens
    stop: tuple[str, ...] = ()  # stop strings
    response: str | dict[str, Any] | None = None  # the logged answer: a text, or a message
    constraint: dict[str, Any] | None = None  # what an engine holds the answer to, by its kind
    timestamp: str | None = None  # when it was asked


# From this many times as many characters on, a prompt is of another length: a draw misses the very
# longest ones, and what is less than twice as long costs and accepts about the same.
LONGER = 2


class LongerPrompts(Record, frozen=True):
    """How much longer prompts of a source are than those of the requests that were drawn."""

    drawn: Count  # characters of the longest prompt that was drawn
    longest: Count  # characters of the longest one
    share: Probability  # of the rows: their prompts are more than `LONGER` times as long as `drawn`


class Candidate(Record, frozen=True):
    """A draft at a quantization level.

    `draft` is the name that the run gave the model, or `ngram` (prompt lookup), or `self` (the
    target as its own draft), or `ngram+NAME` (prompt lookup, then this one).
    """

    draft: str
    quant: str = "none"

    @property
    def looks_up(self) -> bool:
        """Whether this is prompt lookup, alone or before another draft."""
        return self.draft == LOOKUP or draft_of_stack(self.draft) is not None

    def __str__(self) -> str:
        return self.draft if self.quant == "none" else f"{self.draft}:{self.quant}"


def candidate_names(candidates: Iterable[Candidate]) -> str:
    """Candidates' names, with the levels of one draft together: `draft (unquantized, int8)`."""
    by_draft: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_draft.setdefault(candidate.draft, []).append(candidate)
    names = []
    for draft, same in by_draft.items():
        levels = ["unquantized" if c.quant == "none" else c.quant for c in same]
        names.append(f"{draft} ({', '.join(levels)})" if len(same) > 1 else str(same[0]))
    return ", ".join(names)


# Which token ends a round's drafting; `drafts.stopping` says what each does.
StopKind = Literal["after", "before", "product"]


_WHERE: dict[StopKind, str] = {
    "after": "after a token",
    "before": "before a token",
    "product": "at a product",
}


class StopRule(Record, frozen=True):
    """Ends a round's drafting before k tokens where the draft is unsure. Its confidence in a token
    is the probability that it gives it.
    """

    kind: StopKind  # after an unsure token, before it, or by the product of a round's confidences
    threshold: Probability  # below which the draft is unsure

    def __str__(self) -> str:
        return f"stop {_WHERE[self.kind]} below {self.threshold:g}"


class DraftLength(NamedTuple):
    """How many tokens a round drafts: k, or fewer where a rule stops it."""

    k: int
    stop: StopRule | None = None

    def __str__(self) -> str:
        return f"k = {self.k}" if self.stop is None else f"k at most {self.k}, {self.stop}"

    @property
    def short(self) -> str:
        """As in a table's column of k's."""
        return (
            f"{self.k}"
            if (stop := self.stop) is None
            else f"≤{self.k} {stop.kind} {stop.threshold:g}"
        )


class Observation(Record, frozen=True, tag_field="kind", tag=str.lower):
    """A raw fact that a sweep measured; in files `kind` names its type.

    Raises:
        ValueError: no sweep can have measured this.
    """


# What identifies a response: its request, and which of the request's samples it is.
Key = tuple[str, int]


class OfResponse(Record, frozen=True):
    """A record that belongs to one response of the target."""

    request: str
    sample: Count

    @property
    def key(self) -> Key:
        """What identifies the response."""
        return self.request, self.sample


def _check_lengths(expected: int, **values: Sized) -> None:
    for name, value in values.items():
        if len(value) != expected:
            raise ValueError(f"`{name}` has {len(value)} entries, not {expected}")


# Less than a clock can resolve: clocks count in nanoseconds; a difference of floats may lose some.
_LEAST_SECONDS = 1e-10


def _check_times(**times: Iterable[float]) -> None:
    """Times must be 0, for a part too short for the clock, or values that a clock can show."""
    for name, seconds in times.items():
        least = min(filter(None, seconds), default=1.0)
        if least < _LEAST_SECONDS:
            raise ValueError(f"`{name}`: {least} is not a time that a clock can show")


class Numbers(array):  # type: ignore[type-arg]
    """Numbers of tokens, of which long runs have a hundred million: a tuple with 8 bytes for each
    instead of 32, which numpy reads without a copy.
    """

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, Numbers) else other)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


def numbers(typecode: str, values: Sequence[float]) -> Numbers:
    """Pack numbers, through bytes, which takes half as long as one by one."""
    return Numbers(typecode, pack(f"{len(values)}{typecode}", *values))


def _pack(record: Record, typecode: str, *names: str) -> None:
    for name in names:
        if (values := getattr(record, name)) is not None:
            msgspec.structs.force_setattr(record, name, numbers(typecode, values))


class Trajectory(OfResponse, Observation, frozen=True):
    """The target's response y_0 … y_{L-1} to one request, without its tokens, which are private.

    `finish` is "stop" (an end-of-sequence token or stop string, whose token counts) or "length"
    (`limit` was reached). `margins` are the target's logit differences between its best and
    second-best token by position, `argmax` says whether y_j was the best. `origin` is "target"
    (generated here), "log" (taken from the traffic and scored by the target) or "engine" (written
    by a serving engine, which reports no margins: both lists are then empty; it may count a token
    more than its limit). The last `looping` tokens repeat one passage three times or more.
    """

    segment: str | None
    weight: AboveZero
    sampling: Sampling
    prompt_tokens: Count  # tokens of the rendered prompt
    output_tokens: Positive
    limit: Positive
    finish: Finish
    origin: Origin
    margins: Sequence[Amount]
    argmax: tuple[Count, ...]
    digest: str
    looping: Count = 0

    def __post_init__(self) -> None:
        _pack(self, "d", "margins")
        scored = 0 if self.origin == "engine" else self.output_tokens
        _check_lengths(scored, margins=self.margins, argmax=self.argmax)
        if self.looping > self.output_tokens:
            raise ValueError("`looping` is more than the output")
        if self.output_tokens > self.limit and self.origin != "engine":
            raise ValueError("`output_tokens` is more than `limit`")

    @property
    def context(self) -> float:
        """Tokens in the cache half-way through."""
        return self.prompt_tokens + self.output_tokens / 2


class Confidences(Record, frozen=True):
    """A draft's confidences in runs of tokens that it drafted, one run after the other: among all
    tokens (`of_all`) and among its ten best (`of_ten`), cut to thousandths.

    `lengths` are the tokens of each run, no fewer than a round may draft there.
    """

    lengths: tuple[Count, ...]
    of_all: Sequence[Probability]
    of_ten: Sequence[Probability]

    def __post_init__(self) -> None:
        _pack(self, "d", "of_all", "of_ten")
        _check_lengths(sum(self.lengths), of_all=self.of_all, of_ten=self.of_ten)


class Replay(OfResponse, Observation, frozen=True):
    """What one draft would have proposed along one trajectory, at the positions 1 … L-1 (y_0 comes
    from the prefill).

    `accept[j-1]` is a_j, the probability that the token drafted at position j is accepted given y.
    `confidence` is max q, `margin` the draft's top-2 logit difference, `rank` the number of tokens
    that q puts above y_j, `overlap` Σ min(p, q) where both distributions were known. A serving
    engine that replays reports its best token alone: `confidence`, `margin` and `rank` are then
    empty. The draft could draft only at the positions 1 … `draftable`, since its context may end
    before the response or its limit; beyond them `accept` is 0.

    `confidence_of_ten` is the confidence among the ten best tokens. `off_path` are the confidences
    in what is drafted after each wrong token and after the response's end, which a round drafts too
    if nothing stops it: a run of at most k - 1 tokens for every position up to `draftable` at which
    `accept` is 0, then one after the response's last token.
    """

    candidate: Candidate
    mode: DraftingMode
    draftable: Count
    accept: Sequence[Probability]
    confidence: Sequence[Amount]
    margin: Sequence[Amount]
    rank: Sequence[Count]
    overlap: Sequence[Amount] | None = None
    confidence_of_ten: Sequence[Probability] = ()
    off_path: Confidences | None = None

    def __post_init__(self) -> None:
        self.check_acceptance()
        _pack(self, "d", "confidence", "margin", "confidence_of_ten")
        _pack(self, "q", "rank")
        lists = {"confidence": self.confidence, "margin": self.margin, "rank": self.rank}
        if any(lists.values()):
            _check_lengths(len(self.accept), **lists)
        if self.confidence_of_ten:
            _check_lengths(len(self.accept), confidence_of_ten=self.confidence_of_ten)
        self.check_runs(self.off_path)

    def check_runs(self, off_path: Confidences | None) -> None:
        """Check that these are as many runs as begin off the path."""
        if off_path is not None:
            wrong = self.accept[: self.draftable].count(0.0)
            _check_lengths(wrong + 1, off_path=off_path.lengths)

    def check_acceptance(self) -> None:
        """Pack and check what is known about every token's acceptance."""
        _pack(self, "d", "accept", "overlap")
        overlap = self.accept if self.overlap is None else self.overlap
        _check_lengths(len(self.accept), overlap=overlap)
        if self.mode is DraftingMode.GREEDY and not self.accepts_outright:
            raise ValueError("`accept` is in part between 0 and 1, and drafting was greedy")

    @property
    def accepts_outright(self) -> bool:
        """Whether every token is certainly accepted or certainly rejected."""
        return {0.0, 1.0}.issuperset(self.accept)


class InBlock(Record, frozen=True, omit_defaults=True):
    """What rounds of one number of tokens match along a response, as in `LookupReplay`.

    `matched`, `margin` and `confidences` mean what they mean there. `proposed`, of a suffix tree,
    too; otherwise as many are proposed as in longer rounds, if they fit.
    """

    matched: tuple[Count, ...]
    margin: Sequence[Amount] = ()
    confidences: Confidences | None = None
    proposed: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        _pack(self, "d", "margin")


class LookupReplay(OfResponse, Observation, frozen=True, omit_defaults=True):
    """Prompt lookup, or a head, along one trajectory: its proposal depends on where the round
    started.

    In a round that starts at position i = 1 … L-1 it proposes `proposed[i-1]` tokens, at most
    `window`, of which the first `matched[i-1]` equal the response. `margin[i-1]`, which only a
    head has, is the least difference of its two best logits up to the first token that does not;
    its `confidences` are those in what it drafts from each start.

    Tokens that are drafted `at_once`, in a block, may depend on how many there are, and those of a
    suffix tree on how many are asked for: `blocks[n-1]` is about rounds of n tokens, and
    `proposed`, `matched`, `margin` and `confidences` about all longer ones.
    """

    candidate: Candidate
    window: Count
    proposed: tuple[Count, ...]
    matched: tuple[Count, ...]
    margin: Sequence[Amount] = ()
    confidences: Confidences | None = None
    at_once: bool = False
    blocks: tuple[InBlock, ...] = ()

    def __post_init__(self) -> None:
        _pack(self, "d", "margin")
        _check_lengths(len(self.proposed), matched=self.matched)
        if self.margin:
            _check_lengths(len(self.proposed), margin=self.margin)
        for block in self.blocks:
            _check_lengths(len(self.proposed), blocks=block.matched)
            for of_block in filter(None, (block.margin, block.proposed)):
                _check_lengths(len(self.proposed), blocks=of_block)
        if self.confidences is not None:
            _check_lengths(len(self.proposed), confidences=self.confidences.lengths)
        if max(self.proposed, default=0) > self.window:
            raise ValueError("`proposed` is more than the window")
        if any(m > p for m, p in zip(self.matched, self.proposed, strict=True)):
            raise ValueError("`matched` is more than was proposed")

    def of_length(self, k: int) -> LookupReplay:
        """What rounds of k tokens draft: the same, unless the tokens of a block depend on k."""
        if not 0 < k <= len(self.blocks):
            return self
        block = self.blocks[k - 1]
        return msgspec.structs.replace(
            self,
            window=k,
            proposed=block.proposed or tuple(min(tokens, k) for tokens in self.proposed),
            matched=block.matched,
            margin=block.margin,
            confidences=block.confidences,
            blocks=(),
        )


class Decode(OfResponse, Observation, frozen=True, omit_defaults=True):
    """One decoding run of one request. `k` = 0 with `candidate` None is the baseline: the same
    code without a draft.

    Lists have one entry per round: tokens proposed, accepted, and cut (proposed after an accepted
    end of the response); seconds of drafting and of the rest of the round, which are those of all
    rows together; and how many of the rows were `active` (empty at `concurrency` 1).
    `decode_seconds` is what the response's rounds took, from the first token to the last, without
    the prompts of other rows that were read meanwhile. Runs of one `block` (a candidate's name,
    baseline included) were interleaved. `first_difference` is the first position at which the
    output differs from the trajectory (temperature 0), `tie` whether that was a near tie. `summed`
    means that a serving engine reported only sums, which are spread over the rounds here, so that
    what a single round accepted is unknown. With a rule to `stop` by, `drafted` are the tokens that
    each round drafted, proposed or not.
    """

    candidate: Candidate | None
    k: Count
    mode: DraftingMode
    repeat: Count  # which repetition, from 0
    proposed: tuple[Count, ...]  # tokens proposed, by round
    accepted: tuple[Count, ...]  # tokens accepted, by round
    cut: tuple[Count, ...]  # tokens proposed after an accepted end, by round
    draft_seconds: tuple[Amount, ...]  # time of drafting, by round
    verify_seconds: tuple[Amount, ...]  # time of the rest of the round, by round
    prefill_seconds: Amount  # target reading the prompt
    draft_prefill_seconds: Amount | None  # draft reading the prompt
    decode_seconds: Amount
    output_tokens: Positive
    digest: str
    first_difference: Count | None
    tie: bool | None
    block: str
    concurrency: Positive
    process: str
    active: tuple[Count, ...] = ()
    summed: bool = False
    stop: StopRule | None = None  # None: every round drafts k tokens
    drafted: tuple[Count, ...] = ()  # tokens drafted, by round; empty: those proposed

    @property
    def length(self) -> DraftLength:
        return DraftLength(self.k, self.stop)

    @property
    def prefills(self) -> float:
        """Seconds in which target and draft read the prompt."""
        return self.prefill_seconds + (self.draft_prefill_seconds or 0.0)

    def __post_init__(self) -> None:
        _check_lengths(
            len(self.proposed),
            accepted=self.accepted,
            cut=self.cut,
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            active=self.active or self.proposed,
            drafted=self.drafted or self.proposed,
        )
        drafted = self.drafted or self.proposed
        if max(drafted, default=0) > self.k or max(self.active, default=0) > self.concurrency:
            what = "drafted" if self.drafted else "proposed"
            raise ValueError(f"`{what}` is more than k, or `active` more than `concurrency`")
        if any(fewer < proposed for fewer, proposed in zip(drafted, self.proposed, strict=True)):
            raise ValueError("`proposed` is more than was drafted")
        rounds = zip(self.proposed, self.accepted, self.cut, strict=True)
        if any(accepted + cut > proposed for proposed, accepted, cut in rounds):
            raise ValueError("`accepted` and `cut` are more than was proposed")
        # A round emits what it accepted and one token of the target's, which the last one lacks
        # where the response ended inside its proposal.
        emitted = 1 + sum(self.accepted) + len(self.accepted)
        ended_inside = bool(self.accepted) and self.accepted[-1] > 0
        if self.accepted and not 0 <= emitted - self.output_tokens <= ended_inside:
            raise ValueError(f"`accepted` makes {emitted} tokens, not {self.output_tokens}")
        _check_times(
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            prefill_seconds=(self.prefill_seconds,),
            draft_prefill_seconds=(self.draft_prefill_seconds or 0.0,),
            decode_seconds=(self.decode_seconds,),
        )


# How often a pass is timed in a row before it is the next one's turn; samples of one visit are not
# independent. A prompt is read once per visit.
SAMPLES_PER_VISIT = 2


class CostPoint(Observation, frozen=True):
    """Timed passes of one model over `new_tokens` in each of `concurrency` rows, on a cache of
    `context` tokens a row.

    `candidate` None is the target. `what` is "step" (pass and token choice), "prefill" (`context`
    0, `new_tokens` the prompt), "proposal" (prompt lookup: all of a round's tokens at once),
    "catch-up" (a head: a round's first step, which reads the target's states at `new_tokens`) or
    "block" (a block drafter, after its catch-up: `new_tokens` are drafted at once).
    Points of one `block` (a candidate's name) were timed in turn with each other, so that drift of
    the machine does not change their ratios. `experts_read` are the different experts that a step
    of a mixture reads in each of its layers, on average, counted in such a pass.
    """

    candidate: Candidate | None
    what: str
    concurrency: Positive
    new_tokens: Count
    context: Count
    seconds: Annotated[tuple[AboveZero, ...], Meta(min_length=1)]  # every sample, visit by visit
    block: str
    runner: str
    process: str
    experts_read: Amount | None = None

    def __post_init__(self) -> None:
        _check_times(seconds=self.seconds)


class Mixture(Record, frozen=True):
    """The routed experts of a model that sends each token to a few of them."""

    experts: Positive  # E, of a layer that has them
    per_token: Positive  # K, that a token is sent to in such a layer
    layers: Positive  # that have them
    parameters: Positive  # of all experts in all layers

    def most_read(self, tokens: int) -> float:
        """The experts of a layer that a pass over `tokens` reads if each token's are chosen
        independently and evenly, E(1 - (1 - K/E)^n): an upper bound, since neighbours share some.
        """
        return self.experts * (1 - (1 - self.per_token / self.experts) ** tokens)

    @property
    def idle(self) -> float:
        """The share of the experts' weights that a single token does not read."""
        return 1 - self.per_token / self.experts


class ModelFacts(Observation, frozen=True):
    """One loaded model at one quantization level, counted from the real types of its weights; a
    draft that an engine serves is described as the engine holds it. `candidate` None is the target;
    `quant` is the level of either.

    `replay_disagreement` is the share of positions at which one pass and token-by-token stepping
    chose different tokens, near ties not counted. `parts` are hashes of the tokenizer and of the
    chat template, by name, which `fingerprint` covers together with the weights.
    `second_layout_bytes` are those of weights that a CPU holds twice, the second time packed for
    passes over several tokens. `mixture` None is a model whose every weight each token reads.
    """

    candidate: Candidate | None
    quant: str
    dtype: str
    parameters: Positive
    weight_bytes: Count  # weights
    quantized_share: Amount  # share of the linear layers' weights that the level changed
    kv_bytes_per_token: Count
    context_length: Positive  # tokens that the model reads
    vocab_size: Count  # rows of its output
    runner: str
    fingerprint: str
    caveats: tuple[str, ...]
    has_kernel: bool  # whether the level has a real kernel here
    replay_disagreement: Amount | None
    parts: dict[str, str] = {}
    second_layout_bytes: Count = 0
    # Rows to which earlier versions padded a product over fewer on some CPUs.
    least_rows: Positive = 1
    mixture: Mixture | None = None
    translated: bool = False  # whether a draft has other ids than the target, or lacks tokens
    misread: dict[str, str] = {}  # by engine, what it makes of a head other than was measured

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses: in a mixture, those of a few experts."""
        idle = self.mixture.idle * self.mixture.parameters if self.mixture else 0
        return self.parameters - round(idle)


class EngineFacts(Observation, frozen=True):
    """One start of a serving engine, or one session with a running server, with what it reports
    about itself. `candidate` None and `k` 0 is a server that does not speculate, a candidate at 0
    one that serves the draft alone, to replay it.

    `started` is whether draftbench started it. `command` shows what the user added without values;
    the whole command is private. `process` names the session: servers that took turns share it.
    """

    server: str  # id of this start
    process: str
    engine: str  # as `--engine` names it
    version: str | None  # as the server reports it
    model: str | None  # as the server calls it
    candidate: Candidate | None
    k: Count
    started: bool
    command: str | None
    settings: dict[str, str]  # speculation, limits and the like, as the server reports them
    context_length: Positive | None  # tokens that it reads
    prefix_cache: bool | None  # whether prompts read before cost less
    ready_seconds: Amount | None  # from the start to the first answer
    files: dict[str, str] = {}  # a hash of the target's and of the draft's, where they are local
    stop: StopRule | None = None  # by which it ends a round's drafting; None: at k tokens


# The most rounds that an engine may count past the end of an answer, and the longest draft
# measured.
_PAST_END, _LONGEST_DRAFT = 8, 64

Round = tuple[Count, Count]  # tokens proposed, tokens accepted


class RoundCounts(Record, frozen=True):
    """Rounds as a serving engine counts them, for one answer or for all since it started, including
    proposals past the end of a response; None: the engine does not say.
    """

    rounds: Count | None = None  # that had a draft
    drafted: Count | None = None  # tokens
    accepted: Count | None = None  # of those
    by_position: tuple[Count, ...] | None = None  # tokens accepted at each draft position
    by_round: tuple[Round, ...] | None = None  # tokens proposed and accepted in each
    written: Count | None = None  # tokens of all answers since the start

    def impossible_in(self, tokens: int) -> str | None:
        """Why an answer of `tokens` cannot have these rounds; None if it can."""
        by_position, by_round = self.by_position or (), self.by_round or ()
        most = 2 * tokens + _PAST_END
        if any(accepted > proposed for proposed, accepted in by_round):
            return "more tokens accepted than proposed in a round"
        if (self.rounds or 0) > most:
            return "more rounds than tokens"
        written = accumulate((accepted + 1 for _, accepted in by_round), initial=1)
        if sum(so_far >= tokens for so_far in written) > _PAST_END + 1:
            return "more rounds than the answer has room for"
        if (self.drafted or 0) > _LONGEST_DRAFT * most:
            return "more drafted tokens than rounds hold"
        if self.drafted is not None and (self.accepted or 0) > self.drafted:
            return "more tokens accepted than drafted"
        if any(later > earlier for earlier, later in pairwise(by_position)):
            return "a draft position accepted more often than the one before it"
        return None


class Served(OfResponse, Observation, frozen=True):
    """One request answered by a serving engine. `k` = 0 with `candidate` None is the baseline: a
    server without speculation.

    `load` is how requests were sent: "closed" (always `concurrency` in flight) or "open" (at their
    times of arrival; `concurrency` is then the most that were in flight during this one). `sent`
    counts seconds from the first request, `arrivals` from `sent` to each chunk of the stream;
    `chunks` are the tokens in each.

    `error` is what went wrong ("timeout", "HTTP 500", "cut", …); what came before stays.
    `first_difference` is the first position at which the output differs from the trajectory
    (temperature 0), `tie` whether it is a near tie by the server's log-probabilities.
    """

    candidate: Candidate | None
    k: Count
    mode: DraftingMode
    repeat: Count  # which repetition, from 0
    server: str  # id of the start that answered
    process: str
    load: str
    concurrency: Positive
    sent: Amount
    arrivals: tuple[Amount, ...]
    chunks: tuple[Count, ...]
    prompt_tokens: Count  # tokens of the prompt
    cached_tokens: Count | None  # of the prompt, which the server had read before
    output_tokens: Count
    finish: str  # stop, length, or why it ended early
    digest: str
    counts: RoundCounts | None = None  # None: the engine says nothing of its drafting
    first_difference: Count | None = None
    tie: bool | None = None
    error: str | None = None
    decode_seconds: Amount | None = None  # after the first token, by the server's own clock
    shared: bool | None = None  # whether the server wrote other answers meanwhile, by its counters
    stop: StopRule | None = None  # by which the draft ends a round; None: at k tokens

    @property
    def length(self) -> DraftLength:
        return DraftLength(self.k, self.stop)

    @property
    def asked_concurrency(self) -> int:
        """The concurrency that was asked for, as in decoding runs; requests sent at their times of
        arrival count as concurrency 1.
        """
        return self.concurrency if self.load == "closed" else 1

    def __post_init__(self) -> None:
        _check_lengths(len(self.arrivals), chunks=self.chunks)
        if self.error is None and sum(self.chunks) != self.output_tokens:
            raise ValueError("`chunks` do not add up to the output")
        counts = self.counts or RoundCounts()
        if what := counts.impossible_in(self.output_tokens):
            raise ValueError(what)
        steps = (later - earlier for earlier, later in pairwise((0.0, *self.arrivals)))
        _check_times(arrivals=steps, decode_seconds=(self.decode_seconds or 0.0,))
        tokens = max(counts.drafted or 0, counts.accepted or 0)
        if self.error is None and counts.rounds and tokens > self.k * counts.rounds:
            raise ValueError("more tokens in a round than k")


class Failure(Observation, frozen=True):
    """A candidate that could not be measured. `candidate` None is the target.

    `resolved` says that a later attempt succeeded, so that the candidate's failures are void.
    """

    candidate: Candidate | None
    stage: str  # where it failed
    reason: str
    hint: str  # what to do about it
    resolved: bool = False

    @property
    def tried_again(self) -> bool:
        """Whether the sweep's own command tries it again: not a pair that cannot work."""
        return self.stage in ("measure", "serve")


class Environment(Record, frozen=True):
    """The machine and the software; times are only compared between equal ones."""

    platform: str  # operating system and architecture
    processor: str  # its name
    cores: Positive  # of the processor
    threads: Positive
    accelerator: str | None  # GPU, or None
    python: str  # version
    packages: dict[str, str]  # versions
    load: Amount | None = None  # load average per core before the run computed anything

    @property
    def machine(self) -> str:
        """What must be the same for times to be comparable, as one word."""
        parts = (self.platform, self.processor, self.cores, self.threads, self.accelerator)
        return sha256(repr(parts).encode()).hexdigest()[:12]


class WorkerFacts(Observation, frozen=True):
    """Where a worker of a sweep ran."""

    process: str
    node: str  # digest of the machine's name
    environment: Environment  # the machine and the software


class MachineState(Observation, frozen=True):
    """What else the machine did in the `seconds` before `at` (seconds since the epoch).

    `others` is the share of all cores that processes other than this one and its children kept
    busy, `throttled` how often a core was slowed down because of heat.
    """

    at: Amount
    seconds: Amount
    others: Amount | None
    throttled: Count | None
    process: str


AnyObservation = (
    Trajectory
    | Replay
    | LookupReplay
    | Decode
    | CostPoint
    | ModelFacts
    | EngineFacts
    | Served
    | Failure
    | MachineState
    | WorkerFacts
)
