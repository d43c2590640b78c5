"""The sentences and tables of a recommendation, for a terminal, Markdown and the page alike."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path

import msgspec

from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate
from draftbench.drafts.stopping import STOP_RULES
from draftbench.memory import format_size
from draftbench.planner.caveat_kinds import CaveatKind
from draftbench.planner.decide import TIMING_NOISE, faster_than
from draftbench.planner.latency import longer_tail
from draftbench.planner.options import RANKS_BY
from draftbench.planner.recommendation import (
    SETTLES,
    Configuration,
    Distribution,
    Evaluation,
    LargerSweep,
    Latency,
    Reach,
    Recommendation,
)
from draftbench.records import SELF, DraftLength
from draftbench.report.text import (
    SHELL_WORD,
    Section,
    TableCell,
    counted,
    filled,
    known_columns,
    milliseconds,
    rounded,
    sentence,
    shortened,
    with_ends,
)
from draftbench.run_folder.folder import command_of
from draftbench.run_folder.manifest import Manifest

LONGEST_NAME = 40
NOT_CHOSEN = "Not chosen, and why"
DECISIONS = {
    "speculate": "Speculate",
    "do_not_speculate": "Do not speculate",
    "inconclusive": "Inconclusive",
}
# What the columns of the table of all figures mean; only those shown are explained.
_LEGEND = {
    "": "±: half of a 95% interval over requests (of c, over repeated timings).",
    "τ": "τ: mean accepted length, the tokens that a round with a draft produces, including the "
    "target's own.",
    "tok/round": "tok/round: tokens per round, including rounds without a draft.",
    "c": "c: time of a draft step / target step.",
    "v(k+1)": "v(k+1): time of a verification pass / target step.",
    "experts": "experts: how many of a target layer's experts a verification pass reads, counted / "
    "at most, if each token chose its own independently.",
    "expected ×": "Expected: the prediction, corrected by measured decoding, whose errors its "
    "interval includes.",
    "memory": "Memory: the draft's weights and its cache for the longest request; what prompt "
    "lookup and suffix trees remember is not counted.",
}
_PREDICTED_ONLY = "Expected: the prediction; its interval includes the error that predictions have."


def headline(answer: Recommendation) -> str:
    """The decision in one line, with what was chosen or what would settle it."""
    decision = DECISIONS[answer.decision]
    if answer.arrivals:
        decision += f" at {answer.arrivals}"
    elif len(answer.by_concurrency) > 1 or answer.concurrency != 1:
        decision += f" at concurrency {answer.concurrency}"
    if answer.decision != "inconclusive" and provisional(answer):
        decision += " (provisional)"
    if answer.choice is not None:
        return f"{decision}: {named(answer.choice)}"
    if answer.speedup_without_interval is not None:
        few = "one request is" if answer.requests == 1 else f"{answer.requests} requests are"
        if answer.requests >= MIN_REQUESTS:
            few = f"{answer.requests} requests of such unequal length are"
        return f"{decision}: {few} too few to decide by"
    larger = answer.larger_sweep
    if larger and larger.enough:
        return f"{decision}: about {_size(answer, larger)} would settle it"
    return decision


def named(configuration: Configuration) -> str:
    """`draft:quant, k = 5`, with long names shortened."""
    return f"{shortened(str(configuration.candidate), LONGEST_NAME)}, {configuration.length}"


def reasons(answer: Recommendation) -> list[str]:
    """The lines below the headline: what could overturn it, the speed-up with what prefills make
    of it, what would settle it.
    """
    lines = provisional(answer), speed_up(answer), end_to_end(answer), to_settle(answer)
    return [line for line in lines if line]


def _words(flags: Mapping[str, str]) -> str:
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in flags.items())


def to_settle(answer: Recommendation) -> str | None:
    """A sentence on the sweep to run next; None if no sweep is known to settle the decision."""
    following, larger = answer.next_sweep, answer.larger_sweep
    if following is None:
        return None
    flags = _words(following.flags or {})
    match answer.settled_by:
        case "resuming":
            return "Next: repeat the sweep's own command, which resumes it."
        case "quiet":
            return "Next: the same sweep on a quiet machine, in another --out."
        case "baseline":
            return "Next: the same sweep with --baseline-server URL, in another --out."
        case "timing":
            return f"Next: time and decode the drafts, by the same sweep with {flags}."
        case "decoding" | "every-k":
            return f"Next: decode it, by the same sweep with {flags}."
        case "load":
            return f"Next: a sweep that measures concurrency {answer.concurrency}."
    if larger is None:
        return f"Next: the same sweep with {flags or 'a larger --sample'}, in another --out."
    again, more = f"{flags}, in another --out", ""
    if larger.distinct is not None:
        distinct = counted(larger.distinct, "distinct request")
        more = f"; it needs more traffic than these {distinct}"
    if larger.enough:
        return f"To settle it: a sweep with {again}{more}."
    # Rounded up it would seem to reach what no size does.
    chance = f"{min(larger.chance, SETTLES - 0.01):.0%} of such sweeps would"
    far = f"no realistic sample size reaches {SETTLES:.0%}"
    return f"Perhaps {_size(answer, larger)} settle it ({again}{more}): {chance}; {far}."


def next_sweep(answer: Recommendation, manifest: Manifest, run: str) -> str | None:
    """The words after `draftbench` of the sweep to run next; None if none is advised, if it needs
    more traffic or another server, or if values of the last one's command were deleted. `run` is
    the run's folder.
    """
    following = answer.next_sweep
    _, *words = SHELL_WORD.findall(command_of(manifest, Path(run)) or "hidden")
    if following is None or not following.advised or following.flags is None:
        return None
    if words[:1] != ["sweep"]:
        return None
    flags = {**({"--out": run} if following.resumes else {}), **following.flags}
    kept: list[str] = []
    replaced = (*flags, "--out", "--output", "-o")
    for at, word in enumerate(words):
        value_of = words[at - 1] if at and "=" not in words[at - 1] else ""
        if word.partition("=")[0] not in replaced and value_of not in replaced:
            kept.append(word)
    return " ".join([*kept, _words(flags)]).rstrip()


def _size(answer: Recommendation, larger: LargerSweep) -> str:
    size = counted(larger.requests, "request")
    if larger.processes > 1:
        size += f" in {larger.processes} {'starts' if answer.engine else 'processes'}"
    return size


def provisional(answer: Recommendation) -> str | None:
    """Why a longer or quieter run could change the decision; None if nothing suggests that."""
    if not (answer.provisional and answer.leader):
        return None
    return f"Provisional: {answer.provisional} ({explained_by(answer.doubts)})."


def explained_by(kinds: Sequence[CaveatKind]) -> str:
    """The command that explains these caveats."""
    return f"`draftbench explain {' '.join(kinds)}`"


def speed_up(answer: Recommendation) -> str:
    """The deciding speed-up with its interval and what it rests on, or why none is known."""
    leader, deciding = answer.leading_evaluation, answer.speedup_deciding
    if leader is None:
        unknown = [caveat.text for caveat in answer.caveats if caveat.kind == "no-speed"]
        text = unknown[0] if unknown else "no candidate's speed is known"
        return sentence(text)
    if deciding is None:
        return (
            f"Too few requests for an interval; so far {answer.speedup_without_interval:.2f}× with "
            f"{named(leader.configuration)}. What they accepted is below."
        )
    subject = "Speed-up" if answer.choice else f"Best: {named(leader.configuration)},"
    interval = f"95% interval {deciding.low:.2f}–{deciding.high:.2f}"
    return f"{subject} {deciding.value:.2f}× ({interval}), {basis(answer, leader)}"


def end_to_end(answer: Recommendation) -> str | None:
    """That requests get slower though decoding gets faster; None if not so, or if that decided."""
    leader = answer.leading_evaluation
    if answer.choice is None or leader is None or answer.prefills_counted:
        return None
    return leader.slower_with_prefills and sentence(leader.slower_with_prefills)


def basis(answer: Recommendation, leader: Evaluation) -> str:
    """What the deciding speed-up rests on, the required minimum, and whether another draft may be
    as good.
    """
    here = next(at for at in answer.by_concurrency if at.concurrency == answer.concurrency)
    decoded, replayed = leader.requests_measured, leader.requests or answer.requests
    requests = counted(replayed, "request")
    if not decoded:
        rests_on = f"predicted for {requests}"
    elif not leader.corrected:
        rests_on = f"predicted for {requests} ({decoded} decoded: too few to correct it)"
    else:
        rests_on = f"{requests}, {'all' if decoded == replayed else decoded} decoded"
    if answer.costs_from:
        rests_on += f" with costs of {answer.costs_from}"
        if answer.passes_given:
            given = ", ".join(map(str, answer.passes_given))
            rests_on += f" (interpolated between passes over {given} tokens)"
    elif answer.engine:
        rests_on += f" in {answer.engine}"
    if here.between:
        low, high = here.between
        costs = "" if answer.costs_from else "costs "
        rests_on += f", {costs}interpolated between concurrency {low} and {high}"
    included = "included" if answer.prefills_counted else "excluded"
    asked = "" if answer.min_speedup == 1 else f"; {answer.min_speedup:g}× is asked for"
    if answer.decision == "inconclusive":
        asked += (
            f"; the interval reaches below {faster_than(answer.min_speedup):.2f}× "
            f"({answer.min_speedup:g}× and {TIMING_NOISE:.0%} for timing noise)"
        )
    tie = ""
    if answer.toss_up and answer.runner_up:
        tie = f"; {named(answer.runner_up)} may be as fast"
    return f"prefill {included}; {rests_on}{asked}{tie}"


def lead(answer: Recommendation) -> str:
    """What the deciding figure rests on, and how sure it is."""
    leader = answer.leading_evaluation
    if leader is None or answer.speedup_deciding is None:
        return speed_up(answer)
    best = "" if answer.choice else f"best: {named(leader.configuration)}, "
    return " ".join([sentence(best + basis(answer, leader)), *certainty(answer)])


def certainty(answer: Recommendation) -> list[str]:
    """How likely the choice is the best, what it was ranked by, and which limits are kept."""
    notes = []
    if answer.probability_best is not None and answer.expected_regret is not None:
        sure = answer.probability_best
        likely = f"{sure:.0%}" if sure < 0.995 else "Over 99%"
        notes.append(
            f"{likely} likely to be the best choice; on average {answer.expected_regret:.1%} "
            "slower than the best."
        )
    if answer.objective != "speedup":
        notes.append(f"Ranked by {RANKS_BY[answer.objective]}.")
    return [*notes, *limits_kept(answer)]


def limits_kept(answer: Recommendation) -> list[str]:
    """The shares of requests within the limits of --slo, without and with speculation."""
    if answer.slo_kept is None:
        return []
    asked = msgspec.structs.asdict(answer.slo_kept.slo)
    limits = ", ".join(f"{k} ≤ {milliseconds(v)} ms" for k, v in asked.items() if v is not None)
    sides = (("without", answer.slo_kept.plain), ("with", answer.slo_kept.speculative))
    shares = [
        f"{share.value:.0%} ({share.low:.0%}–{share.high:.0%}) {word} speculation"
        for word, share in sides
        if share is not None
    ]
    served = f"Requests in {answer.engine}" if answer.costs_from else "Requests"
    return [f"{served} with {limits}: {', '.join(shares) or 'none was served'}."]


def candidates(
    answer: Recommendation,
    longest: int = 200,
    without: Collection[str] = (),
    most: int | None = None,
) -> Section:
    """The table of the first screen: each candidate at its best k, the first `most` of them. Names
    are cut at `longest` characters, and the columns named in `without` are left out.
    """
    evaluations = answer.by_candidate[:most]
    starred = any(answer.ranked_by(each) and not each.corrected for each in evaluations)

    def speed(each: Evaluation) -> TableCell:
        ranked = answer.ranked_by(each)
        mark = "*" if not each.corrected else " " if starred else ""
        return (ranked, mark) if ranked else None

    def or_alone(name: str) -> Callable[[Evaluation], TableCell]:
        def figure(each: Evaluation) -> TableCell:
            alone: float | None = getattr(each, f"{name}_without_interval")
            known: Estimate | None = getattr(each, name)
            return known if alone is None else f"{alone:.2f}"

        return figure

    head, rows = _best_of_each(
        answer,
        evaluations,
        {
            "speed-up ×": speed,
            "α": or_alone("alpha"),
            "tok/round": or_alone("tokens_per_round"),
            "c": attrgetter("draft_cost_ratio"),
        },
        longest,
        without,
    )
    alone = any(each.tokens_per_round_without_interval is not None for each in evaluations)
    # A head, or prompt lookup: what it proposes depends on where a round began.
    without_alpha = any(each.replayed and or_alone("alpha")(each) is None for each in evaluations)
    grammars = any(caveat.kind == "structured-output" for caveat in answer.caveats)
    stops = {each.stop.kind: each.stop for each in evaluations if each.stop}
    rules = [
        f"{kind} {stop.threshold:g}: {STOP_RULES[kind].at(stop.threshold)}"
        for kind, stop in stops.items()
    ]
    meanings = {
        "α": "α acceptance rate"
        + " (draft models only)" * without_alpha
        + ", replayed without grammars" * grammars,
        "tok/round": "tok/round over all rounds",
        "c": "c draft/target step",
    }
    legend = [*rules, *(words for column, words in meanings.items() if column in head)]
    few = any(each.requests_measured and not each.corrected for each in evaluations)
    starred_as = "* predicted" if answer.costs_from else "* not decoded"
    legend += [starred_as + ", or too few requests were" * few] if starred else []
    legend += ["no interval: too few requests"] if alone else []
    legend += [
        f"{named(each.configuration)} was measured at {with_ends(each.speedup_measured, '×')}: "
        "above is what all timings together suggest"
        for each in evaluations
        if each.measured_apart and each.speedup_measured and answer.costs_from is None
    ]
    if any(each.draft == SELF and each.alpha for each in evaluations):
        at = answer.control_below_one
        legend.append("self: the target drafts" + f", α < 1 at {at}" * (at is not None))
    return Section("", head, rows, ["; ".join(legend)])


def _best_of_each(
    answer: Recommendation,
    evaluations: Sequence[Evaluation],
    figures: Mapping[str, Callable[[Evaluation], TableCell]],
    longest: int = 200,
    without: Collection[str] = (),
) -> tuple[list[str], list[list[TableCell]]]:
    """Head and rows of a table with a row for each candidate, an arrow before the choice; without
    the columns named in `without` and those in which nothing is known. A candidate without a best k
    has α alone.
    """
    figures = {name: of for name, of in figures.items() if name not in without}
    rows: list[list[TableCell]] = []
    for each in evaluations:
        arrow = "→" if each.configuration == answer.choice else ""
        name, any_k = shortened(str(each.candidate), longest), each.k_is_a_placeholder
        k = "–" if any_k else each.length.short
        shown = [None if any_k and head != "α" else of(each) for head, of in figures.items()]
        memory = None
        if each.memory_bytes is not None and "memory" not in without:
            memory = format_size(each.memory_bytes)
        rows.append([arrow, name, k, *shown, memory])
    return known_columns(["", "draft", "k", *figures, "memory"], rows)


def every_section(answer: Recommendation) -> list[Section]:
    """What `recommend --all` prints below the headline, without sections that would be empty."""

    def experts(each: Evaluation) -> str | None:
        read, most = each.experts_read, each.experts_read_at_most
        return None if read is None or most is None else f"{read:.3g} / {most:.3g}"

    figures: dict[str, Callable[[Evaluation], TableCell]] = {
        "α": attrgetter("alpha"),
        "τ": attrgetter("mean_accepted_length"),
        "tok/round": attrgetter("tokens_per_round"),
        "c": attrgetter("draft_cost_ratio"),
        "v(k+1)": attrgetter("verify_ratio"),
        "experts": experts,
        "predicted ×": attrgetter("speedup_predicted"),
        "measured ×": attrgetter("speedup_measured"),
        "expected ×": attrgetter("speedup_expected"),
    }
    head, rows = _best_of_each(answer, answer.by_candidate, figures)
    legend = " ".join(
        _PREDICTED_ONLY if column == "expected ×" and answer.costs_from else meaning
        for column, meaning in _LEGEND.items()
        if column in head
    )
    halves: list[list[TableCell]] = []
    for each in answer.by_candidate:
        if (parts := each.interval_from) is not None:
            errors = (parts.requests, parts.cells, parts.undecoded)
            shown = [f"±{math.expm1(half):.0%}" if half else None for half in errors]
            halves.append([str(each.candidate), each.length.short, *shown])
    names = ("draft", "k", "requests", "timing noise", "extrapolation")
    of_intervals = (
        "Half-width of the 95% interval from this cause alone. Timing noise: scatter from one run "
        "to the next. Requests: includes the scatter of single passes, the ± of c and v."
    )
    by_load = loads(answer)
    if len(answer.schedule) > 1 and answer.leader:
        by_load = replace(by_load, notes=[*by_load.notes, crossover(answer)])
    caveats = [f"{caveat.kind}: {caveat.text}" for caveat in answer.caveats]
    kinds = list(dict.fromkeys(caveat.kind for caveat in answer.caveats))
    caveats += [f"What each means, and what to do: {explained_by(kinds)}"] if caveats else []
    sections = (
        speed_ups(answer),
        Section("Candidates at their best k", head, rows, [legend], names=3),
        Section(
            "Where the intervals come from", *known_columns(names, halves), [of_intervals], names=2
        ),
        other_ks(answer),
        by_load,
        by_context(answer),
        Section(NOT_CHOSEN, notes=losers(answer)),
        Section("Not measured", notes=failures(answer)),
        Section("Checks", notes=answer.checks),
        headroom(answer),
        latency(answer.latency, answer.engine, answer.arrivals) if answer.latency else Section(""),
        Section("Caveats", notes=caveats),
    )
    return filled(sections)


def other_ks(answer: Recommendation) -> Section:
    """What is predicted at the k's at which a running server was not started."""
    rows: list[list[TableCell]] = [
        [str(each.candidate), str(each.k), each.tokens_per_round, each.speedup_expected]
        for each in answer.evaluations
        if each.not_run and each.speedup_expected
    ]
    note = "Predicted from the k that ran: the decision is on that one alone."
    head = ["draft", "k", "tok/round", "expected ×"]
    return Section("Other k's, which no server ran", head, rows, [note] if rows else [], names=2)


def speed_ups(answer: Recommendation) -> Section:
    """Every speed-up of the leader with what it covers, and how sure the decision is."""
    leader = answer.leading_evaluation
    if leader is None:
        return Section("Speed-up of the best")
    measured = f"{counted(leader.requests_measured, 'request')} decoded"
    error = leader.prediction_error
    # A smaller error would be printed as 0.0%.
    if error is not None and abs(error) >= 0.0005:
        measured += f"; the prediction for them is {abs(error):.1%} "
        measured += "higher" if error > 0 else "lower"
    requests = counted(answer.requests, "request")
    source = "the rounds of other starts" if answer.engine else "pass timings"
    corrected = "the prediction, corrected by measured times"
    if answer.costs_from:
        source = "the costs given"
        corrected = "the prediction; the interval includes the error that predictions have"
    if leader.replayed:
        source = f"replay and {source}"
    if leader.speedup_predicted is None:
        corrected = "as measured; the interval includes the uncertainty of times"
    drawn = leader.drawn_to_others or 0.0
    if abs(drawn) >= TIMING_NOISE / 2:
        corrected += (
            f", then {'lowered' if drawn < 0 else 'raised'} {abs(drawn):.0%}: drafts whose "
        )
        corrected += "intervals overlap are drawn together, since the best may only be lucky"
    rows = [
        ("deciding", answer.speedup_deciding, "used for the decision"),
        ("expected", leader.speedup_expected, corrected),
        ("predicted", leader.speedup_predicted, f"{requests}, from {source}"),
        ("measured", leader.speedup_measured, measured),
        ("expected, end to end", leader.speedup_end_to_end_expected, "prefills included"),
        ("predicted, end to end", leader.speedup_end_to_end, "prefills included"),
    ]
    known = [
        [name, with_ends(value, "×"), covers] for name, value, covers in rows if value is not None
    ]
    notes = [*certainty(answer), *filter(None, [on_engines(answer)])]
    return Section("Every speed-up of the best", ("", "×", ""), known, notes)


def better_draft(answer: Recommendation) -> str | None:
    """What a trained draft must reach to become the answer, or that none can."""
    if (better := answer.better_draft) is None:
        return None
    if (nearest := better.nearest) is None:
        alone = " a draft alone" if better.behind_lookup else ""
        perhaps = ", behind prompt lookup perhaps more" if better.behind_lookup else ""
        return (
            f"No training helps{alone}: a perfect draft of these costs would reach "
            f"{better.most:.2f}×{perhaps}."
        )
    name = shortened(str(nearest.candidate), LONGEST_NAME)
    verb = "win" if nearest.best_of_others > answer.min_speedup else "pay off"
    now = "" if nearest.alpha is None else f" (now {nearest.alpha:.2f})"
    return (
        f"Better drafts: to {verb}, one as cheap as {name} needs {_needed(nearest.to_win)}{now}; "
        f"at best it reaches {nearest.most.speedup:.2f}×."
    )


def _needed(reach: Reach | None) -> str:
    if reach is None:
        return "never"
    if reach.alpha is None:
        return f"{reach.tokens_per_round:.2f} tok/round at k = {reach.k}"
    return f"α {reach.alpha:.2f}"


def headroom(answer: Recommendation) -> Section:
    """What better drafts of the same costs would bring."""
    rows: list[list[TableCell]] = [
        [
            str(each.candidate),
            None if each.alpha is None else f"{each.alpha:.2f}",
            f"{each.speedup:.2f}",
            _needed(each.to_pay),
            _needed(each.to_win),
            f"{each.most.speedup:.2f} (k = {each.most.k})",
        ]
        for each in answer.headroom
    ]
    names = ("draft", "α now", "× now", "breaks even at", "beats the others at", "ceiling ×")
    head, known = known_columns(names, rows)
    most = "every drafted token were accepted"
    if answer.ceiling_alpha is not None:
        most = f"its α were that of the target's own greedy draft, {answer.ceiling_alpha:.2f}"
    note = (
        "For a draft of the same cost. × now is at its fastest k; the other tables show the "
        f"smallest k that is about as fast. Ceiling: if {most}."
    )
    return Section("What a better draft would bring", head, known, [note] if known else [])


def loads(answer: Recommendation) -> Section:
    """The answer at each concurrency; empty if only one request at a time was asked about."""
    title = "By concurrency"
    only_alone = [at.concurrency for at in answer.by_concurrency] == [1]
    if answer.arrivals or (only_alone and answer.objective == "speedup"):
        return Section(title)
    dollars = any(at.tokens_per_dollar_plain is not None for at in answer.by_concurrency)
    rate = "tokens/$" if dollars else "tokens/s"
    notes = [
        f"Without → with speculation, by the expected speed-up. {rate}: of all requests together"
        f"{'' if dollars else ' while they decode'}; ms/token: of one request, prefills included "
        "where they were timed."
    ]
    rows: list[list[TableCell]] = []
    for at in answer.by_concurrency:
        best = None if at.leader is None else named(at.choice or at.leader)
        words = "costs unknown" if at.decision is None else DECISIONS[at.decision].lower()
        if at.decision == "speculate":
            words = best or "–"
        elif at.decision and best:
            words += f" (best: {best})"
        rates = (at.tokens_per_second_plain, at.tokens_per_second)
        if dollars:
            rates = (at.tokens_per_dollar_plain, at.tokens_per_dollar)
        pace = " → ".join(map(rounded, rates)) if any(rates) else None
        waits = (at.seconds_per_token_plain, at.seconds_per_token)
        wait = " → ".join(map(milliseconds, waits)) if any(waits) else None
        speed = (at.speedup_deciding, "") if at.speedup_deciding else None
        rows.append([str(at.concurrency), words, speed, pace, wait])
        if at.costs:
            unknown = "unknown; " if at.decision is None else "costs "
            notes.append(f"Concurrency {at.concurrency}: {unknown}{at.costs}.")
    steps = schedule(answer)
    notes += [steps] if steps else []
    head = ["concurrency", "answer", "speed-up ×", f"{rate} without → with", "ms/token"]
    return Section(title, head, rows, notes)


def contexts(answer: Recommendation) -> str | None:
    """What the leader brings by the length of the context; None where all are in one range."""
    speeds = [
        f"{at.speedup_predicted.value:.2f}× ({at.contexts})"
        for at in answer.by_context
        if at.speedup_predicted
    ]
    return f"By tokens of context, predicted: {', '.join(speeds)}." if len(speeds) > 1 else None


def by_context(answer: Recommendation) -> Section:
    """The leader's figures by the length of the context; empty where all are in one range."""
    title = "By context"
    if answer.leader is None or len(answer.by_context) < 2:
        return Section(title)
    head = ["context", "mean", "requests", "tok/round", "c", "v(k+1)", "predicted ×"]
    rows: list[list[TableCell]] = [
        [
            *(at.contexts, f"{at.mean:,.0f}", str(at.requests), f"{at.tokens_per_round:.2f}"),
            *(at.draft_cost_ratio, at.verify_ratio, at.speedup_predicted),
        ]
        for at in answer.by_context
    ]
    notes = [
        f"{named(answer.leader)}, on the requests of each range. Context: tokens before the one "
        "that is decoded, half-way through a response."
    ]
    return Section(title, head, rows, notes)


def schedule(answer: Recommendation) -> str | None:
    """The best k of the leader's draft by concurrency, and where another draft is better; None if
    one k is best everywhere.
    """
    if len(answer.schedule) < 2 or answer.leader is None:
        return None
    by_length = groupby(answer.schedule, key=lambda entry: (entry.k, entry.stop))
    firsts = [next(entries) for _, entries in by_length]
    if len(firsts) < 2:
        return None
    name = shortened(str(answer.leader.candidate), LONGEST_NAME)
    ks = [
        "inconclusive"
        if at.k is None
        else DraftLength(at.k, at.stop).short
        if at.k
        else "no speculation"
        for at in firsts
    ]
    ranges = [
        f"at {'–'.join(map(str, dict.fromkeys((at.concurrency, after.concurrency - 1))))}"
        for at, after in pairwise(firsts)
    ]
    ranges.append(f"from {firsts[-1].concurrency}")
    others = [
        f"at {at.concurrency}, {shortened(str(at.choice.candidate), LONGEST_NAME)} with "
        f"{at.choice.length} is faster"
        for at in answer.by_concurrency
        if at.choice and at.choice.candidate != answer.leader.candidate
    ]
    steps = "; ".join(f"{k} {loads}" for k, loads in zip(ks, ranges, strict=True))
    but = sentence(f"{'; '.join(others)}, but an engine serves one draft")
    return f"Best k for {name} by concurrency: {steps}." + f" ({but})" * bool(others)


def unmeasured(answer: Recommendation) -> str | None:
    """The loads that were asked about without a known cost; None if there are none, or if nothing
    is known about any load.
    """
    if answer.leader is None:
        return None
    unknown = [str(at.concurrency) for at in answer.by_concurrency if at.decision is None]
    return f"Unknown at concurrency {', '.join(unknown)}: not measured." if unknown else None


def crossover(answer: Recommendation) -> str:
    """Up to how many concurrent requests the leader's draft pays off."""
    limit, between = answer.crossover, answer.crossover_between
    draft = "Speculation"
    if answer.leader is not None:
        draft = shortened(str(answer.leader.candidate), LONGEST_NAME)
    if limit == 0:
        return f"{draft} does not clearly pay off at any timed concurrency."
    ranges = [f"{a}" if a == b else f"{a} to {b}" for a, b in answer.crossover_gaps]
    gaps = f", not clearly at {' and '.join(ranges)}" if ranges else ""
    if limit is None:
        return f"{draft} pays off at the largest timed concurrency too{gaps}."
    if between is None:
        return f"{draft} pays off up to {counted(limit, 'concurrent request')}{gaps}."
    how = f"interpolated between {between[0]} and {between[1]}"
    return f"{draft} pays off up to about {limit} concurrent requests ({how}){gaps}."


def stopping(answer: Recommendation) -> str | None:
    """The rule by which the choice stops a round and what a fixed k brings, or that no rule brings
    more; None if no rule could be followed.
    """
    if (found := answer.stopping) is None or answer.leader is None:
        return None
    fixed = f"{found.fixed.length}, {found.speedup_fixed:.2f}×"
    if (stop := answer.leader.stop) is None:
        best = f"{found.rule.length}: {found.speedup_rule:.2f}×"
        return f"A fixed k is as good as stopping where the draft is unsure (best: {best})."
    follows = STOP_RULES[stop.kind].engine or "no engine"
    return f"The best fixed k: {fixed}; {follows} stops a draft by the rule."


def on_engines(answer: Recommendation) -> str | None:
    """What each engine can do of it; None unless the choice stops a draft by a rule."""
    parts = []
    for at in answer.on_engines if answer.choice else ():
        best = at.leader and at.speedup and f"{named(at.leader)}, {at.speedup:.2f}×"
        if at.decision != "speculate":
            best = DECISIONS[at.decision].lower() + f" (best: {best})" * bool(best)
        parts.append(f"{at.engine or 'other engines, at a fixed k'}: {best}")
    return sentence(f"To serve it: {'; '.join(parts)}") if parts else None


def over_limits(answer: Recommendation) -> str | None:
    """The candidates over the limits that the user set; None if all keep them."""
    over = [each.candidate for each in answer.by_candidate if each.breaks]
    names = [shortened(str(candidate), LONGEST_NAME) for candidate in over]
    return f"Over the limits that you set: {', '.join(names)}." if names else None


def runner_up(answer: Recommendation) -> str | None:
    """Why the next best draft was not chosen; None without one, or with too few requests."""
    if answer.runner_up is None or answer.speedup_deciding is None:
        return None
    second, name = answer.evaluation_of(answer.runner_up), named(answer.runner_up)
    if answer.only_one_pays and (speed := answer.ranked_by(second)):
        best = f"{name}: {speed.value:.2f}×"
        return f"No other draft is faster than decoding without one (best: {best})."
    return f"Runner-up: {name}, {second.reason}." if second.reason else None


def losers(answer: Recommendation) -> list[str]:
    """Why each other candidate was not chosen."""
    return [
        f"{each.candidate}{'' if each.k_is_a_placeholder else f', {each.length}'}: {each.reason}"
        for each in answer.by_candidate
        if each.reason
    ]


def failures(answer: Recommendation) -> list[str]:
    """What could not be measured."""
    return [f"{failure.candidate or 'target'}: {failure.reason}" for failure in answer.failures]


# The fields of `Side`.
WAITS = {
    "time_per_output_token": "time per output token",
    "chunk_gap": "gap between chunks",
    "time_to_first_token": "time to first token",
}


def latency(waits: Latency, engine: str | None = None, arrivals: str | None = None) -> Section:
    """Percentiles of waits in milliseconds, without and with speculation, and which got worse."""
    covered = "Queueing and prefill of other requests are not included."
    if engine:
        covered = f"Timed by the client of {engine}, so queueing and other prefills are included."
    rows, worse, unknown = list[list[TableCell]](), [], ""
    for field, name in WAITS.items():
        before: Distribution | None = getattr(waits.plain, field)
        after: Distribution | None = getattr(waits.speculative, field)
        if before is None or after is None:
            unknown = f" Gaps between chunks are unknown: {engine} does not report its rounds."
            continue
        for first, word, side in ((name, "without", before), ("", "with", after)):
            values = (side.p50, side.p90, side.p99, side.largest)
            rows.append([first, word, str(side.values), *map(milliseconds, values)])
        if longer := longer_tail(before, after):
            end, was, now = longer
            worse.append(f"{name}, {end} {milliseconds(now)} instead of {milliseconds(was)} ms")
    load = f"at {arrivals}" if arrivals else f"concurrency {waits.concurrency}"
    notes = [
        f"Milliseconds; {waits.configuration}, {load}. A chunk is what one round delivers. "
        f"{covered}{unknown}"
    ]
    notes += [f"Worse with speculation: {'; '.join(worse)}."] if worse else []
    head = ["", "speculation", "n", "p50", "p90", "p99", "max"]
    return Section("Latency, measured", head, rows, notes)
