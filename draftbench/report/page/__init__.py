"""Runs → one HTML file that explains itself: no scripts, no network, light, dark and on paper.

Whatever came from a file is escaped; the policy in the head lets the page load nothing but its own
style sheet, named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from draftbench.planner.recommend import recommend
from draftbench.report.charts import drawings
from draftbench.report.figures import figures_of
from draftbench.report.markup import Html, element, together
from draftbench.report.page.decision import head
from draftbench.report.page.reading import how_to_read
from draftbench.report.page.sections import Run, Section, sections
from draftbench.report.page.side_by_side import side_by_side
from draftbench.report.terminal.recommendation import headline
from draftbench.run_folder.observed import Observed


def examine(name: str, observed: Observed, min_speedup: float = 1.0) -> Run:
    """One run with its answer and everything that is drawn of it.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    answer = recommend(observed, min_speedup=min_speedup)
    figures = figures_of(observed, answer)
    return Run(name, observed, answer, figures, drawings(answer, figures))


def page(runs: Sequence[Run]) -> str:
    """The whole file; several runs follow one another after a table that compares them."""
    style = files(__name__).joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = headline(runs[0].answer) if len(runs) == 1 else f"{len(runs)} runs side by side"
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
    several = len(runs) > 1
    articles = [_article(run, f"run-{at}-" if several else "") for at, run in enumerate(runs, 1)]
    reading = Section("reading", "How to read this", None, (how_to_read(),))
    body = element(
        "body",
        element("main", side_by_side(runs) if several else None, *articles, reading.html("")),
        element("footer", _footer(runs)),
    )
    return f"<!doctype html>\n{element('html', top, body, lang='en')}\n"


def _article(run: Run, prefix: str) -> Html:
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


def _footer(runs: Sequence[Run]) -> str:
    versions = sorted({run.observed.manifest.draftbench for run in runs})
    return f"Measured by draftbench {', '.join(versions)}. This page loads nothing from a network."
