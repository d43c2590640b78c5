"""A run and its recommendation → one HTML file: no scripts, no network, readable in light, in dark,
on a phone and on paper.

At its head are the decision and one figure, then come five sections, each a sentence, a drawing and
a table. Whatever came from a file is escaped. A content security policy keeps the page from loading
anything, and from using any style but the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec

from draftbench.acceptance.breakdown import GROUPINGS
from draftbench.acceptance.intervals import MIN_REQUESTS
from draftbench.memory import format_size
from draftbench.planner.caveats import predictions_off
from draftbench.planner.recommendation import Evaluation, Recommendation
from draftbench.records import SELF
from draftbench.report.answer import (
    advice,
    basis,
    candidates,
    certainty,
    crossover,
    failures,
    headline,
    loads,
    losers,
    named,
    provisional,
    speed_up,
    speed_ups,
)
from draftbench.report.charts import Bar, Chart, bars, charts_of
from draftbench.report.markup import Html, coded, data, element, folded, items, table
from draftbench.report.plot import STYLE
from draftbench.report.terminal.text import Section, counted, sentence
from draftbench.run_folder.run import Run
from draftbench.safe_files import GENERATOR

_ONE = "One request has no interval, so nothing is drawn."
_GLOSSARY = {
    "Speculative decoding": "A small draft proposes k tokens; the target checks them in one pass "
    "and keeps those it agrees with. The output is the target's own, only the time changes.",
    "Speed-up": "Tokens per second with speculation over without: below 1× speculation makes "
    "decoding slower. Decoding counts from the first token on, “prefills included” also "
    "reading the prompt with both models.",
    "Acceptance rate α": "How likely a drafted token is to be accepted. It belongs to the draft, "
    "the target and the traffic, not to k. It is not the counter “accepted / drafted” of serving "
    "engines, which falls as k grows.",
    "Tokens per round": "Tokens that one round of drafting and checking adds to a response, the "
    "target's own included. Rounds without a draft count too; the accepted length τ leaves them "
    "out.",
    "Predicted, measured, expected": "Predicted: one pass of each draft over the target's "
    "responses gives the rounds of every k, timed passes give their cost. Measured: decoded with "
    "and without speculation, timed. Expected: the prediction for all requests, corrected by what "
    "was measured on some; candidates are ranked by it.",
    "Intervals": "95%, from resampling requests (for c: timing repeats); those of expected "
    "speed-ups include the doubt in timing. They do not cover another machine, day or traffic.",
}


def page(name: str, run: Run, answer: Recommendation) -> str:
    """The whole file; `name` is the run folder as the user called it.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=GENERATOR),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{headline(answer)} – draftbench"),
        element("style", Html(STYLE)),
    )
    charts = charts_of(run, answer)
    sections = (
        _candidates(answer, charts),
        _draft_length(answer, charts),
        _load(answer, charts),
        _segments(charts),
        _method(name, run, answer, charts),
    )
    footer = (
        f"Measured by draftbench {run.manifest.draftbench}. This page loads nothing from a network."
    )
    body = element(
        "body",
        element("main", _head(run, answer), *sections),
        element("footer", footer),
    )
    # Neither "k = 5" nor "concurrency 4" breaks across lines.
    unbroken = re.sub(r"\bk = (?=\d)", "k\u00a0=\u00a0", body)
    unbroken = re.sub(r"(?<!-)\bconcurrency (?=\d)", "concurrency\u00a0", unbroken)
    return f"<!doctype html>\n{element('html', top, Html(unbroken), lang='en')}\n"


def _head(run: Run, answer: Recommendation) -> Html:
    """The decision, the one figure it rests on, and what could overturn it."""
    question, leader = run.manifest.question, answer.leading_evaluation
    target, traffic = (
        # The last part of a path; hub ids and suites as they are.
        path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", ".", "~")) else path
        for path in (question.target, question.traffic)
    )
    about = f" · target {target} · traffic {traffic} · {counted(answer.requests, 'request')}"
    doubts = provisional(answer)
    return element(
        "header",
        element("p", element("b", "draftbench"), about, class_="eyebrow"),
        element("h1", headline(answer)),
        _deciding(answer),
        element("p", _lead(answer, leader), class_="lead"),
        element("p", doubts, class_="provisional") if doubts else None,
        class_=answer.decision,
    )


def _lead(answer: Recommendation, leader: Evaluation | None) -> str:
    """What the figure rests on, and how sure it is."""
    if leader is None:
        return speed_up(answer)
    rests_on = basis(answer, leader)
    if answer.choice is None:
        rests_on = f"best: {named(leader.configuration)}, {rests_on}"
    if answer.speedup_deciding is None:
        rests_on += "; too few requests to decide by"
    return " ".join([sentence(rests_on), *certainty(answer)])


def _deciding(answer: Recommendation) -> Html | None:
    """The speed-up that decides, with its interval drawn."""
    speed = answer.speedup_deciding
    if speed is None:
        return None
    whole = "end-to-end" if answer.objective == "latency" else "decode"
    asked = "" if answer.min_speedup == 1 else f"; asked: {answer.min_speedup:g}×"
    scale = f"1× is decoding without speculation{asked}"
    plot = bars(scale, [Bar("", speed)], answer.min_speedup)
    interval = f"95% interval {speed.low:.2f}–{speed.high:.2f}"
    described = f"{speed.value:.2f}×, {interval}; 1× is decoding without speculation."
    words = element("span", f"{whole} speed-up", element("br"), interval)
    value = element("p", data(speed, f"{speed.value:.2f}×"), words, class_="figure")
    return element(
        "div", value, element("div", plot.svg(described), class_="strip"), class_="deciding"
    )


def _section(key: str, title: str, lead: str, *parts: Html | None) -> Html:
    return element(
        "section", element("h2", title), element("p", coded(lead), class_="lead"), *parts, id=key
    )


def _drawn(*charts: Chart | None, beside: Html | None = None) -> Html:
    """Charts side by side if the page is wide enough, or a chart next to the table given as
    `beside`.
    """
    figures = [
        element(
            "figure",
            element("h3", chart.title),
            chart.plot.svg(f"{chart.title}. {chart.caption}"),
            element("figcaption", chart.caption),
        )
        for chart in charts
        if chart is not None
    ]
    return element("div", *figures, beside, class_="charts beside" if beside else "charts")


def _titled(section: Section) -> Html:
    notes = [element("p", coded(note), class_="note") for note in section.notes]
    return element("div", table(section), *notes)


def _candidates(answer: Recommendation, charts: Mapping[str, Chart]) -> Html:
    chart, best = charts.get("speedup-by-candidate"), _titled(candidates(answer))
    every = speed_ups(answer)
    drafts = [each for each in answer.by_candidate if each.draft != SELF]
    faster = len(answer.clearly_faster)
    many = f"{faster or 'None'} of {counted(len(drafts), 'candidate')} "
    many += "are" if faster > 1 else "is"
    if len(drafts) == 1:
        many = "The one candidate is" + ("" if faster else " not")
    lead = f"{many} clearly faster than decoding without a draft."
    if chart is None:
        lead = _ONE if answer.requests < 2 else "No pass was timed, so no speed-up is known."
    return _section(
        "candidates",
        "Candidates",
        lead,
        _drawn(chart, beside=best) if chart else best,
        _folded_list("Why not the others", losers(answer)),
        folded("Every speed-up of the best", table(every)) if every.rows else None,
    )


def _draft_length(answer: Recommendation, charts: Mapping[str, Chart]) -> Html:
    rounds, speeds = charts.get("tokens-per-round-by-k"), charts.get("speedup-by-k")
    lead = "A larger k gains more tokens per round, but proposing and verifying them costs more. "
    if rounds is None:
        lead = _ONE if answer.requests < 2 else "Nothing was replayed, so acceptance is unknown."
    elif speeds is None:
        lead += "No pass was timed, so the speed-up at each k is unknown."
    numbers = folded("The numbers", table(rounds.table)) if rounds else None
    return _section("k", "Draft length k", lead, _drawn(rounds, speeds), numbers)


def _load(answer: Recommendation, charts: Mapping[str, Chart]) -> Html:
    by_load = loads(answer)
    less = "The more requests decode together, the more it costs to verify drafted tokens."
    lead = f"{less} {crossover(answer)}"
    if answer.arrivals:
        lead = (
            f"Requests came at {answer.arrivals}; {less[0].lower()}{less[1:]} Measure another pace "
            "in another run."
        )
    elif sum(level.decision is not None for level in answer.levels) < 2:
        lead = (
            f"Only concurrency {answer.concurrency} was timed; sweep with `--concurrency 1,4,16` "
            "to see how the speed-up falls under load."
        )
    chart = charts.get("speedup-by-concurrency")
    numbers = _titled(by_load) if by_load.rows else None
    times = charts.get("latency")
    waits = _drawn(times, beside=_titled(times.table)) if times else None
    if times and numbers:
        waits = folded(times.table.title, waits)
    return _section(
        "load",
        "Load and latency",
        lead,
        _drawn(chart, beside=numbers) if chart else numbers,
        waits,
    )


def _segments(charts: Mapping[str, Chart]) -> Html | None:
    chart = charts.get("tokens-per-round-by-group")
    if chart is None:
        return None
    numbers = folded("The numbers", table(chart.table))
    return _section("segments", "Segments", chart.finding, _drawn(chart), numbers)


def _why_no_segments(run: Run) -> str:
    if not run.replays:
        return "Nothing was replayed, so acceptance is unknown."
    if any(len(set(map(of, run.trajectories))) > 1 for of in GROUPINGS.values()):
        return (
            f"No segment and no temperature has the {MIN_REQUESTS} requests that an interval "
            "needs, so nothing is drawn."
        )
    return (
        "All requests belong to one segment and one temperature; sweep with `--segment-by FIELD` "
        "to split them."
    )


def _method(name: str, run: Run, answer: Recommendation, charts: Mapping[str, Chart]) -> Html:
    """The errors of predictions with caveats, checks and failures; folded: rules of thumb, how the
    run was made, and the glossary.
    """
    manifest = run.manifest
    lead = "Nothing was decoded, so the predictions are unchecked."
    if not any(each.speedup_predicted for each in answer.evaluations):
        lead = "No speed-up was predicted, so there is no prediction to check."
    elif any(each.requests_measured for each in answer.evaluations):
        lead = "What was decoded was not predicted, so the predictions are unchecked."
    if answer.prediction_error is not None:
        lead = predictions_off(answer.prediction_error)
    missing = failures(answer)
    if "tokens-per-round-by-group" not in charts:
        missing.append(_why_no_segments(run))
    lists = {
        "Caveats": [caveat.text for caveat in answer.caveats],
        "Checks": [check for check in answer.checks if check != lead],
        "Not measured": missing,
    }
    models = {
        f"model {facts.candidate or 'target'}": f"{facts.dtype}, {facts.parameters:,} parameters, "
        f"{format_size(facts.weight_bytes)}, {facts.runner}, fingerprint {facts.fingerprint}"
        for facts in run.facts
    }
    fields = {
        **msgspec.structs.asdict(manifest.environment),
        **msgspec.structs.asdict(manifest.traffic),
        **msgspec.structs.asdict(manifest.question),
    }
    facts = {
        "run": name,
        "begun": manifest.created,
        "draftbench": manifest.draftbench,
        "command": manifest.command,
        **models,
        "request key": manifest.key_id,
        **{field.replace("_", " "): _words(value) for field, value in fields.items()},
    }
    checked = charts.get("prediction-errors")
    listed = element(
        "div",
        *(
            element("div", element("h3", title), items(lines))
            for title, lines in lists.items()
            if lines
        ),
    )
    return _section(
        "method",
        "How this was measured",
        lead,
        _drawn(checked, beside=listed) if checked else listed,
        folded("The numbers", table(checked.table)) if checked else None,
        _folded_list("Rules of thumb", advice(answer)),
        folded("Command, models, machine, traffic and options", _terms(facts, "facts")),
        folded("Glossary", _terms(_GLOSSARY, "terms")),
    )


def _folded_list(title: str, lines: Sequence[str]) -> Html | None:
    return folded(title, items(lines)) if lines else None


def _terms(pairs: Mapping[str, str], kind: str) -> Html:
    entries = [(element("dt", term), element("dd", words)) for term, words in pairs.items()]
    return element("dl", *chain.from_iterable(entries), class_=kind)


def _words(value: object) -> str:
    if value is None or value in ((), {}):
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_words, value))
    return str(value)
