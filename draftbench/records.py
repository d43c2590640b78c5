"""The records: draftbench's vocabulary as frozen, strictly typed values.

A `Request` is what a user asked of the target. Every other record here is an observation: a raw
fact that a sweep measured, written once and never changed. Figures (α, τ, speed-up) are computed
from observations and are not records. Times are seconds, sizes bytes or tokens; `None` means
unknown.

msgspec structs rather than dataclasses, because a run folder is read back strictly: a wrong type or
an unknown field is an error with its path, not an attribute that nobody asked for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class DraftingMode(StrEnum):
    """How the draft proposes; figures of different modes are never compared unlabelled."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    SAMPLED_TEMPERATURE_ONLY = "sampled-temperature-only"


# The drafts that are no files: prompt lookup, and the target as its own draft (the control).
LOOKUP, SELF = "ngram", "self"

# Differences of two logits below these are within the noise of computing them in another order.
NEAR_TIE_MARGIN = {"bfloat16": 0.5, "float16": 0.06, "float32": 0.001}


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen value that is compared by its fields."""


def to_json(value: object) -> str:
    """A record, or lists and dicts of records, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class Sampling(Record, frozen=True):
    """How the target draws its next token; temperature 0 is the argmax.

    Order of application: temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None


class Request(Record, frozen=True):
    """One request of the traffic. Private: it holds what somebody wrote.

    Exactly one of `prompt` (plain text, used as it is) and `messages` (rendered by the target's
    chat template) is set. `id` is a keyed hash of the raw request, so that runs can be paired
    without their texts; `weight` counts the rows of the log that this request stands for.
    """

    id: str
    source: str
    segment: str | None = None
    weight: float = 1.0
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    template: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    response: str | None = None
    timestamp: str | None = None


class Candidate(Record, frozen=True):
    """A draft at a quantization level: what competes in a sweep.

    `draft` is the name that the run gave the model, or `ngram` (prompt lookup), or `self` (the
    target as its own draft).
    """

    draft: str
    quant: str = "none"

    def __str__(self) -> str:
        return self.draft if self.quant == "none" else f"{self.draft}:{self.quant}"


class Observation(Record, frozen=True, tag_field="kind", tag=str.lower):
    """A raw fact that a sweep measured. In files `kind` names the record's type."""


class Trajectory(Observation, frozen=True):
    """The target's response to one request: y_0 … y_{L-1}, without its tokens (those are private).

    `finish`: "stop" (end-of-sequence token or stop string, its token counted), "length" (`limit`
    reached). `margins` are the target's logit differences between its best and second-best token
    per position, `argmax` whether y_j was its best. `origin` is "target" (generated here) or "log"
    (taken from the traffic and scored by the target).
    The last `looping` tokens repeat one passage three times or more.
    """

    request: str
    sample: int
    segment: str | None
    weight: float
    sampling: Sampling
    prompt_tokens: int
    output_tokens: int
    limit: int
    finish: str
    origin: str
    margins: tuple[float, ...]
    argmax: tuple[int, ...]
    digest: str
    looping: int = 0


class Replay(Observation, frozen=True):
    """What one draft would have proposed along one trajectory, at the positions 1 … L-1 (y_0 comes
    from the prefill).

    `accept[j-1]` is a_j, the probability that the token drafted at position j is accepted given y
    (design: one pass, every k). `confidence` is max q, `margin` the draft's top-2 logit difference,
    `rank` the number of tokens that q puts above y_j, `overlap` Σ min(p, q) where both
    distributions were at hand. The draft could draft at the positions 1 … `draftable` only (its
    context may end before the response or its limit does); `accept` is 0 beyond.
    """

    request: str
    sample: int
    candidate: Candidate
    mode: DraftingMode
    draftable: int
    accept: tuple[float, ...]
    confidence: tuple[float, ...]
    margin: tuple[float, ...]
    rank: tuple[int, ...]
    overlap: tuple[float, ...] | None = None


class LookupReplay(Observation, frozen=True):
    """Prompt lookup along one trajectory: its proposal depends on where the round started.

    For a round that starts at position i = 1 … L-1: `proposed[i-1]` tokens were found (at most
    `window`), of which the first `matched[i-1]` equal the response.
    """

    request: str
    sample: int
    candidate: Candidate
    window: int
    proposed: tuple[int, ...]
    matched: tuple[int, ...]


class Decode(Observation, frozen=True):
    """One decoding run of one request. `k` = 0 with `candidate` None is the baseline: the same
    code without a draft.

    One entry per round: tokens proposed, accepted, and cut (proposed after an accepted end of the
    response); seconds of drafting and of the rest of the round, and how many of the `batch` rows
    were `active` in it (empty for a batch of one). A round's seconds are those of all its rows
    together. `decode_seconds` is what the response's rounds took, from the first token to the
    last; prompts of other rows read meanwhile are not in it. Rows of one `block` (a candidate's
    name, baseline included) were interleaved. `first_difference` is the first position at which
    the output left the trajectory (temperature 0), `tie` whether that position was a near tie.
    """

    request: str
    sample: int
    candidate: Candidate | None
    k: int
    mode: DraftingMode
    repeat: int
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    cut: tuple[int, ...]
    draft_seconds: tuple[float, ...]
    verify_seconds: tuple[float, ...]
    prefill_seconds: float
    draft_prefill_seconds: float | None
    decode_seconds: float
    output_tokens: int
    digest: str
    first_difference: int | None
    tie: bool | None
    block: str
    batch: int
    process: str
    active: tuple[int, ...] = ()


class CostPoint(Observation, frozen=True):
    """Timed passes of one model over `new_tokens` in each of `batch` rows, on a cache filled with
    `context` tokens a row.

    `candidate` None is the target. `what` is "step" (pass and token choice), "prefill" (`context`
    0, `new_tokens` the prompt) or "proposal" (prompt lookup: all of a round's tokens at once).
    Points of one `block` (a candidate's name) were timed
    in turn with each other, so that their ratios do not carry the machine's drift.
    """

    candidate: Candidate | None
    what: str
    batch: int
    new_tokens: int
    context: int
    seconds: tuple[float, ...]
    block: str
    runner: str
    process: str


class ModelFacts(Observation, frozen=True):
    """One loaded model at one quantization level, counted from the weights' real types after
    quantizing. `candidate` None is the target; `quant` is the level of either.

    `replay_disagreement` is the share of positions at which one pass and token-by-token stepping
    chose another token. `parts` are hashes of the tokenizer and of the chat template, by name:
    what `fingerprint` holds beside the weights. `second_layout_bytes` are those of weights that a
    CPU holds once more, packed for passes over several tokens.
    """

    candidate: Candidate | None
    quant: str
    dtype: str
    parameters: int
    weight_bytes: int
    quantized_share: float
    kv_bytes_per_token: int
    context_length: int
    vocab_size: int
    runner: str
    fingerprint: str
    caveats: tuple[str, ...]
    has_kernel: bool
    replay_disagreement: float | None
    parts: dict[str, str] = {}
    second_layout_bytes: int = 0


class Failure(Observation, frozen=True):
    """A candidate that could not be measured. `candidate` None is the target.

    `resolved` takes back the failures of this candidate recorded before: a later attempt went
    through.
    """

    candidate: Candidate | None
    stage: str
    reason: str
    hint: str
    resolved: bool = False


class MachineState(Observation, frozen=True):
    """What else the machine did in the `seconds` before `at` (seconds since the epoch).

    `others` is the share of all cores that processes other than this one and its children kept
    busy, `throttled` how often a core was slowed down for its heat.
    """

    at: float
    seconds: float
    others: float | None
    throttled: int | None
    process: str


AnyObservation = (
    Trajectory | Replay | LookupReplay | Decode | CostPoint | ModelFacts | Failure | MachineState
)
