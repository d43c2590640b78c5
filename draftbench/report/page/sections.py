"""One run's answer, figures and drawings → the sections of its report, in reading order."""

from __future__ import annotations

from dataclasses import dataclass

from draftbench.planner.recommendation import Recommendation
from draftbench.report.figures import Figures
from draftbench.report.markup import Html, element
from draftbench.report.page import tables
from draftbench.report.page.beside import beside
from draftbench.report.page.origin import origin
from draftbench.report.plots import WIDTH, Drawing, inline
from draftbench.run_folder.run import Run


@dataclass(frozen=True, eq=False)
class ExaminedRun:
    """One run as a report needs it; `name` is what the user called it."""

    name: str
    observed: Run
    answer: Recommendation
    figures: Figures
    drawings: dict[str, list[Drawing]]


@dataclass(frozen=True)
class Section:
    """A part of the page; `key` is unique within its run."""

    key: str
    title: str
    lead: str | None
    parts: tuple[Html, ...]

    def html(self, prefix: str) -> Html:
        """The section; `prefix` keeps the keys of several runs apart."""
        lead = element("p", self.lead) if self.lead else None
        return element(
            "section", element("h2", self.title), lead, *self.parts, id=prefix + self.key
        )


# Key of the drawings, heading, lead, and what is said where there is nothing to draw.
DRAWN = (
    (
        "glance",
        "The answer at a glance",
        "How much faster each draft makes decoding, and how sure that is.",
        "speed-up by candidate: no pass was timed",
    ),
    (
        "speed",
        "Speed-up against draft length",
        "Longer drafts win more tokens per round and cost more to propose and verify: every draft "
        "has a best k. All panels share one scale.",
        "speed-up against k: no pass was timed",
    ),
    (
        "economy",
        "What a draft must have",
        "A draft pays when it is accepted often enough for what it costs.",
        "acceptance against cost: no candidate has both α and c",
    ),
    (
        "positions",
        "Where in a round drafts fail",
        "Survival is what is left after i draft tokens; the hazard is each position on its own.",
        "survival by position: nothing was replayed",
    ),
    (
        "lengths",
        "Tokens accepted per round",
        "An average hides whether a draft helps a little everywhere or much in places.",
        "accepted lengths: no candidate to show",
    ),
    (
        "crossed",
        "Acceptance by segment and temperature",
        "Which part of the traffic suits the draft, and how much sampling costs it.",
        "acceptance by segment and temperature: one of the two is alike in all requests",
    ),
    (
        "segments",
        "Acceptance by segment",
        "Traffic that one draft suits badly hides in an average.",
        "acceptance by segment: the requests are of one segment (`--segment-by FIELD` names more)",
    ),
    (
        "temperatures",
        "Acceptance by temperature",
        "Unless the same requests ran at every temperature, the requests differ too.",
        "acceptance by temperature: all requests have one",
    ),
    (
        "response",
        "Along the response",
        "Where in a response a draft goes wrong says what is wrong with it.",
        "acceptance along the response: no model draft was replayed",
    ),
    (
        "load",
        "Speed-up against concurrency",
        "The more rows decode together, the less room a pass has for drafted tokens.",
        "speed-up against concurrency: only one number of active rows was timed (`--batch 1,4,16` "
        "times more)",
    ),
    (
        "prediction",
        "Prediction against measurement",
        "Every prediction is checked where it was also measured.",
        "prediction against measurement: no cell was decoded with a watch",
    ),
    (
        "times",
        "Time per output token",
        "What a user of the model notices.",
        "time per output token: the best candidate was not decoded with a watch",
    ),
    (
        "memory",
        "Memory",
        "What a draft takes from the device, beside its target.",
        "memory: the size of the models is unknown",
    ),
)


def sections(run: ExaminedRun, prefix: str) -> list[Section]:
    """All sections of one run; what was not measured has no section but a line."""
    found = []
    for key, title, lead, _ in DRAWN:
        if run.drawings[key]:
            figures = (figure(drawing, prefix) for drawing in run.drawings[key])
            aside = beside(key, run.answer, run.figures)
            both = element("div", *figures, aside, class_="figures")
            found.append(Section(key, title, lead, (both,)))
    found.insert(1 if run.drawings["glance"] else 0, _candidates(run))
    return [*found, _checks(run), *_advice(run), _origin(run)]


def _candidates(run: ExaminedRun) -> Section:
    lead = (
        "Each draft at its best k. Under a figure its 95 % interval: over requests, for c over "
        "timing repeats. α and τ come from replay. Expected is what the drafts are ranked by: the "
        "prediction for all requests, corrected by what was measured on some; a k that was not "
        "decoded beside others of its draft has none. – is unknown."
    )
    summary = element("summary", "Every draft at every k")
    more = element("details", summary, tables.every_cell(run.answer))
    return Section("candidates", "Candidates", lead, (tables.candidates(run.answer), more))


def figure(drawing: Drawing, prefix: str) -> Html:
    """A drawing with its title, sample size and how it is read; `prefix` as for `Section`."""
    return element(
        "figure",
        element("h3", drawing.title),
        element("p", drawing.sample, class_="n"),
        element("div", inline(drawing, prefix), class_="plot"),
        element("figcaption", drawing.note),
        class_="wide" if drawing.width > 1.3 * WIDTH else None,
    )


def _checks(run: ExaminedRun) -> Section:
    failures = [
        f"{f.candidate or 'target'}: {f.reason}"
        for f in run.answer.failures
        if not any(f.reason in caveat.text for caveat in run.answer.caveats)
    ]
    absent = [text for key, _, _, text in DRAWN if not run.drawings[key]]
    lists = (
        ("Checks", run.answer.checks),
        ("Caveats", [c.text for c in run.answer.caveats if not c.decisive]),
        ("Failures", failures),
        ("Not measured", absent),
    )
    parts = [
        part
        for title, lines in lists
        if lines
        for part in (
            element("h3", title),
            element("ul", *(element("li", *_coded(ln)) for ln in lines)),
        )
    ]
    return Section("checks", "Checks and caveats", None, tuple(parts))


def _advice(run: ExaminedRun) -> list[Section]:
    rules = run.answer.advice
    if not rules:
        return []
    lead = (
        "Rules of practice that fit this run, with their sources. Where they and the figures above "
        "differ, the figures are this run's own."
    )
    items = [
        element(
            "li",
            rule.sentence,
            " ",
            element("small", f"{rule.reason} ({rule.source})", class_="source"),
        )
        for rule in rules
    ]
    return [Section("advice", "Rules of thumb", lead, (element("ul", *items),))]


def _origin(run: ExaminedRun) -> Section:
    lead = (
        "The first command measures this again, the next two print the figures of this page with "
        "all their digits, the last one writes it again."
    )
    parts = origin(run.name, run.observed, run.answer)
    return Section("origin", "Where this comes from", lead, parts)


def _coded(line: str) -> list[str]:
    """A sentence with what stands in backticks as code."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return [line]
    return [element("code", part) if at % 2 else part for at, part in enumerate(parts)]
