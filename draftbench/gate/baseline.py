"""A baseline and its file: what one candidate did on each request, as counts.

Two baselines can be compared if they have the same `question`. `tested` names models, machine and
software; what differs there is listed in the verdict. There is no text and no token id in it, and
requests are keyed hashes. The file is JSON with one request a line, sorted, so that a diff shows
which requests changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from draftbench.acceptance.faults import SuspectedFault
from draftbench.acceptance.intervals import Estimate
from draftbench.errors import RunFolderError
from draftbench.planner.output_check import Match
from draftbench.planner.recommendation import Caveat
from draftbench.records import DraftingMode, Record
from draftbench.run_folder.manifest import Tokens, refuse_other_schema
from draftbench.safe_files import UnreadableError, json_without_controls, read_limited, write_whole

# The layout of baselines; a file with another layout is not read.
SCHEMA_VERSION = 10
MAX_BYTES = 64 << 20

# Bounded, so that no sum of them overflows.
Count = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_MOST_TOKENS = 1_000_000_000
# How far sums of saved counts, which have three digits, may be off.
_ROUNDING = 0.01


class BaselineQuestion(Record, frozen=True, omit_defaults=True):
    """What was measured; baselines of different questions cannot be compared.

    `key_id` names the key of the request hashes. A request's limit and stop strings are part of its
    hash, its sampling is in its counts, and `max_new_tokens` holds for the whole run. The fields
    from `concurrency` on are the load at which a serving engine counted rounds; None for a replay.
    """

    key_id: str
    metric_version: int  # of the figures' definitions
    mode: DraftingMode
    k: Tokens
    responses: Literal["target", "log"]
    samples: _Number
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TOKENS)] | None
    concurrency: _Number | None = None  # requests in flight
    arrivals: str | None = None  # closed, log, or poisson:RATE
    time_scale: Positive | None = None  # how many times as fast as logged
    arrivals_digest: str | None = None  # keyed hash of the times of arrival; None: closed
    max_concurrency: _Number | None = None


class DecodingTimes(Record, frozen=True):
    """Decoding of one request with the draft and without, after its first token, over repeats."""

    tokens: Positive  # tokens decoded with the draft
    seconds: Positive  # what they took
    plain_tokens: Positive  # tokens decoded without
    plain_seconds: Positive  # what they took


class RequestCounts(Record, frozen=True, omit_defaults=True):
    """What one request did at the baseline's k; with several responses, their mean.

    `rounds` counts those with a draft, `accepted` the tokens accepted in them, `passes` all target
    passes, and `tokens` those after the first; of a replay all four are expectations. `alpha_sum`
    is the sum of α over `positions`, None if there is no α. `prompt_tokens` is the length of the
    rendered prompt. `output` and `drafted` are keyed hashes of the text without speculation and
    with it (written by a serving engine asked one request at a time at temperature 0); None if
    unknown. `text` compares the text with speculation with the one without, `plain_text` a second
    text without speculation with the first. `looping` tokens at the end of the response repeat a
    passage.
    """

    id: str  # keyed hash of the request
    weight: Positive
    sampling: str  # `greedy`, or the request's temperature, top-k, top-p and min-p
    tokens: Count
    passes: Count
    rounds: Count
    accepted: Count
    positions: Count = 0.0
    alpha_sum: Count | None = None
    segment: str | None = None
    speed: DecodingTimes | None = None  # decoding times, where they were measured
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=_MOST_TOKENS)] | None = None
    output: str | None = None
    looping: Count = 0.0
    drafted: str | None = None
    text: Match | None = None
    plain_text: Match | None = None


class ProcessTimes(Record, frozen=True):
    """c and speed-up over all requests as one process timed them, None if it did not.

    They are kept by process because processes differ by more than repeats within one.
    """

    draft_cost_ratio: Positive | None  # c, the median over its visits
    speedup: Positive | None  # decoding with the draft over without


class Baseline(Record, frozen=True):
    """What one candidate of one run did.

    `run` identifies this run, even if its folder was copied. `unanswered` has the requests that a
    server did not answer, or not every time, with what went wrong. `survival` is pooled over
    requests, for draft positions 1 … k. `doubts` make the run's acceptance or times doubtful; no
    check that rests on these passes.
    `cost_ratios` has the time of a draft step over that of a target step for each visit. `threads`
    counts CPU threads.
    """

    schema_version: Annotated[int, msgspec.Meta(ge=1)]
    created: str
    candidate: str
    question: BaselineQuestion
    tested: dict[str, str]  # what was tested: models, engine and settings, by name
    alpha_definition: str | None  # which α `alpha_sum` adds up
    survival: tuple[Share, ...]
    faults: tuple[SuspectedFault, ...]  # suspected faults that the baseline itself showed
    cost_ratios: tuple[Positive, ...]
    requests: tuple[RequestCounts, ...]  # one entry per request
    run: str
    threads: _Number | None = None
    processes: tuple[ProcessTimes, ...] = ()  # times of each process
    concurrency: _Number = 1  # at which it was timed
    speedup: Estimate | None = None  # expected, after the first token; None: unknown
    speedup_end_to_end: Estimate | None = None  # the same with both prefills
    doubts: tuple[Caveat, ...] = ()  # decisive ones that concern this candidate
    unanswered: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def asked(self) -> frozenset[str]:
        """The requests that were sent, answered or not."""
        return frozenset({*self.unanswered, *(counts.id for counts in self.requests)})

    @property
    def alpha(self) -> float | None:
        """α over all requests; None for replayed prompt lookup, and for a server that does not
        report at which positions it accepts.
        """
        sums = [r.alpha_sum * r.weight for r in self.requests if r.alpha_sum is not None]
        positions = sum(r.positions * r.weight for r in self.requests)
        return sum(sums) / positions if len(sums) == len(self.requests) and positions else None


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Write the file, or leave it as it was.

    Raises:
        RunFolderError: it cannot be written there, or the path is not a plain file.
    """
    head = msgspec.structs.asdict(baseline)
    del head["requests"]
    text = msgspec.json.format(msgspec.json.encode(head), indent=2).removesuffix(b"\n}")
    rows = b",\n".join(b"    " + msgspec.json.encode(counts) for counts in baseline.requests)
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a plain file")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text + b',\n  "requests": [\n' + rows + b"\n  ]\n}\n")
    except OSError as error:
        raise RunFolderError(
            f"cannot write the baseline `{path}`: {error.strerror or error}",
            hint="take another --save file",
        ) from error


def read_baseline(path: Path) -> Baseline:
    """Read a baseline, and check that its counts are possible.

    Raises:
        RunFolderError: no such file, too large, of another schema, or edited into counts that no
            run can have.
    """
    try:
        raw = read_limited(path, MAX_BYTES)
    except UnreadableError as error:
        raise RunFolderError(
            f"cannot read the baseline `{path}`: {error}",
            hint="give the file that `draftbench gate --save FILE RUN` wrote",
        ) from error
    try:
        raw = json_without_controls(raw)
        again = "save it again from its run, or from a new sweep"
        refuse_other_schema(raw, SCHEMA_VERSION, f"`{path}`", again)
        baseline = msgspec.json.decode(raw, type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFolderError(
            f"`{path}` is not a baseline: {error}",
            hint="make one with `draftbench gate --save FILE RUN`",
        ) from error
    wrong = None
    if not baseline.requests:
        wrong = "holds no request"
    elif len({counts.id for counts in baseline.requests}) < len(baseline.requests):
        wrong = "holds a request twice"
    for counts in baseline.requests:
        # Each pass adds what was accepted and a token of the target's, which the last may lack.
        made = counts.accepted + counts.passes
        parts_and_wholes = (
            (counts.alpha_sum or 0.0, counts.positions),
            (counts.positions, counts.tokens),
            (counts.rounds, counts.passes),
            (counts.accepted, (counts.rounds + _ROUNDING) * baseline.question.k),
            (counts.tokens, made),
            (made, counts.tokens + 1),
        )
        if any(part > whole + _ROUNDING for part, whole in parts_and_wholes):
            wrong = wrong or f"counts of request {counts.id} what cannot be together"
    drafted = sum(counts.weight * counts.rounds for counts in baseline.requests)
    if baseline.survival and drafted:
        # Pooled over requests, a round accepts so many tokens as positions survive; counts have
        # three digits, and survival four.
        accepted = sum(counts.weight * counts.accepted for counts in baseline.requests) / drafted
        weight, k = sum(counts.weight for counts in baseline.requests), baseline.question.k
        rounding = 0.0006 * (1 + k) * weight / drafted + 0.0001 * k
        if abs(sum(baseline.survival) - accepted) > rounding:
            wrong = wrong or "does not hold the requests, or the counts, that its `survival` is of"
    if wrong is not None:
        raise RunFolderError(f"`{path}` {wrong}", hint="the file was edited; save it again")
    return baseline
