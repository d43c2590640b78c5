"""A run → what stands at the end of its report: commands that repeat it, its machine, fingerprints
of its models and traffic, the whole question.
"""

from __future__ import annotations

import shlex

import msgspec

from draftbench.planner.recommendation import Recommendation
from draftbench.report.markup import Html, element, together
from draftbench.report.page import tables
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.run import Run


def origin(name: str, observed: Run, answer: Recommendation) -> tuple[Html, ...]:
    """The parts in reading order; `name` is the run's folder as the user called it."""
    manifest = observed.manifest
    commands = [manifest.command, *_again(name, answer.min_speedup)]
    question = element("summary", "The whole question")
    return (
        element("pre", *map(_command, commands)),
        _facts(_machine(name, manifest)),
        _models(observed),
        element("details", question, _facts(msgspec.structs.asdict(manifest.question))),
    )


def _again(name: str, min_speedup: float) -> list[str]:
    """What prints the page's figures with all their digits, and what writes the page."""
    run, asked = shlex.quote(name), "" if min_speedup == 1 else f" --min-speedup {min_speedup:g}"
    return [
        f"draftbench recommend {run}{asked} --format json",
        f"draftbench acceptance {run} --format json",
        f"draftbench report {run}{asked} --html report.html",
    ]


def _command(line: str) -> Html:
    """A command whose words stay whole: no line ends between `--` and a flag's name."""
    words = (element("span", word) for word in line.split(" "))
    return element("code", together(part for word in words for part in (word, " ")), "\n")


def _machine(name: str, manifest: Manifest) -> dict[str, object]:
    return {
        "run": name,
        "begun": manifest.created,
        "draftbench": manifest.draftbench,
        **msgspec.structs.asdict(manifest.environment),
        "request key": manifest.key_id,
        "traffic": msgspec.structs.asdict(manifest.traffic),
        "traffic fingerprint": manifest.question.traffic_digest,
    }


def _models(observed: Run) -> Html:
    rows = [
        [
            facts.candidate.draft if facts.candidate else "target",
            facts.quant,
            facts.dtype,
            facts.fingerprint,
            facts.runner,
            f"{facts.parameters:,}",
            tables.size(facts.weight_bytes),
            f"{facts.context_length:,}",
        ]
        for facts in observed.facts
    ]
    words = ["model", "quantization", "dtype", "fingerprint", "runner"]
    return tables.table([*words, "parameters", "weights", "context (tokens)"], rows, words=5)


def _facts(pairs: dict[str, object]) -> Html:
    entries = [
        part
        for name, value in pairs.items()
        for part in (element("dt", name.replace("_", " ")), element("dd", _words(value)))
    ]
    return element("dl", *entries, class_="facts")


def _words(value: object) -> str:
    if value is None or value in ((), {}):
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_words, value))
    return str(value)
