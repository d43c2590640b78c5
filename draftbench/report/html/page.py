"""A run and its recommendation → one HTML file: no scripts, no network, readable in light, in dark,
on a phone and on paper.

Whatever came from a file is escaped. The policy in the head lets the page load nothing and use no
style but its own, which is named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from draftbench.planner.recommendation import Evaluation, Recommendation
from draftbench.report.charts import charts_of
from draftbench.report.charts.plot import Axis, Plot, values_axis
from draftbench.report.figures import Figures
from draftbench.report.html.sections import sections
from draftbench.report.markup import Html, element, together
from draftbench.report.terminal.recommendation import headline
from draftbench.run_folder.run import Run


def page(name: str, run: Run, answer: Recommendation, figures: Figures) -> str:
    """The whole file; `name` is the run folder as the user called it."""
    style = files("draftbench.report.html").joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{headline(answer)} – draftbench"),
        element("style", Html(style)),
    )
    parts = sections(name, run, answer, charts_of(answer, figures), figures)
    footer = (
        f"Measured by draftbench {run.manifest.draftbench}. This page loads nothing from a network."
    )
    main = element("main", _head(run, answer), *parts)
    body = element("body", main, element("footer", footer))
    return f"<!doctype html>\n{element('html', top, body, lang='en')}\n"


def _head(run: Run, answer: Recommendation) -> Html:
    """The decision, the one figure it rests on, and what could overturn it."""
    question = run.manifest.question
    leader = answer.leading_evaluation
    doubts = [caveat.text for caveat in answer.decisive_caveats]
    return element(
        "header",
        element(
            "p",
            element("b", "draftbench"),
            f" · target {_last(question.target)} · traffic {_last(question.traffic)} · "
            f"{answer.requests} requests",
            class_="eyebrow",
        ),
        # A large line breaks before "concurrency 4" or behind it, not inside.
        element("h1", headline(answer).replace("concurrency ", "concurrency\N{NO-BREAK SPACE}")),
        _deciding(answer, leader) if leader else element("p", _why_none(answer), class_="lead"),
        element("p", f"Provisional: {'; '.join(doubts)}.", class_="provisional")
        if doubts
        else None,
        class_=answer.decision,
    )


def _why_none(answer: Recommendation) -> str:
    if answer.decision == "do_not_speculate":
        return "No candidate keeps the limits."
    return "No candidate's speed is known."


def _deciding(answer: Recommendation, leader: Evaluation) -> Html:
    """The speed-up that decides, drawn and in words."""
    speed = answer.speedup_deciding
    sure = _confidence(answer, leader)
    if speed is None:
        return element(
            "p", "Too few requests for an interval of the speed-up. ", sure, class_="lead"
        )
    whole = "end-to-end" if answer.objective == "latency" else "decode"
    value = element(
        "data",
        f"{speed.value:.2f}×",
        value=repr(speed.value),
        data_low=repr(speed.low),
        data_high=repr(speed.high),
    )
    low, high = min(0.9, speed.low), max(1.1, answer.min_speedup, speed.high)
    asked = "" if answer.min_speedup == 1 else f"; asked: {answer.min_speedup:g}×"
    scale = values_axis(f"1× is decoding without speculation{asked}", [low, high])
    plot = Plot(scale, Axis("", 0, 1, ()), height=80, upright=True)
    plot.thresholds(answer.min_speedup)
    plot.bar(speed, 0.5, 0)
    interval = f"{speed.low:.2f}–{speed.high:.2f}"
    described = f"{speed.value:.2f}×, 95 % interval {interval}; 1× is decoding without speculation."
    return together(
        [
            element(
                "div",
                element(
                    "p",
                    value,
                    element(
                        "span", f"{whole} speed-up", element("br"), f"95 % interval {interval}"
                    ),
                    class_="figure",
                ),
                element("div", plot.svg(described), class_="strip"),
                class_="deciding",
            ),
            element("p", _rests_on(answer, leader), " ", sure, class_="lead"),
        ]
    )


def _rests_on(answer: Recommendation, leader: Evaluation) -> str:
    """What the deciding speed-up was computed from."""
    requests = "1 request" if answer.requests == 1 else f"all {answer.requests} requests"
    if not leader.requests_measured:
        return f"Predicted for {requests} from replay and timed passes; not decoded."
    if not leader.corrected:
        return (
            f"Predicted for {requests} from replay and timed passes: the "
            f"{leader.requests_measured} decoded are too few to correct it."
        )
    if leader.requests_measured >= answer.requests:
        return f"Measured by decoding {requests} with and without speculation."
    return (
        f"Predicted for {requests} and corrected by decoding {leader.requests_measured} of them "
        "with and without speculation; cross-validated: chosen on some requests, evaluated on the "
        "others."
    )


def _confidence(answer: Recommendation, leader: Evaluation) -> str:
    """How sure the decision is, or what would settle it."""
    asked, plain = f"the asked {answer.min_speedup:g}×", answer.min_speedup == 1
    name = f"{leader.candidate} at k = {leader.k}"
    if answer.decision == "inconclusive":
        whether = "pays" if plain else f"is above {asked}"
        needed = answer.requests_needed
        more = f"; about {needed} requests would settle it" if needed else ""
        return f"These requests cannot tell whether {name}, the best candidate, {whether}{more}."
    if answer.decision == "do_not_speculate":
        result = "is no faster than decoding without it" if plain else f"does not reach {asked}"
        return f"Even {name}, the best candidate, {result}."
    parts = []
    if answer.probability_best is not None:
        parts.append(f"{answer.probability_best:.0%} likely to be the best choice")
    margin = answer.break_even and answer.break_even.margin
    if margin and margin > 0:
        parts.append(f"acceptance could fall by {margin:.0%} before speculation stops paying")
    words = "; ".join(parts)
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _last(path: str) -> str:
    """A directory by its own name; hub ids and suites as they are."""
    return path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", ".", "~")) else path
