"""A run → one HTML file that explains itself: no scripts, no network, light, dark and on paper.

Whatever came from a file is escaped; the policy in the head lets the page load nothing but its own
style sheet, named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from draftbench.planner.recommendation import Recommendation
from draftbench.report.charts import drawings
from draftbench.report.figures import figures_of
from draftbench.report.markup import Html, element, together
from draftbench.report.page.decision import head
from draftbench.report.page.reading import how_to_read
from draftbench.report.page.sections import ExaminedRun, Section, sections
from draftbench.report.terminal.recommendation import headline
from draftbench.run_folder.run import Run


def examine(name: str, observed: Run, answer: Recommendation) -> ExaminedRun:
    """One run with its answer and everything that is drawn of it.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    figures = figures_of(observed, answer)
    return ExaminedRun(name, observed, answer, figures, drawings(answer, figures))


def page(run: ExaminedRun) -> str:
    """The whole file."""
    style = files(__name__).joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = headline(run.answer)
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{title} – draftbench"),
        element("style", Html(style)),
    )
    reading = Section("reading", "How to read this", None, (how_to_read(),))
    body = element(
        "body",
        element("main", _article(run, ""), reading.html("")),
        element("footer", _footer(run)),
    )
    return f"<!doctype html>\n{element('html', top, body, lang='en')}\n"


def _article(run: ExaminedRun, prefix: str) -> Html:
    parts = sections(run, prefix)
    links = [element("a", part.title, href=f"#{prefix}{part.key}") for part in parts]
    links.append(element("a", "How to read this", href="#reading"))
    nav = element("nav", together(word for link in links for word in (link, " ")))
    opening = head(run.observed.manifest, run.answer)
    return element(
        "article",
        element("header", opening, nav),
        *(part.html(prefix) for part in parts),
        id=f"{prefix}run" if prefix else None,
    )


def _footer(run: ExaminedRun) -> str:
    version = run.observed.manifest.draftbench
    return f"Measured by draftbench {version}. This page loads nothing from a network."
