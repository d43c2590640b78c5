"""What `recommend --all` adds: every speed-up by its name, loads, latency, checks, caveats."""

from __future__ import annotations

from draftbench.memory import format_size
from draftbench.planner.options import RANKS_BY
from draftbench.planner.recommendation import (
    Distribution,
    Evaluation,
    Latency,
    LoadLevel,
    Recommendation,
    Side,
)
from draftbench.report.terminal.text import Section, Table, counted, figure, times

# From this ratio of times to the first token on a sentence says so.
_LATER = 1.2
_LEGEND = (
    "± is half a 95% interval: over requests, for c over timing repeats. τ, the accepted length, "
    "counts the tokens of a round that drafted, its bonus token included; c is the time of a draft "
    "step over a target step, v(k+1) that of the verification pass. Expected is the prediction "
    "times measured over predicted on the measured requests. Memory is the draft's weights and its "
    "cache for the longest request."
)


def all_sections(answer: Recommendation) -> list[Section]:
    """Every part of the answer below its headline; empty ones left out."""
    latency = answer.latency
    sections = [
        Section("Speed-up of the best", ("", "×", ""), _speed_ups(answer), certainty(answer)),
        Section("Candidates at their best k", *_candidates(answer), [_LEGEND]),
        loads(answer),
        Section("Why the others lost", notes=_losers(answer)),
        Section("Not measured", notes=_failures(answer)),
        Section("Checks", notes=answer.checks),
        *([Section("Latency, measured", *waits(latency), wait_notes(latency))] if latency else []),
        Section("Caveats", notes=[caveat.text for caveat in answer.caveats]),
        Section(
            "Rules of thumb", notes=[f"{one.sentence} ({one.source})" for one in answer.advice]
        ),
    ]
    return [section for section in sections if section.rows or section.notes]


def _speed_ups(answer: Recommendation) -> list[list[str]]:
    """The leader's figures under their names, each with what it covers."""
    leader = answer.leading_evaluation
    if leader is None:
        return []
    requests, decoded = counted(answer.requests, "request"), leader.requests_measured
    measured = f"{counted(decoded, 'request')} decoded{_error(leader)}"
    rows = [
        (
            "cross-validated, decides",
            answer.speedup_deciding,
            "chosen on some requests, evaluated on others",
        ),
        ("expected", leader.speedup_expected, "the prediction, corrected by what was measured"),
        ("predicted", leader.speedup_predicted, f"{requests}, from replay and pass timings"),
        ("measured", leader.speedup_measured, measured),
        ("expected, with prefills", leader.speedup_end_to_end_expected, "end to end"),
        ("predicted, with prefills", leader.speedup_end_to_end, "end to end"),
    ]
    return [[name, times(value), basis] for name, value, basis in rows if value is not None]


def _error(leader: Evaluation) -> str:
    error = leader.prediction_error
    # Under half of the last digit shown the prediction was right.
    if error is None or abs(error) < 0.0005:
        return ""
    return f"; predicted for them: {abs(error):.1%} {'higher' if error > 0 else 'lower'}"


def certainty(answer: Recommendation) -> list[str]:
    """How sure the decision is, and how much acceptance it has to spare."""
    notes = []
    if answer.probability_best is not None and answer.expected_regret is not None:
        notes.append(
            f"{answer.probability_best:.0%} likely to be the best choice; expected loss if not: "
            f"{answer.expected_regret:.1%}."
        )
    margin = answer.break_even
    if margin is not None and margin.scaling is not None and margin.margin is not None:
        notes.append(
            f"Acceptance could fall by {margin.margin:.0%} before speculation stops paying."
            if margin.margin >= 0
            else f"Acceptance would have to grow by {-margin.margin:.0%} for speculation to pay."
        )
    elif margin is not None:
        notes.append("No acceptance, however high, would make it pay.")
    if answer.objective != "speedup":
        notes.append(f"Ranked by {RANKS_BY[answer.objective]}.")
    return notes


def _candidates(answer: Recommendation) -> Table:
    head = ["", "draft", "k", "α", "τ", "c", "v(k+1)", "predicted ×", "measured ×", "expected ×"]
    rows = [
        [
            "→" if each.configuration == answer.choice else "",
            str(each.candidate),
            str(each.k),
            figure(each.alpha),
            figure(each.mean_accepted_length),
            figure(each.draft_cost_ratio),
            figure(each.verify_ratio),
            figure(each.speedup_predicted),
            figure(each.speedup_measured),
            figure(each.speedup_expected),
            "–" if each.memory_bytes is None else format_size(each.memory_bytes),
        ]
        for each in answer.by_candidate
    ]
    return [*head, "memory"], rows


def loads(answer: Recommendation) -> Section:
    """A row per concurrency; empty where only one request at a time was asked about."""
    if answer.objective == "speedup" and [at.concurrency for at in answer.levels] == [1]:
        return Section("By concurrency")
    dollars = any(level.tokens_per_dollar_plain is not None for level in answer.levels)
    rate = "tokens/$" if dollars else "tokens/s"
    head = ["concurrency", "draft", "k", "expected ×", rate, "with it", "ms/token", "with it"]
    notes = [
        f"{rate}: of all requests together while they decode; ms/token: of one request, prefills "
        "included where they were timed. Each without speculation, then with it."
    ]
    for level in answer.levels:
        if level.costs:
            unknown = "unknown; " if level.decision is None else "costs "
            notes.append(f"Concurrency {level.concurrency}: {unknown}{level.costs}.")
        if level.decision == "inconclusive":
            notes.append(f"Concurrency {level.concurrency}: inconclusive, its k is open (–).")
    rows = [_load(level, dollars) for level in answer.levels]
    return Section("By concurrency", head, rows, [*notes, *_crossover(answer)])


def _crossover(answer: Recommendation) -> list[str]:
    if len(answer.schedule) < 2 or answer.leader is None:
        return []
    ks = ", ".join(
        f"{entry.concurrency} → {'–' if entry.k is None else entry.k}" for entry in answer.schedule
    )
    name, limit = answer.leader.candidate, answer.crossover
    lines = [f"k by concurrency with {name} (0: do not speculate): {ks}."]
    if limit is None:
        return [*lines, "It pays off at the largest timed concurrency too."]
    if limit == 0:
        return [*lines, "It clearly pays off at no timed concurrency."]
    words = f"up to {counted(limit, 'concurrent request')}"
    if answer.crossover_between is not None:
        low, high = answer.crossover_between
        words = f"up to about {limit} concurrent requests (interpolated between {low} and {high})"
    return [*lines, f"It pays off {words}."]


def _load(level: LoadLevel, dollars: bool) -> list[str]:
    configuration = level.choice or level.leader
    rates = (level.tokens_per_second_plain, level.tokens_per_second)
    if dollars:
        rates = (level.tokens_per_dollar_plain, level.tokens_per_dollar)
    return [
        str(level.concurrency),
        str(configuration.candidate) if configuration else "–",
        "–" if level.k is None else str(level.k),
        figure(level.speedup_expected),
        *map(_digits, rates),
        *map(_milliseconds, (level.seconds_per_token_plain, level.seconds_per_token)),
    ]


def _losers(answer: Recommendation) -> list[str]:
    return [f"{e.candidate}, k = {e.k}: {e.reason}" for e in answer.by_candidate if e.reason]


def _failures(answer: Recommendation) -> list[str]:
    return [f"{failure.candidate or 'target'}: {failure.reason}" for failure in answer.failures]


def waits(latency: Latency) -> Table:
    """Percentiles in milliseconds, without and with speculation."""
    head = ["", "speculation", "values", "p50", "p90", "p99", "max"]
    rows: list[list[str]] = []
    for field in Side.__struct_fields__:
        for word, side in (("without", latency.plain), ("with", latency.speculative)):
            one: Distribution = getattr(side, field)
            shown = [_milliseconds(value) for value in (one.p50, one.p90, one.p99, one.largest)]
            rows.append(["" if word == "with" else one.of, word, str(one.values), *shown])
    return head, rows


def wait_notes(latency: Latency) -> list[str]:
    """Sentences on tails, and on a better median that comes with a worse tail."""
    plain, speculative = latency.plain, latency.speculative
    notes = [
        f"Milliseconds, {latency.configuration}, concurrency {latency.concurrency}; a chunk is "
        "what one round delivers. Queueing and prefill of other requests are not included.",
        f"Time per output token of a request, {latency.p99_ratio_of}: {latency.p99_ratio:.2f} "
        "times that without speculation.",
        *_worse_tail(plain.time_per_output_token, speculative.time_per_output_token),
        *_worse_tail(plain.chunk_gap, speculative.chunk_gap),
    ]
    before, after = plain.time_to_first_token.p50, speculative.time_to_first_token.p50
    if before and after and after > _LATER * before:
        notes.append(
            f"The first token takes {after / before:.1f} times as long, {_milliseconds(after)} "
            f"instead of {_milliseconds(before)} ms: the draft reads the prompt too."
        )
    return notes


def _worse_tail(plain: Distribution, speculative: Distribution) -> list[str]:
    if plain.p50 is None or speculative.p50 is None:
        return []
    word, before, after = "largest value", plain.largest, speculative.largest
    if plain.p99 and speculative.p99:
        word, before, after = "p99", plain.p99, speculative.p99
    if after <= before:
        return []
    name = plain.of.partition(": ")[2]
    worse = f"worse {word}, {_milliseconds(after)} instead of {_milliseconds(before)} ms"
    if speculative.p50 < plain.p50:
        medians = f"{_milliseconds(speculative.p50)} instead of {_milliseconds(plain.p50)} ms"
        return [f"The {name} has a better p50, {medians}, but a {worse}."]
    return [f"The {name} has a {worse}."]


def _milliseconds(seconds: float | None) -> str:
    return _digits(None if seconds is None else 1000 * seconds)


def _digits(value: float | None) -> str:
    """Three digits, more where they stand before the point."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
