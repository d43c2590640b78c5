"""Other tools' records of a speculating server → counts of rounds → the figures that they support.

It reads the result of `vllm bench serve`, one scrape of `/metrics` or two (before and after), and
records of requests: of AIPerf, guidellm, and logged answers of vLLM, SGLang and llama-server. Only
records of requests give intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from draftbench.acceptance.definitions import (
    ACCEPTED_PER_DRAFTED,
    MEAN_ACCEPTED_LENGTH,
    SURVIVAL,
    TOKENS_PER_ROUND,
    Figure,
    Sample,
    quotient,
)
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.engines.client import AnswerError
from draftbench.engines.counters import read_counters
from draftbench.engines.engine import accepted_at_least
from draftbench.errors import UsageError
from draftbench.records import Count, Record
from draftbench.safe_files import UnreadableError, json_without_controls, read_limited

MOST_BYTES = 512 << 20
# No engine drafts as many tokens in a round: a larger count is a spoiled file.
_LONGEST_ROUND = 4096
_HINT = (
    "it reads the result of `vllm bench serve`, a scrape of /metrics, AIPerf's records, guidellm's "
    "report, and answers of vLLM, SGLang or llama-server as JSON lines"
)


class RecordedCounts(Record, frozen=True):
    """The rounds of one request, or of all of a run. `rounds` are those that drafted,
    `by_position` how many accepted at least 1, 2, … tokens, `steps` all target passes after the
    first token. None: not recorded.
    """

    rounds: Count
    drafted: Count | None
    accepted: Count
    by_position: tuple[Count, ...] | None = None
    tokens: Count | None = None  # of the output
    steps: Count | None = None


class Value(Record, frozen=True):
    """A figure by draftbench's definition; `called` is the tool's name for it, if it has one. The
    interval is over requests, and unknown where only sums were recorded.
    """

    name: str
    symbol: str
    formula: str
    called: str | None
    value: float
    low: float | None
    high: float | None


class Imported(Record, frozen=True):
    """The figures that a record supports, and in `notes` what it cannot tell."""

    form: str
    requests: int | None  # None: sums over an unknown number of them
    without: int  # rows that hold no counts of speculation
    rounds: int
    drafted: int | None
    accepted: int
    k: int | None  # the largest draft length that was seen
    figures: tuple[Value, ...]
    smaller_k: dict[str, float]  # mean accepted length to expect at each smaller k
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Form:
    """How one tool records a request, or the sums over all: where in a row, and its names for the
    figures.
    """

    name: str
    path: tuple[str, ...]  # of the object that holds the counts, within a row
    needs: tuple[str, ...]  # fields by which the object is recognized
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], RecordedCounts]
    called: Mapping[Figure, str]
    notes: tuple[str, ...] = ()
    sums: bool = False  # over all requests


def _steps(fields: Mapping[str, Any], row: Mapping[str, Any]) -> RecordedCounts:
    """vLLM's object, AIPerf's, and guidellm's copy of vLLM's."""
    rounds, accepted = fields["num_spec_steps"], fields["num_accepted_draft_tokens"]
    histogram = fields["acceptance_histogram"]
    if isinstance(histogram, Mapping):
        by_length = {int(j): n for j, n in histogram.items()}
        if (longest := max(by_length, default=0)) > _LONGEST_ROUND:
            raise ValueError(f"a round accepted {longest} tokens")
        histogram = [by_length.get(j, 0) for j in range(longest + 1)]
    tokens = _first(fields, row, "completion_tokens", ("usage", "completion_tokens"),
                    ("output_metrics", "text_tokens"))  # fmt: skip
    # A step without a proposal emits one token and is not among the recorded ones.
    plain = 0 if tokens is None else max(tokens - 1 - rounds - accepted, 0)
    return RecordedCounts(
        rounds=rounds,
        drafted=fields["num_draft_tokens"],
        accepted=accepted,
        by_position=tuple(accepted_at_least(histogram)),
        tokens=tokens,
        steps=None if tokens is None else rounds + plain,
    )


def _sglang(fields: Mapping[str, Any], row: Mapping[str, Any]) -> RecordedCounts:
    histogram = fields.get("spec_correct_drafts_histogram") or ()
    return RecordedCounts(
        rounds=fields["spec_verify_ct"],
        drafted=fields.get("spec_num_proposed_drafts"),
        accepted=fields["spec_num_correct_drafts"],
        by_position=tuple(accepted_at_least(histogram)) or None,
        tokens=fields.get("completion_tokens"),
        steps=fields["spec_verify_ct"],
    )


def _llama_cpp(fields: Mapping[str, Any], row: Mapping[str, Any]) -> RecordedCounts:
    tokens, accepted = fields["predicted_n"], fields["draft_n_accepted"]
    steps = max(tokens - 1 - accepted, 0)
    return RecordedCounts(
        rounds=steps, drafted=fields["draft_n"], accepted=accepted, tokens=tokens, steps=steps
    )


def _bench(fields: Mapping[str, Any], row: Mapping[str, Any]) -> RecordedCounts:
    rounds = fields["spec_decode_num_drafts"]
    shares = fields.get("spec_decode_per_position_acceptance_rates") or ()
    return RecordedCounts(
        rounds=rounds,
        drafted=fields["spec_decode_draft_tokens"],
        accepted=fields["spec_decode_accepted_tokens"],
        by_position=tuple(round(share * rounds) for share in shares) or None,
    )


_VLLM_NAMES = {
    MEAN_ACCEPTED_LENGTH: "mean_acceptance_length",
    ACCEPTED_PER_DRAFTED: "draft_acceptance_rate",
    SURVIVAL: "from acceptance_histogram",
}
_VLLM_PAST_END = (
    "vLLM counts tokens that it accepts past the end of a response: accepted and mean accepted "
    "length are a little above what the response shows"
)
_VLLM_NEEDS = ("num_spec_steps", "num_accepted_draft_tokens", "acceptance_histogram")
FORMS = (
    _Form("AIPerf records", ("spec_decode_acceptance",), _VLLM_NEEDS, _steps, _VLLM_NAMES,
          (_VLLM_PAST_END,)),
    _Form("guidellm report", ("response_metrics", "speculative_decoding"), _VLLM_NEEDS, _steps,
          _VLLM_NAMES, (_VLLM_PAST_END,)),
    _Form("vLLM answers", ("metrics", "speculative_decoding"), _VLLM_NEEDS, _steps, _VLLM_NAMES,
          (_VLLM_PAST_END,)),
    _Form(
        "SGLang answers", ("meta_info",), ("spec_verify_ct", "spec_num_correct_drafts"), _sglang,
        {ACCEPTED_PER_DRAFTED: "spec_accept_rate"},
        ("SGLang's spec_accept_length is completion tokens over passes, the first token included: "
         "it is not the mean accepted length here",
         "its proposed tokens are passes times a fixed length, too many where drafting adapts"),
    ),
    _Form(
        "llama-server answers", ("timings",), ("predicted_n", "draft_n", "draft_n_accepted"),
        _llama_cpp, {ACCEPTED_PER_DRAFTED: "draft_n_accepted / draft_n"},
        ("llama-server does not count rounds in an answer: they are its tokens less the first and "
         "the accepted ones, passes without a proposal included, and off by one where a response "
         "ends inside a proposal",),
    ),
    _Form(
        "vllm bench serve", (), ("spec_decode_num_drafts",), _bench,
        {MEAN_ACCEPTED_LENGTH: "spec_decode_acceptance_length",
         ACCEPTED_PER_DRAFTED: "spec_decode_acceptance_rate, which is in percent",
         SURVIVAL: "spec_decode_per_position_acceptance_rates"},
        (_VLLM_PAST_END, "its counters hold all that the server answered meanwhile"),
        sums=True,
    ),
)  # fmt: skip
_SCRAPES = {
    MEAN_ACCEPTED_LENGTH: "1 + num_accepted_tokens / num_drafts",
    ACCEPTED_PER_DRAFTED: "num_accepted_tokens / num_draft_tokens",
    SURVIVAL: "num_accepted_tokens_per_pos / num_drafts",
}


def read_figures(paths: Sequence[Path]) -> Imported:
    """The figures of one file, or of two scrapes of `/metrics`.

    Raises:
        UsageError: a file cannot be read, or is of no known form.
    """
    texts = [_text(path) for path in paths]
    if all(_is_scrape(text) for text in texts):
        return _of_scrapes(paths, texts)
    if len(paths) > 1:
        raise UsageError(
            "only scrapes of /metrics are read two at a time, before and after",
            hint="name one file of records",
        )
    by_form: dict[str, list[RecordedCounts]] = {}
    without = 0
    for row in _rows(texts[0], paths[0]):
        form = next((form for form in FORMS if _inside(row, form) is not None), None)
        if form is None:
            without += 1
            continue
        try:
            counted = form.read(_inside(row, form) or {}, row)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(
                f"`{paths[0]}` has a row of {form.name} that is not as it writes them: {error!r}",
                hint=_HINT,
            ) from error
        by_form.setdefault(form.name, []).append(counted)
    if not by_form:
        raise UsageError(f"`{paths[0]}` holds no counts of speculation", hint=_HINT)
    if len(by_form) > 1:
        raise UsageError(
            f"`{paths[0]}` mixes {' and '.join(by_form)}", hint="give each its own file"
        )
    [(name, counts)] = by_form.items()
    form = next(form for form in FORMS if form.name == name)
    requests = None if form.sums else len(counts)
    return _imported(form.name, counts, form.called, form.notes, requests, without)


def _text(path: Path) -> bytes:
    try:
        return read_limited(path, MOST_BYTES)
    except UnreadableError as error:
        raise UsageError(f"cannot read `{path}`: {error}", hint=_HINT) from error


def _is_scrape(text: bytes) -> bool:
    start = text.lstrip()[:1]
    return start == b"#" or (start not in (b"{", b"[") and b"spec_decode" in text)


def _rows(text: bytes, path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSON document or of JSON lines; a report's requests."""
    try:
        try:
            documents = [msgspec.json.decode(json_without_controls(text))]
        except msgspec.DecodeError:
            lines = [line for line in text.splitlines() if line.strip()]
            documents = [msgspec.json.decode(json_without_controls(line)) for line in lines]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"`{path}` is not JSON, nor JSON lines: {error}", hint=_HINT) from error
    for document in documents:
        for row in document if isinstance(document, list) else [document]:
            if not isinstance(row, dict):
                continue
            benchmarks = row.get("benchmarks")
            if isinstance(benchmarks, list):  # guidellm's report
                yield from _of_report(benchmarks)
            else:
                yield row


def _of_report(benchmarks: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    for benchmark in benchmarks:
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        done = requests.get("successful") if isinstance(requests, dict) else None
        yield from (row for row in done or () if isinstance(row, dict))


def _inside(row: Mapping[str, Any], form: _Form) -> Mapping[str, Any] | None:
    part: Any = row
    for name in form.path:
        part = part.get(name) if isinstance(part, dict) else None
    fits = isinstance(part, dict) and all(name in part for name in form.needs)
    return part if fits else None


def _first(
    fields: Mapping[str, Any], row: Mapping[str, Any], field: str, *paths: tuple[str, str]
) -> int | None:
    """A count in the object itself, or else in a part of its row."""
    values = [fields.get(field)]
    for part, name in paths:
        inside = row.get(part)
        values.append(inside.get(name) if isinstance(inside, dict) else None)
    return next((value for value in values if isinstance(value, int)), None)


def _of_scrapes(paths: Sequence[Path], texts: Sequence[bytes]) -> Imported:
    try:
        scrapes = [read_counters(text.decode()) for text in texts]
    except (UnicodeDecodeError, AnswerError) as error:
        raise UsageError(f"`{paths[0]}` is no scrape of /metrics: {error}", hint=_HINT) from error
    counters, notes = scrapes[-1], ["sums since the server started: scrape before and after"]
    if len(scrapes) == 2:
        counters, notes = scrapes[1].since(scrapes[0]), []
    elif len(scrapes) > 2:
        raise UsageError("name two scrapes of /metrics, before and after", hint=_HINT)
    if not counters.rounds or counters.kept is None:
        raise UsageError(
            "these scrapes count no speculation between them",
            hint="scrape before and after the traffic, in this order, without a restart between",
        )
    counts = RecordedCounts(
        rounds=counters.rounds,
        drafted=counters.drafted,
        accepted=counters.kept,
        by_position=counters.by_position,
    )
    return _imported("scrapes of /metrics", [counts], _SCRAPES, notes, None, 0)


def _imported(
    form: str,
    counts: Sequence[RecordedCounts],
    called: Mapping[Figure, str],
    notes: Sequence[str],
    requests: int | None,
    without: int,
) -> Imported:
    """Figures as ratios of sums, with intervals over requests where there are requests."""
    for each in counts:
        if what := _impossible(each):
            raise UsageError(
                f"the record of {form} cannot be: {what}",
                hint="see whether the file was changed, or holds figures of another kind",
            )
    known = [each for each in counts if each.rounds]
    if not known:
        raise UsageError("no round is recorded that drafted anything", hint=_HINT)

    def figure(of: Figure, pairs: Sequence[tuple[float, float]], suffix: str = "") -> Value:
        table = np.array(pairs, dtype=np.float64)
        names = tuple(map(str, range(len(table))))
        sample = Sample(of, names, np.ones(len(table)), table, quotient)
        interval: Estimate | None = estimate(sample) if requests is not None else None
        return Value(
            name=of.name + suffix,
            symbol=of.symbol,
            formula=of.formula,
            called=called.get(of),
            value=sample.value or 0.0,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
        )

    figures = [figure(MEAN_ACCEPTED_LENGTH, [(c.rounds + c.accepted, c.rounds) for c in known])]
    if all(c.drafted for c in known):
        figures.append(figure(ACCEPTED_PER_DRAFTED, [(c.accepted, c.drafted or 0) for c in known]))
    if all(c.steps and c.tokens for c in known):
        rates = [((c.tokens or 1) - 1, c.steps or 0) for c in known]
        figures.append(figure(TOKENS_PER_ROUND, rates))
    k, smaller = None, {}
    if all(c.by_position is not None for c in known):
        k = max(len(c.by_position or ()) for c in known)
        shares = []
        for position in range(k):
            reached = [(*(c.by_position or ()), *(0,) * k)[position] for c in known]
            pairs = [(n, c.rounds) for n, c in zip(reached, known, strict=True)]
            figures.append(figure(SURVIVAL, pairs, f" of position {position + 1}"))
            shares.append(sum(reached) / sum(c.rounds for c in known))
        smaller = {str(m): 1 + sum(shares[:m]) for m in range(1, k)}
    drafted = sum(c.drafted or 0 for c in known) if all(c.drafted for c in known) else None
    return Imported(
        form=form,
        requests=requests,
        without=without,
        rounds=sum(c.rounds for c in known),
        drafted=drafted,
        accepted=sum(c.accepted for c in known),
        k=k,
        figures=tuple(figures),
        smaller_k=smaller,
        notes=(*notes, *_unknown(requests, k)),
    )


def _impossible(counted: RecordedCounts) -> str | None:
    """Why these counts are impossible; None where they are possible."""
    try:
        msgspec.convert(msgspec.to_builtins(counted), RecordedCounts)
    except msgspec.ValidationError as error:
        return str(error)
    at_position = (counted.rounds, *(counted.by_position or ()))
    if counted.drafted is not None and counted.accepted > counted.drafted:
        return f"{counted.accepted} tokens accepted of {counted.drafted} drafted"
    if any(later > earlier for earlier, later in pairwise(at_position)):
        return "a draft position was accepted in more rounds than reached it"
    k = len(counted.by_position or ())
    if counted.by_position is not None and counted.accepted > counted.rounds * k:
        return f"{counted.accepted} tokens accepted in {counted.rounds} rounds of at most {k}"
    return None


def _unknown(requests: int | None, k: int | None) -> Iterator[str]:
    if requests is None:
        yield "sums without requests have no interval: say nothing of small differences"
    if k is None:
        yield "nothing is recorded by position, so no other k can be predicted"
    yield (
        "not in such a record: α, which needs the responses; the cost of drafting and verifying; "
        "and the speed-up, which needs the same requests without speculation"
    )
