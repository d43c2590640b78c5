"""The page in a real browser, in both themes and at two widths.

Needs Chromium, which DRAFTBENCH_CHROMIUM names or the path has, and the dependency group `browser`.
"""

import os
import re
import shutil

import hand
import msgspec
import pytest

from draftbench.cli.recommend import render
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.report.page import page

BROWSER = os.environ.get("DRAFTBENCH_CHROMIUM") or shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path or in DRAFTBENCH_CHROMIUM"),
]
LONG = "an-organisation/a-model-with-a-very-long-name-that-goes-on-and-on-Instruct-GPTQ-Int4"
CASES = {
    "speculate": ({}, {}),
    "open": ({"min_speedup": 2.0}, {}),
    "no": ({"min_speedup": 3.0}, {}),
    "named at length": ({}, {"draft": LONG}),
}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: group `browser`")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(params=[*CASES, "one request", "untimed", "story"])
def shown(request, kept):
    """A run with its answer: the largest kept one, asked otherwise or renamed, and odd ones."""
    if request.param in CASES:
        asked, renamed = CASES[request.param]
        run = kept["qwen2.5-coder"]
        answer = recommend(run, DecisionOptions(**asked))
        if renamed:
            every = [msgspec.structs.replace(e, **renamed) for e in answer.evaluations]
            named = {
                "evaluations": tuple(every),
                "choice": msgspec.structs.replace(answer.choice, **renamed),
                "leader": msgspec.structs.replace(answer.leader, **renamed),
                "runner_up": None,
                "best_of_each": tuple(
                    msgspec.structs.replace(e, **renamed) for e in answer.best_of_each
                ),
            }
            answer = msgspec.structs.replace(answer, **named)
        return run, answer
    run = {
        "one request": lambda: hand.run(hand.one_request()),
        "untimed": lambda: hand.run(hand.untimed()),
        "story": lambda: kept["tinyllama-stories-40"],
    }[request.param]()
    return run, recommend(run)


def test_a_page_is_whole_readable_and_fits_in_a_real_browser(browser, shown, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    run, answer = shown
    file = tmp_path / "page.html"
    file.write_text(page("runs/prod", run, answer), encoding="utf-8")
    screen, _, _ = render(answer, "table", 88).partition("\n\nnext:")
    for theme in ("light", "dark"):
        for width in (1280, 390):
            tab = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=False
            )
            said = []
            tab.on("console", lambda message, said=said: said.append(message.text))
            tab.on("pageerror", lambda error, said=said: said.append(str(error)))
            tab.on("request", lambda request, said=said: said.append(request.url))
            tab.goto(file.as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            assert said == [file.as_uri()]
            wide = tab.evaluate(
                """[document.documentElement, ...document.querySelectorAll(".table, pre, svg")]
                .filter(each => each.scrollWidth > each.clientWidth).map(each => each.outerHTML)"""
            )
            assert (width, [each[:300] for each in wide]) == (width, [])
            text = tab.inner_text("body")
            # An interval is printed as ± half of it, and on the page with both ends; 0.00 is <0.01.
            figures = set(re.findall(r"(?<![±\d.])\d+(?:\.\d+)?", screen)) - {"0.00"}
            assert sorted(figure for figure in figures if figure not in text) == []
            found = axe.run(tab).response["violations"]
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
            tab.close()
