"""What a recommendation says of load and latency → tables and sentences.

Renders what the planner decided and computes nothing.
"""

from __future__ import annotations

from draftbench.planner.recommendation import (
    Configuration,
    Distribution,
    Latency,
    LoadLevel,
    Recommendation,
    Side,
)
from draftbench.report.terminal.text import figure

Table = tuple[list[str], list[list[str]]]
# From this ratio of times to the first token on it is said in a sentence.
LATE = 1.2


def at_load(answer: Recommendation) -> str:
    """Where the headline holds, if that needs saying."""
    several = len(answer.levels) > 1 or answer.concurrency != 1
    return f" at concurrency {answer.concurrency}" if several else ""


def by_concurrency(answer: Recommendation) -> Table | None:
    """A line per concurrency; None where only one at a time was asked about."""
    if not at_load(answer) and answer.objective == "speedup":
        return None
    rate, dollars = _rate(answer), _in_dollars(answer)
    head = ["concurrency", "draft", "k", "expected ×", rate, "with it", "ms/token", "with it"]
    return head, [_level(level, dollars) for level in answer.levels]


def of_load(answer: Recommendation) -> list[str]:
    """What the table of concurrencies does not say: what its units are of, the schedule, and where
    it stops paying.
    """
    if by_concurrency(answer) is None:
        return []
    lines = [
        f"{_rate(answer)}: of all rows together while they decode; ms/token: of one request, its "
        "prefills included where those were timed. Each without speculation, then with it."
    ]
    lines += [f"Concurrency {at.concurrency}: {_costs(at)}" for at in answer.levels if at.costs]
    lines += [
        f"Concurrency {at.concurrency}: inconclusive, its k stays open (–)."
        for at in answer.levels
        if at.decision == "inconclusive"
    ]
    if len(answer.schedule) < 2 or answer.leader is None:
        return lines
    ks = ", ".join(f"{step.concurrency} → {_k(step.k)}" for step in answer.schedule)
    lines.append(f"k by concurrency with {_name(answer.leader)} (0: do not speculate): {ks}.")
    if answer.crossover is None:
        lines.append("It clearly pays at the largest concurrency that was timed too.")
    elif answer.crossover == 0:
        lines.append("It clearly pays at no concurrency that was timed.")
    else:
        between = answer.crossover_between
        how = f" (interpolated between {between[0]} and {between[1]})" if between else ""
        lines.append(f"It clearly pays up to a concurrency of {answer.crossover}{how}.")
    return lines


def break_even(answer: Recommendation) -> str | None:
    """How much acceptance the leader has to spare, in one line."""
    found = answer.break_even
    if found is None:
        return None
    if found.scaling is None or found.margin is None:
        return "No scaling of its acceptance would make it break even."
    if found.margin < 0:
        return f"It would break even with {found.scaling:.2f} times its acceptance."
    return (
        f"It breaks even with {found.scaling:.2f} of its acceptance at every position: "
        f"{found.margin:.0%} may be lost."
    )


def waits(latency: Latency) -> Table:
    """Percentiles in milliseconds, without and with speculation."""
    head = ["of", "draft", "values", "p50", "p90", "p99", "max"]
    rows: list[list[str]] = []
    for field in Side.__struct_fields__:
        for word, side in (("without", latency.plain), ("with", latency.speculative)):
            one: Distribution = getattr(side, field)
            shown = [_ms(value) for value in (one.p50, one.p90, one.p99, one.largest)]
            rows.append(["" if rows and word == "with" else one.of, word, str(one.values), *shown])
    return head, rows


def of_waits(latency: Latency) -> list[str]:
    """Sentences on tails, and on a better median that comes with a worse one."""
    pick = latency.configuration
    lines = [
        f"Milliseconds, {_name(pick)} at k = {latency.k}, concurrency {latency.concurrency}; a "
        "chunk is what one round delivers. Queueing and the prompts of others are not in it.",
        f"A request's time per output token, {latency.p99_ratio_of}: {latency.p99_ratio:.2f} times "
        "that without speculation.",
    ]
    sides = latency.plain, latency.speculative
    lines += _burstier(*(side.time_per_output_token for side in sides))
    lines += _burstier(*(side.chunk_gap for side in sides))
    first = [side.time_to_first_token for side in sides]
    if first[0].p50 and first[1].p50 and first[1].p50 > LATE * first[0].p50:
        lines.append(
            f"The first token takes {first[1].p50 / first[0].p50:.1f} times as long, "
            f"{_ms(first[1].p50)} against {_ms(first[0].p50)} ms: the draft reads the prompt too."
        )
    return lines


def _burstier(plain: Distribution, speculative: Distribution) -> list[str]:
    if plain.p50 is None or speculative.p50 is None:
        return []
    whole = plain.p99 is not None and speculative.p99 is not None
    word, before, after = "largest value", plain.largest, speculative.largest
    if whole and plain.p99 and speculative.p99:
        word, before, after = "p99", plain.p99, speculative.p99
    if after <= before:
        return []
    name = plain.of.partition(": ")[2]
    worse = f"{word}, {_ms(after)} against {_ms(before)} ms"
    if speculative.p50 < plain.p50:
        better = f"p50, {_ms(speculative.p50)} against {_ms(plain.p50)} ms"
        return [f"The {name} has a better {better}, but a worse {worse}."]
    return [f"The {name} has a worse {worse}."]


def _in_dollars(answer: Recommendation) -> bool:
    return any(level.tokens_per_dollar_plain is not None for level in answer.levels)


def _rate(answer: Recommendation) -> str:
    return "tokens/$" if _in_dollars(answer) else "tokens/s"


def _level(level: LoadLevel, dollars: bool) -> list[str]:
    pick = level.choice or level.leader
    rates = [level.tokens_per_second_plain, level.tokens_per_second]
    if dollars:
        rates = [level.tokens_per_dollar_plain, level.tokens_per_dollar]
    return [
        str(level.concurrency),
        _name(pick) if pick else "–",
        _k(level.k),
        figure(level.speedup_expected),
        *map(_digits, rates),
        *map(_ms, (level.seconds_per_token_plain, level.seconds_per_token)),
    ]


def _costs(level: LoadLevel) -> str:
    if level.decision is None:
        return f"unknown; {level.costs}."
    return f"costs {level.costs}."


def _k(k: int | None) -> str:
    return "–" if k is None else str(k)


def _name(pick: Configuration) -> str:
    return str(pick.candidate)


def _ms(seconds: float | None) -> str:
    return _digits(None if seconds is None else 1000 * seconds)


def _digits(value: float | None) -> str:
    """Three digits, more where they stand before the point."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
