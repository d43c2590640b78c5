"""A run and its recommendation → one HTML file: no scripts, no network, readable in light, in dark,
on a phone and on paper.

`page.html` is the page, `markup.html` how it writes figures, tables and drawings; here is what both
are given. The template escapes whatever came from a file. A content security policy keeps the page
from loading anything, and from using any style but the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from draftbench.acceptance.intervals import MIN_REQUESTS
from draftbench.errors import DraftbenchError
from draftbench.export.configurations import configure
from draftbench.export.serve_plan import answers_by_engine, serve_plan
from draftbench.memory import format_size
from draftbench.planner.caveats import predictions_off
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF
from draftbench.report import answer as words
from draftbench.report.charts import Bar, bars, charts_of
from draftbench.report.plot import STYLE
from draftbench.report.text import Section, counted, numeric, printable, shown
from draftbench.run_folder.manifest import flag_of, in_words
from draftbench.run_folder.run import Run
from draftbench.safe_files import GENERATOR

_TO_DO = 3  # notes on a configuration, the most urgent first
# Longest piece of code that fits on a line of a phone.
_UNBROKEN = 30
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")
_UNBREAKABLE = re.compile(r"\bk = (?=\d)|(?<!-)\bconcurrency (?=\d)")


def page(
    name: str, run: Run, answer: Recommendation, options: DecisionOptions | None = None
) -> str:
    """The whole file; `name` is the run folder as the user called it, `options` those of the
    answer.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    question = run.manifest.question
    target, traffic = (
        # The last part of a path; hub ids and suites as they are.
        path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", ".", "~")) else path
        for path in (question.target, question.traffic)
    )
    drafts = [each for each in answer.by_candidate if each.draft != SELF]
    speed, strip = answer.speedup_deciding, None
    if speed is not None:
        asked = "" if answer.min_speedup == 1 else f"; asked: {answer.min_speedup:g}×"
        label = f"1× is decoding without speculation{asked}"
        strip = bars(label, [Bar("", speed)], answer.min_speedup)
    engines = list(_engines(run, answer, options or DecisionOptions()))
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return _template().render(
        name=name,
        run=run,
        answer=answer,
        words=words,
        charts={chart.name: chart for chart in charts_of(run, answer)},
        generator=GENERATOR,
        style=Markup(STYLE),
        style_digest=digest,
        target=target,
        traffic=traffic,
        speed=speed,
        strip=strip,
        steps=list(_steps(name, run, answer, served=any(not e["refused"] for e in engines))),
        engines=engines,
        drafts=len(drafts),
        checks_itself=len(drafts) < len(answer.by_candidate),
        faster=sum(each.clearly_faster for each in drafts),
        too_few=answer.requests < MIN_REQUESTS,
        checked=answer.prediction_error and predictions_off(answer.prediction_error),
        facts=_facts(name, run),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("draftbench", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_on_a_line,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "counted": counted,
        "parts": _parts,
        # Every second part is an interval.
        "intervals": lambda cell: re.split(r"(\([\d.]+–[\d.]+\))", shown(cell)),
        "breakable": lambda words: re.split(r"(?<=[:/])(?=\w)", words),
        "grid": _grid,
        # The words of code and what is between them, each with whether it stays on a line.
        "words": lambda text: [
            (word, len(word) <= _UNBROKEN and not word.isspace())
            for word in re.split(r"(\s+)", text)
        ],
    }
    return environment.get_template("page.html")


def _on_a_line(value: Any) -> Any:
    """Text without control characters, in which neither "k = 5" nor "concurrency 4" is broken."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _UNBREAKABLE.sub(lambda found: found[0].replace(" ", "\u00a0"), printable(value))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """A sentence in parts, each `text` or `code`: what stands in backticks, and flags."""
    quoted = text.split("`")
    for at, part in enumerate(quoted if len(quoted) % 2 else [text]):
        if at % 2:
            yield "code", part
        else:
            yield from (("code" if i % 2 else "text", w) for i, w in enumerate(_FLAG.split(part)))


def _grid(section: Section) -> dict[str, Any]:
    """A table without its column of arrows, whose row is chosen instead; and which columns are of
    words, aligned left.
    """
    arrows = int(all(row[0] in ("→", "") for row in section.rows))
    rows = [row[arrows:] for row in section.rows]
    return {
        "head": section.head[arrows:],
        "words": [not numeric(map(shown, column)) for column in zip(*rows, strict=True)],
        "rows": [
            {"cells": row, "chosen": whole[0] == "→"}
            for row, whole in zip(rows, section.rows, strict=True)
        ],
    }


def _steps(
    name: str, run: Run, answer: Recommendation, *, served: bool
) -> Iterator[dict[str, str | None]]:
    """What to do next, each step with a command where one does it; `served` is whether an engine's
    configuration follows.
    """
    settles, again = words.to_settle(answer), words.next_sweep(answer, run.manifest, name)
    if settles or again:
        said = (settles or "Measure more requests.").removeprefix("Next: ")
        said = said.removeprefix("To settle it: ")
        command = again and f"draftbench {again}"
        yield {"words": f"{said[0].upper()}{said[1:]}", "command": command}
    if answer.decision == "do_not_speculate":
        target = run.manifest.question.target
        yield {"words": "Serve the target without a draft.", "command": None}
        yield {
            "words": "Look for another draft that fits it:",
            "command": f"draftbench suggest --target {shlex.quote(target)}",
        }
    elif answer.choice is not None:
        first = "Clear up what makes the decision provisional, then serve"
        serve = first if words.provisional(answer) else "Serve"
        yield {
            "words": f"{serve} {words.named(answer.choice)}"
            + (": the configuration is below." if served else ".")
            + (f" {to_serve}" if (to_serve := words.on_engines(answer)) else ""),
            "command": None,
        }
        yield {
            "words": "Keep this acceptance as the baseline that CI compares new runs with:",
            "command": f"draftbench gate --save baseline.json {shlex.quote(name)}",
        }


def _engines(
    run: Run, answer: Recommendation, options: DecisionOptions
) -> Iterator[dict[str, Any]]:
    """The configuration of each engine that could serve the choice."""
    for engine, own in answers_by_engine(answer, run, options):
        try:
            configuration = configure(serve_plan(own, run), engine.key)
        except DraftbenchError as error:
            yield {"name": engine.name, "refused": error.message}
        else:
            to_do = configuration.to_do[:_TO_DO]
            parts = asdict(configuration) | {"pasted": configuration.pasted, "to_do": to_do}
            yield {"name": engine.name, "refused": None, **parts}


def _facts(name: str, run: Run) -> dict[str, str]:
    """How the run can be made again, and on what it was made."""
    manifest = run.manifest
    machine, traffic = manifest.environment, manifest.traffic
    models = {
        f"model {facts.candidate or 'target'}": f"{facts.dtype}, {facts.parameters:,} parameters, "
        f"{format_size(facts.weight_bytes)}, {facts.runner}, fingerprint {facts.fingerprint}"
        for facts in run.facts
    }
    threads = counted(machine.threads, "thread")
    read = f"{counted(traffic.requests, 'request')} of {counted(traffic.rows, 'row')}"
    if settled_after := manifest.effort.settled_after:
        read += f"; settled after {settled_after}, the others were not measured"
    left_out = [f"{count} left out: {reason}" for reason, count in traffic.dropped.items()]
    duplicates = [f"{counted(traffic.merged, 'duplicate')} merged"] if traffic.merged else []
    hardware = [machine.processor, machine.accelerator, machine.platform]
    # The flags on which figures depend, as they were in force.
    asked = {
        flag_of(field): in_words(value)
        for field, value in msgspec.structs.asdict(manifest.question).items()
        if value not in (None, (), "", False)
    }
    software = {"Python": machine.python, **machine.packages}
    return {
        "run": name,
        "begun": manifest.created,
        "draftbench": manifest.draftbench,
        "command": manifest.command,
        **models,
        "traffic": "; ".join([f"{read}; format: {traffic.form}", *duplicates, *left_out]),
        "machine": ", ".join([*filter(None, hardware), f"{machine.cores} cores, {threads}"]),
        "software": ", ".join(f"{package} {version}" for package, version in software.items()),
        "options, defaults included": "; ".join(
            f"{flag} {value}" for flag, value in asked.items() if flag.startswith("--")
        ),
    }
