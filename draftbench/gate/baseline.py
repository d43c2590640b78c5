"""A baseline and its file: what one candidate did per request, in counts small enough to commit.

Two groups of facts stand at its head. `BaselineQuestion`: what was asked; a difference there makes
two runs incomparable. `tested`: models, machine and software, which may differ and are then listed
in the verdict. No text, no token ids; requests are keyed hashes. The file is JSON with one request
a line, sorted, so that a diff shows which requests changed.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import msgspec

from draftbench.errors import RunFolderError
from draftbench.records import Candidate, DraftingMode, LookupReplay, ModelFacts, Record
from draftbench.run_folder.manifest import refuse_newer
from draftbench.run_folder.run import Run
from draftbench.safe_files import UnreadableError, json_without_controls, read_limited, write_whole

# 1: first layout. 2: prompt tokens, the hash of the responses and loops, unknown in files of 1.
# 3: the number of CPU threads, unknown in files before; suspected faults name their kind.
SCHEMA_VERSION = 3
MAX_BYTES = 64 << 20
# The longest draft that a sweep takes.
MAX_K = 64

# Bounded, so that no sum of them overflows.
_MOST = 1e12
_MOST_SAMPLES = 1_000_000
_MOST_TOKENS = 1_000_000_000
# What is rounded to three digits when it is saved.
_ROUNDING = 0.01

Count = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
# A suspected fault that only prompts show; the others are those of `acceptance.faults`.
DOUBLED = "doubled first token"


class BaselineQuestion(Record, frozen=True):
    """What was asked; figures of different questions are not comparable.

    `key_id` names the key of the request hashes. A request's limit and stop strings are part of its
    hash, `max_new_tokens` is the run's; the sampling is recorded with each request.
    """

    key_id: str
    metric_version: int
    mode: DraftingMode
    k: Annotated[int, msgspec.Meta(ge=1, le=MAX_K)]
    responses: Literal["target", "log"]
    samples: Annotated[int, msgspec.Meta(ge=1, le=_MOST_SAMPLES)]
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TOKENS)] | None


class Speed(Record, frozen=True):
    """Decoding of one request with the draft and without, after its first token, over repeats."""

    tokens: Positive
    seconds: Positive
    plain_tokens: Positive
    plain_seconds: Positive


class RequestCounts(Record, frozen=True, omit_defaults=True):
    """One request at the pinned k; several responses count as their mean.

    Expected numbers of `rounds` that drafted, of tokens `accepted` in them, of target `passes` (the
    rounds with nothing to draft too) and of `tokens` after the first. `alpha_sum` is taken over
    `positions`; None for prompt lookup, which has no α. `prompt_tokens` is the length of the
    rendered prompt, `output` a keyed hash of the responses; None where they are unknown. `looping`
    tokens at the end of the response repeat one passage.
    """

    id: str
    weight: Positive
    sampling: str
    tokens: Count
    passes: Count
    rounds: Count
    accepted: Count
    positions: Count = 0.0
    alpha_sum: Count | None = None
    segment: str | None = None
    speed: Speed | None = None
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=_MOST_TOKENS)] | None = None
    output: str | None = None
    looping: Count = 0.0


class SuspectedFault(Record, frozen=True):
    """A sign of a broken set-up. The gate compares the `kind`; the message counts, and so differs
    from run to run.
    """

    kind: str
    message: str


class Baseline(Record, frozen=True):
    """One candidate of one run.

    `survival` is pooled over requests, per draft position 1 … k. `cost_ratios` are repeats of the
    time of one draft step over that of one target step. `threads` are CPU threads.
    """

    schema_version: int
    created: str
    candidate: str
    question: BaselineQuestion
    tested: dict[str, str]
    alpha_definition: str | None
    survival: tuple[Count, ...]
    faults: tuple[SuspectedFault, ...]
    cost_ratios: tuple[Positive, ...]
    requests: tuple[RequestCounts, ...]
    threads: Annotated[int, msgspec.Meta(ge=1, le=_MOST_SAMPLES)] | None = None


def tested_by(run: Run, candidate: Candidate) -> dict[str, str]:
    """Models, machine and software of a run, by name; those that are unknown are left out."""
    question, environment = run.manifest.question, run.manifest.environment
    tested = {
        # The name alone: a directory that was moved is no other target.
        "target": PurePath(question.target).name,
        **_model("target", run.facts_of(None)),
        "draft": candidate.draft,
        "draft quant": candidate.quant,
        **_model("draft", run.facts_of(candidate)),
        "target quant": question.target_quant,
        "dtype": question.dtype,
        "device": question.device,
        "machine": f"{environment.platform}, {environment.processor}, {environment.cores} cores, "
        f"{environment.threads} threads, {environment.accelerator or 'no accelerator'}",
        "draftbench": run.manifest.draftbench,
        "python": environment.python,
        **environment.packages,
    }
    if any(isinstance(r, LookupReplay) and r.candidate == candidate for r in run.replays):
        tested["lookup window"] = f"{question.lookup_longest} to {question.lookup_shortest}"
    return tested


def _model(name: str, facts: ModelFacts | None) -> dict[str, str]:
    if facts is None:
        return {}
    return {
        f"{name} fingerprint": facts.fingerprint,
        **{f"{name} {part}": digest for part, digest in facts.parts.items()},
        f"{name} dtype": facts.dtype,
        f"{name} runner": facts.runner,
    }


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Write the file whole and synced to disk; a reader never sees half of it.

    Raises:
        RunFolderError: it cannot be written there, or something else than a file stands there; what
            was there before is kept.
    """
    head = msgspec.structs.asdict(baseline)
    del head["requests"]
    text = msgspec.json.format(msgspec.json.encode(head), indent=2).removesuffix(b"\n}")
    rows = b",\n".join(b"    " + msgspec.json.encode(counts) for counts in baseline.requests)
    data = text + b',\n  "requests": [\n' + rows + b"\n  ]\n}\n"
    try:
        if path.exists() and not path.is_file():
            raise RunFolderError(
                f"cannot write the baseline `{path}`: it is not a plain file",
                hint="take another --save file",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the baseline `{path}`: {error.strerror}", hint="take another --save file"
        ) from error


def read_baseline(path: Path) -> Baseline:
    """Read a baseline strictly.

    Raises:
        RunFolderError: no such file, too large, of a newer schema, or edited into counts that no
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
        refuse_newer(raw, SCHEMA_VERSION, f"`{path}`")
        baseline = msgspec.json.decode(_upgraded(raw), type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFolderError(
            f"`{path}` is not a baseline: {error}",
            hint="make one with `draftbench gate --save FILE RUN`",
        ) from error
    wrong = _contradiction(baseline)
    if wrong:
        raise RunFolderError(f"`{path}` {wrong}", hint="the file was edited; save it again")
    return baseline


# Words of each kind of fault in files before layout 3, which kept the messages alone.
_KINDS = {
    "not one token in": "zero acceptance",
    "the mean accepted length is exactly 1": "one token per round",
    "was never accepted in": "hazard falls to zero",
    "begin with the same token twice": DOUBLED,
}


def _upgraded(raw: bytes) -> bytes:
    """A baseline of an earlier layout with the kind of each suspected fault."""
    document: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
    faults = document.get("faults")
    if document.get("schema_version") not in (1, 2) or not isinstance(faults, list) or not faults:
        return raw
    document["faults"] = [
        {
            "kind": next((kind for words, kind in _KINDS.items() if words in message), message),
            "message": message,
        }
        for message in map(str, faults)
    ]
    return msgspec.json.encode(document)


def _contradiction(baseline: Baseline) -> str | None:
    """How the counts contradict themselves."""
    if not baseline.requests:
        return "holds no request"
    if len({counts.id for counts in baseline.requests}) < len(baseline.requests):
        return "holds a request twice"
    for counts in baseline.requests:
        accepted, tried = counts.alpha_sum or 0.0, counts.positions
        if accepted > tried + _ROUNDING or counts.rounds > counts.passes + _ROUNDING:
            return f"counts more of request {counts.id} than there was"
    return None
