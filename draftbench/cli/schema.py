"""`draftbench schema`: the JSON Schema of what a command prints, and of what a run folder holds.

It is made from the records themselves. A field is described by the comment at the end of its line,
by the sentence of its record's docstring that names it, or by `MEANINGS`.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import typer

from draftbench.cli.output import ResultFile
from draftbench.errors import UsageError, did_you_mean
from draftbench.memory import LEVELS
from draftbench.records import to_json

# What each prints with --format json, or holds: module and record, of several one of them; with
# [] a list of it, with {} an object of it by name.
ANSWERS: dict[str, tuple[str, ...]] = {
    "traffic": ("traffic.summary:TrafficSummary", "traffic.suites:Suite[]"),
    "suggest": ("models.known_pairs:Suggestion",),
    "check": ("models.check_result:CheckResult", "sweep.device_check:Finding[]"),
    "sweep": ("planner.recommendation:Recommendation", "cli.dry_run:DryRun"),
    "recommend": ("planner.recommendation:Recommendation",),
    "explain": ("planner.caveat_kinds:AboutCaveat{}",),
    "acceptance": ("acceptance.summary:AcceptanceReport",),
    "train": ("training.outcome:TrainingAnswer",),
    "audit": ("audit.audit:Audit", "cli.audit:AboutHypothesis{}"),
    "compare": ("gate.compare:Comparison", "gate.compare:SideBySide"),
    "gate": ("gate.result:GateResult",),
    "estimate": ("planner.formula:FormulaTable",),
    "runs": ("cli.runs:ListedRun[]",),
    # Files: of a run folder run.json, then a line of each of the others; and of `gate --save`.
    "run": (
        "run_folder.manifest:Manifest",
        "records:AnyObservation",
        "run_folder.folder:PrivateText",
        "run_folder.folder:PrivateStart",
    ),
    "baseline": ("gate.baseline:Baseline",),
}
# Fields of several records, by name or, where one name means several things, by `Record.name`.
MEANINGS = {
    "alpha": "acceptance rate α",
    "concurrency": "how many requests are decoded at once",
    "candidate": "`DRAFT` or `DRAFT:QUANT`",
    "candidates": "one entry per candidate",
    "caveats": "what to keep in mind when reading the figures",
    "DryRun.prompt_tokens": "of all requests together",
    "created": "UTC time at which the run began",
    "device": "cpu, cuda, cuda:N or auto",
    "differences": "of the first candidate against each other, paired by request",
    "digest": "keyed hash of the response's tokens",
    "draft": "name of the draft; `ngram` is prompt lookup, `self` the target as its own draft",
    "dtype": "type of the unquantized weights",
    "figure": "name of the figure",
    "high": "upper end of the 95% interval",
    "k": "draft length: tokens proposed in a round",
    "ks": "the draft lengths asked for",
    "kv_bytes_per_token": "of the cache, per token",
    "low": "lower end of the 95% interval",
    "max_concurrency": "most requests answered at once, with arrivals; null: unknown",
    "message": "what is wrong",
    "metric": "name of the figure",
    "mode": "drafting mode: greedy, sampled or sampled-temperature-only",
    "name": "its name",
    "output_tokens": "tokens of the response, or of all of them",
    "parameters": "as loaded",
    "prediction_error": "how far predictions were off",
    "process": "digest of the process that measured",
    "quant": f"quantization level: {', '.join(LEVELS)}",
    "question": "what was asked",
    "reason": "why, in words",
    "request": "keyed hash of the raw request",
    "requests": "how many requests",
    "responses": "target: it answered itself; log: logged answers, scored by the target",
    "runner": "what ran the model",
    "runner_up": "the next best",
    "sample": "which response to the request, from 0",
    "samples": "responses per request",
    "sampling": "how the target draws",
    "schema_version": "of this layout; another one is refused",
    "segment": "label of the request's segment",
    "source": "where it is from",
    "TrafficSummary.source": "of the traffic: its name",
    "TrafficSummary.rows": "rows read",
    "TrafficSummary.requests": "different ones that can be asked",
    "symbol": "its symbol",
    "target": "the target",
    "target_quant": "quantization level of the target",
    "temperature": "sampling temperature; 0 is greedy",
    "threads": "CPU threads",
    "tokens": "token ids",
    "tokens_per_round": "tokens after the first, over rounds",
    "value": "the figure",
    "verdict": "pass, fail or inconclusive",
    "weight": "rows of the log that the request stands for",
    "what": "what it is about",
}


def schema(
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(ANSWERS)}.", metavar="COMMAND")],
    *,
    output: ResultFile,
) -> int:
    """Print the JSON Schema of what a command prints with --format json; `run` and `baseline` are
    the files of a run folder and of the gate.

    draftbench schema recommend
    draftbench schema run | jq '."$defs".Decode'
    """
    if what not in ANSWERS:
        raise UsageError(
            f"there is no schema of `{what}`",
            hint=did_you_mean(what, ANSWERS, f"there is one of {', '.join(ANSWERS)}"),
        )
    output.write(to_json(schema_of(what)))
    return 0


def schema_of(what: str) -> dict[str, Any]:
    """The schema of one of ANSWERS, every field with its description."""
    answers = [_type(name) for name in ANSWERS[what]]
    roots, parts = msgspec.json.schema_components(answers, ref_template="#/$defs/{name}")
    records: dict[str, type] = {}
    for answer in answers:
        _add_records(answer, records)
    for name, part in parts.items():
        if "description" in part:
            part["description"] = _null(" ".join(part["description"].split()))
        for field, about in part.get("properties", {}).items():
            if meaning := meaning_of(records[name], field):
                # Beside a reference, which says itself what the record is.
                about["description"] = meaning
    root = roots[0] if len(roots) == 1 else {"anyOf": [*roots]}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    about = "Times are seconds, sizes bytes or tokens; null is unknown, never 0."
    return {"$schema": dialect, "$comment": about, **root, "$defs": parts}


def meaning_of(record: type, field: str) -> str | None:
    """What a field of a record says; None: nobody has written it down."""
    if field not in get_type_hints(record):
        return "which record this is"
    if own := MEANINGS.get(f"{record.__name__}.{field}"):
        return own
    source = _source(record)
    if beside := re.search(rf"^    {field}: .*?  # (.+)$", source, re.MULTILINE):
        return _null(beside[1])
    text = " ".join(inspect.cleandoc(record.__doc__ or "").split())
    stem, end = re.sub(r"_[a-z]+$", "_…", field), field.split("_")[-1]
    named = rf"`{field}(\[[^`]*\])?`|`{re.escape(stem)}`|`…_{end}`"
    sentences = re.split(r"(?<=[.;:]) (?=[A-Z`])", text)
    if said := " ".join(sentence for sentence in sentences if re.search(named, sentence)):
        return _null(said)
    if shared := MEANINGS.get(field):
        return shared
    above = re.search(rf"((?:^    # .+\n)+)    {field}: ", source, re.MULTILINE)
    return _null(" ".join(above[1].replace("# ", " ").split())) if above else None


@cache
def _source(record: type) -> str:
    """The source of a record and of those that it extends; Python parses a whole file for each."""
    kinds = [kind for kind in record.__mro__ if kind.__module__.startswith("draftbench.")]
    return "\n".join(map(inspect.getsource, kinds))


def _type(name: str) -> Any:
    """The type that an entry of ANSWERS names."""
    path, _, record = re.sub(r"\W+$", "", name).partition(":")
    found = getattr(import_module(f"draftbench.{path}"), record)
    return list[found] if name.endswith("[]") else dict[str, found] if "{" in name else found  # type: ignore[valid-type]


def _add_records(hint: object, found: dict[str, type]) -> None:
    """Put the records of a type, and those that they hold, under their names."""
    for part in get_args(hint):
        _add_records(part, found)
    if not isinstance(hint, type) or not (is_dataclass(hint) or issubclass(hint, msgspec.Struct)):
        return
    if hint.__name__ not in found:
        found[hint.__name__] = hint
        for part in get_type_hints(hint).values():
            _add_records(part, found)


def _null(text: str) -> str:
    return re.sub(r"\bNone\b", "null", text)
