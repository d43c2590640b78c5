"""How a run was measured: caveats, checks and failures in the open; rules of thumb, machine,
models, options, commands and the glossary folded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import msgspec

from draftbench.memory import format_size
from draftbench.planner.recommendation import Recommendation
from draftbench.records import ModelFacts
from draftbench.report.charts.chart import Table
from draftbench.report.html.tables import coded, folded, table
from draftbench.report.markup import Html, element, together
from draftbench.run_folder.run import Run

GLOSSARY = (
    (
        "Speculative decoding",
        "A small draft proposes k tokens; the target checks them in one pass and keeps those it "
        "agrees with. The output is the target's own, only the time changes.",
    ),
    (
        "Speed-up S",
        "Tokens per second with speculation over without. 1.5× means two thirds of the time per "
        "token; below 1× speculation makes decoding slower. “Decode” counts from the first token, "
        "“end to end” includes reading the prompt with both models.",
    ),
    (
        "Acceptance rate α",
        "How likely a drafted token is to be accepted. It belongs to the draft, the target and the "
        "traffic, not to k. It is not the counter “accepted / drafted” of serving engines, which "
        "falls as k grows.",
    ),
    (
        "Tokens per round",
        "Tokens that one round of drafting and checking adds to a response, the target's own "
        "included: 1 means the draft never helps, k + 1 that it is always right. Rounds without a "
        "draft count too; the engines' mean accepted length τ leaves them out.",
    ),
    (
        "Draft cost ratio c",
        "Time of one draft step over one target step. A draft that is right 70 % of the time is of "
        "little use at c = 0.7 and excellent at c = 0.05.",
    ),
    (
        "Predicted, measured, expected",
        "Predicted: one pass of each draft over the target's responses gives the rounds of every "
        "k, timed passes give their cost. Measured: decoded with and without speculation, timed. "
        "Expected: the prediction for all requests, corrected by what was measured on some; "
        "candidates are ranked by it.",
    ),
    (
        "Replay",
        "One pass of a draft over finished responses. It gives what each round would accept "
        "without decoding anything.",
    ),
    (
        "Intervals",
        "95 %, from resampling requests (for c: timing repeats). They say what other requests of "
        "the same traffic would change, not another machine, another day or other traffic.",
    ),
)


def method(name: str, run: Run, answer: Recommendation) -> list[Html | None]:
    """The parts in reading order; `name` is the run folder as the user called it."""
    caveats = [caveat.text for caveat in answer.caveats if not caveat.decisive]
    failures = [
        f"{each.candidate or 'target'}: {each.reason}"
        for each in answer.failures
        if not any(each.reason in caveat for caveat in caveats)
    ]
    advice = [
        element("li", each.sentence, " ", element("small", f"{each.reason} ({each.source})"))
        for each in answer.advice
    ]
    manifest = run.manifest
    machine = {
        "run": name,
        "begun": manifest.created,
        "draftbench": manifest.draftbench,
        **msgspec.structs.asdict(manifest.environment),
        "request key": manifest.key_id,
    }
    return [
        *_list("Other caveats" if answer.decisive_caveats else "Caveats", caveats),
        *_list("Checks", answer.checks),
        *_list("Failures", failures),
        folded("Rules of thumb", element("ul", *advice)) if advice else None,
        folded("Every configuration with all its figures", table(_every(answer))),
        folded("Machine and versions", _facts(machine)),
        folded("Models", table(_models(run))),
        folded(
            "Traffic and options",
            _facts(msgspec.structs.asdict(manifest.traffic)),
            _facts(msgspec.structs.asdict(manifest.question)),
        ),
        folded("Commands that repeat this", _commands(name, run, answer)),
        folded("Glossary", element("dl", *_entries(GLOSSARY), class_="terms")),
    ]


def _list(title: str, lines: Iterable[str]) -> list[Html]:
    items = [element("li", coded(line)) for line in lines]
    return [element("h3", title), element("ul", *items)] if items else []


def _every(answer: Recommendation) -> Table:
    figures = (
        ("α", "alpha"),
        ("accepted / drafted", "accepted_per_drafted"),
        ("mean accepted length τ", "mean_accepted_length"),
        ("tokens per round", "tokens_per_round"),
        ("cost ratio c", "draft_cost_ratio"),
        ("verify ratio v(k+1)", "verify_ratio"),
        ("predicted ×", "speedup_predicted"),
        ("measured ×", "speedup_measured"),
        ("expected ×", "speedup_expected"),
        ("end to end, predicted ×", "speedup_end_to_end"),
        ("end to end, expected ×", "speedup_end_to_end_expected"),
        ("τ, measured", "mean_accepted_length_measured"),
        ("accepted / drafted, measured", "accepted_per_drafted_measured"),
    )
    rows = [
        [str(each.candidate), str(each.k), *(getattr(each, field) for _, field in figures)]
        for each in answer.evaluations
    ]
    return Table(("candidate", "k", *(name for name, _ in figures)), rows)


def _models(run: Run) -> Table:
    rows = [
        [
            facts.candidate.draft if facts.candidate else "target",
            facts.quant,
            facts.dtype,
            facts.fingerprint,
            facts.runner,
            f"{facts.parameters:,}",
            _weights(facts),
            f"{facts.context_length:,}",
        ]
        for facts in run.facts
    ]
    words = ("model", "quantization", "dtype", "fingerprint", "runner")
    return Table((*words, "parameters", "weights", "context (tokens)"), rows, words=5)


def _commands(name: str, run: Run, answer: Recommendation) -> Html:
    """The sweep, and what prints the page's figures with all their digits."""
    folder = shlex.quote(name)
    asked = "" if answer.min_speedup == 1 else f" --min-speedup {answer.min_speedup:g}"
    asked += "" if answer.objective == "speedup" else f" --objective {answer.objective}"
    commands = [
        run.manifest.command,
        f"draftbench recommend {folder}{asked} --format json",
        f"draftbench acceptance {folder} --format json",
    ]
    return element("pre", *(element("code", f"{line}\n") for line in commands))


def _facts(pairs: dict[str, object]) -> Html:
    known = ((name.replace("_", " "), _words(value)) for name, value in pairs.items())
    return element("dl", *_entries(known), class_="facts")


def _entries(pairs: Iterable[tuple[str, str]]) -> list[Html]:
    return [together([element("dt", name), element("dd", words)]) for name, words in pairs]


def _words(value: object) -> str:
    if value is None or value in ((), {}):
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_words, value))
    return str(value)


def _weights(facts: ModelFacts) -> str:
    second = facts.second_layout_bytes
    text = format_size(facts.weight_bytes)
    return f"{text} + {format_size(second)} in a second layout" if second else text
