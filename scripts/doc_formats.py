"""Writes docs/formats.md: every field of every file and JSON that draftbench writes or reads, taken
from the records, so that the page is never out of date.

    python scripts/doc_formats.py > docs/formats.md

A field is explained by its record's docstring, by the comment at the end of its line, or by
`doc_meanings`, whose fields of several records stand in a list of their own; one that has none of
these stops the script.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections import Counter
from collections.abc import Sequence
from enum import Enum

import msgspec
from doc_meanings import MEANING

from draftbench.acceptance.definitions import Figure
from draftbench.acceptance.summary import AcceptanceReport
from draftbench.cli.dry_run import DryRun
from draftbench.cli.recommend import CSV_FIGURES
from draftbench.gate.baseline import Baseline
from draftbench.gate.compare import Comparison, SideBySide
from draftbench.gate.result import GateResult
from draftbench.models.check_result import CheckResult
from draftbench.models.known_pairs import Suggestion
from draftbench.planner import cost_sources
from draftbench.planner.formula import FormulaTable
from draftbench.planner.recommendation import Recommendation
from draftbench.records import AnyObservation, Request
from draftbench.run_folder.folder import (
    LOCK,
    MANIFEST,
    PRIVATE,
    STARTS,
    TEXTS,
    PrivateStart,
    PrivateText,
)
from draftbench.run_folder.manifest import Manifest
from draftbench.traffic.answers import ANSWERS
from draftbench.traffic.request_formats import BLOCKS, BODIES, FORMS, PARTS, SYSTEMS
from draftbench.traffic.suites import Suite
from draftbench.traffic.summary import TrafficSummary
from draftbench.training.outcome import TrainingAnswer

# What `_meaning` says of a field that its record's docstring explains, or the list of fields that
# several records have.
ELSEWHERE = "elsewhere"
OBSERVATIONS = typing.get_args(AnyObservation)
PRIVATE_RECORDS = (PrivateText, PrivateStart)
COMMANDS: tuple[tuple[str, str, tuple[type, ...]], ...] = (
    (
        "`recommend --format json`, `report --format json`",
        "The recommendation's fields; `failures`, a list of the run's failure records (see the run "
        "folder).",
        (Recommendation,),
    ),
    (
        "`acceptance --format json`",
        "The report's fields and `definitions`, a list of the definitions in use with each "
        "engine's name for them.",
        (AcceptanceReport, Figure),
    ),
    ("`compare --format json`", "Of three runs and more: SideBySide.", (Comparison, SideBySide)),
    ("`check --format json`", "", (CheckResult,)),
    ("`gate --format json`", "", (GateResult,)),
    ("`suggest --format json`", "", (Suggestion,)),
    (
        "`estimate --format json`",
        "`basis` says that nothing was measured.",
        (FormulaTable,),
    ),
    (
        "`sweep --dry-run --format json`",
        "",
        (DryRun,),
    ),
    (
        "`train --format json`",
        "Beside a trained draft `training.json` holds the Training.",
        (TrainingAnswer,),
    ),
    ("`traffic --format json`", "", (TrafficSummary,)),
    ("`suites --format json`", "A list of suites.", (Suite,)),
)
FILES: tuple[tuple[str, str, tuple[type, ...]], ...] = (
    ("A baseline of the gate", "What `gate --save FILE` writes. JSON.", (Baseline,)),
)


def page() -> str:
    """The whole file."""
    shown: set[type] = set()
    parts = [_traffic(shown), _run_folder(shown)]
    for title, words, roots in (*FILES, *COMMANDS):
        parts.append(_chapter(f"## {title}", words, roots, shown))
    parts.append(_other())
    shared = "\n".join(f"- `{name}`: {MEANING[name]}" for name in sorted(_shared()))
    words = "They mean the same wherever nothing else is said."
    parts.insert(0, f"## Fields of several records\n\n{words}\n\n{shared}")
    body = "\n\n".join(parts)
    return f"{_head(body)}\n\n{body}\n"


def unexplained() -> list[str]:
    """Fields without a meaning, which keep the page from being written."""
    return [
        f"{record.__name__}.{name}"
        for record in _documented()
        for name in _fields(record)
        if _meaning(record, name) is None
    ]


def unused() -> list[str]:
    """Meanings that explain no field any more."""
    used = {
        key
        for record in _documented()
        for name in _fields(record)
        if name not in _comments(record)
        for key in (f"{record.__name__}.{name}", name)
    }
    return sorted(set(MEANING) - used)


def _documented() -> list[type]:
    roots = [root for _, _, own in (*FILES, *COMMANDS) for root in own]
    return _with_parts([*roots, Manifest, Request, *PRIVATE_RECORDS, *OBSERVATIONS])


def _head(body: str) -> str:
    """The top of the page: what applies to every chapter, and links to them."""
    chapters = re.findall(r"^## (.+)$", body, re.MULTILINE)
    anchors = [re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-") for name in chapters]
    links = [f"[{name}](#{at})" for name, at in zip(chapters, anchors, strict=True)]
    return (
        "# Formats\n\n"
        "Written by `scripts/doc_formats.py` from the records in the code. Times are seconds, "
        "sizes bytes or tokens unless a name says otherwise; null is unknown, never 0. A figure is "
        "an `Estimate`: its value and the two ends of its 95% interval. Fields may be added; one "
        "that is here keeps its name and meaning within a schema version. A record that several "
        "chapters use stands in the first of them.\n\n" + " · ".join(links)
    )


def _traffic(shown: set[type]) -> str:
    def places(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    ends = [form.example.rindex("}") + 1 for form in FORMS]
    forms = "\n".join(
        f"- {form.name}: `{form.example[:end]}`{form.example[end:]}"
        for form, end in zip(FORMS, ends, strict=True)
    )
    return (
        "## Traffic\n\n"
        "`.jsonl`, `.json` and `.csv`, each also `.gz` or `.zst`; `.parquet`; `suite:NAME`; "
        "`hf:DATASET[/CONFIG][:SPLIT][@REVISION]`. Texts are UTF-8; the columns of a "
        "`.csv` are separated by commas, semicolons, tabs or bars, and each row has as many cells "
        "as the header. `draftbench traffic SOURCE` "
        "shows what is read of a log. A row's form is recognised by its content:\n\n"
        f"{forms}\n\n"
        "A request may stand bare, inside "
        f"{places(BODIES)} (API bodies: batches, Helicone, LiteLLM, MLflow, Bedrock), or in part "
        f"inside {places(PARTS)} (Langfuse, spans, LangSmith, tables). Each of these may be an "
        "object, the text of JSON or of a Python literal, dotted columns or a list of typed "
        "attributes. Where one stands elsewhere, the error says which `--prompt-field` reads it. "
        "[What becomes of a log](logs.md) has a row of every shape.\n\n"
        f"- **System text:** beside the prompt or its wrapper under {places(SYSTEMS)}, as a text, "
        "as parts or as a message.\n"
        f"- **Logged answer:** under {places(ANSWERS)}, as text or as an API returns it. Its "
        "reasoning and its calls of tools are put back as the template writes them; an answer of "
        "which a part is lost is not used.\n"
        "- **No traffic:** calls that failed, and texts that the logger cut or redacted, by the "
        "marks of LiteLLM, Langfuse, Datadog and OpenInference or by a word in brackets "
        "(`... [truncated]`, `[REDACTED]`), and bodies that a column was too short for. They are "
        "counted by reason. A text that ends so and is "
        "shorter than a whole one of the same request was cut by the program that asked, and is "
        "read.\n"
        "- **Structured output and tools that must be called** (`response_format`, `guided_…`, "
        "`structured_outputs`, `grammar`, `tool_choice`) are left out of the built-in decoder and "
        "sent to engines that apply them.\n"
        "- **A part of a prompt that is not read** (a picture, `documents`, the choices of a "
        "question, a second text that repeats no turn) leaves its row out, counted under its name; "
        "other fields that are not read are named, and so is a `context` of single words (ids of a "
        "trace). With `--prompt-field` other texts are named "
        "only. Nulls with which a table pads a row, also as `nan`, `NaN`, `None` or `null` beside "
        "a prompt, are no part of it, and neither are notes that a log makes on messages.\n"
        "- **Segment:** under `segment`, `category` or `tags.segment`.\n"
        "- `--prompt-field`, `--response-field` and `--segment-by` take dotted paths instead.\n"
        "- **Sampling parameters:** under the names of OpenAI, vLLM, SGLang, Anthropic, Gemini, "
        "Ollama, llama.cpp and TGI, beside the prompt or its wrapper or in "
        f"{places(BLOCKS)} there. Numbers may be text. One that is given twice, with two values, "
        "leaves its row out.\n"
        "- **A parameter that changes the distribution** and cannot be applied leaves its row out, "
        "counted under its name.\n"
        "- **A missing temperature** is 1, the default of servers, where the row is a request to "
        "one (it names a `model`, or is wrapped), and 0 in a list of prompts; the sweep says which "
        "was taken. (TGI is greedy unless a parameter makes it sample.)\n"
        "- **A plain prompt** is read as it is; `--as-chat` makes it a user's message, as vLLM "
        "does with its custom data sets.\n\n"
        + _chapter("### Request", "What a row becomes; no run folder holds it.", (Request,), shown)
    )


def _run_folder(shown: set[type]) -> str:
    tree = "\n".join(
        [
            "RUN/",
            f"  {MANIFEST:<26}  what was asked, and where it ran",
            *(f"  observations/{kind.__name__.lower()}.jsonl" for kind in OBSERVATIONS),
            f"  {f'{PRIVATE}/{TEXTS}':<26}  prompts and responses as token ids (mode 0700)",
            f"  {f'{PRIVATE}/{STARTS}':<26}  whole commands of the servers started",
            f"  {LOCK:<26}  held while a sweep writes",
        ]
    )
    manifest = _chapter("### run.json", "", (Manifest,), shown)
    words = "One JSON object a line, each with its `kind`; append-only."
    lines = _chapter("### observations/", words, OBSERVATIONS, shown)
    words = "`draftbench runs redact RUN` deletes this part. No figure needs it."
    private = _chapter("### private/", words, PRIVATE_RECORDS, shown)
    return f"## Run folder\n\n```\n{tree}\n```\n\n{manifest}\n\n{lines}\n\n{private}"


def _other() -> str:
    csv = ", ".join(f"`{name}`" for name in CSV_FIGURES)
    _, *costs = inspect.cleandoc(cost_sources.__doc__ or "").split("\n\n")
    words = [
        f"```yaml\n{inspect.cleandoc(part)}\n```"
        if part.startswith(" ")
        else " ".join(part.split())
        for part in costs
    ]
    return (
        "## An engine's costs\n\nWhat `recommend` and `export` read with `--costs FILE.yaml`.\n\n"
        + "\n\n".join(words)
        + "\n\n"
        "## CSV\n\n"
        "`recommend --format csv` has a line per candidate and k: `draft`, `quant`, `k`, `best` "
        f"(1 for the candidate's best k), then for each of {csv} the figure and, under "
        "`NAME_low` and `NAME_high`, its interval; `prediction_error`, `memory_bytes`. "
        "`acceptance --format csv` has a line per figure: `candidate`, `against` (set in "
        "differences), `figure`, `k`, `pooled`, "
        "`per_request` with their intervals, `requests`, `requests_needed`. Unknown is empty.\n\n"
        "## `runs list --format json`\n\n"
        "A list, the newest first: `run` (path), `created`, `target`, `traffic`, `requests`, "
        "`private` (kept or deleted), `status` (complete or unfinished), `answer` (the first line "
        "of its recommendation; of the ten newest), `problem` (why it cannot be read, else null)."
    )


def _chapter(title: str, words: str, roots: typing.Sequence[type], shown: set[type]) -> str:
    """A title and the fields of `roots` and their parts, without those of earlier chapters."""
    records = [_fields_of(record) for record in _with_parts(roots) if record not in shown]
    shown.update(_with_parts(roots))
    return "\n\n".join([title, *([words] if words else []), *records])


def _with_parts(roots: typing.Iterable[type]) -> list[type]:
    """The records and those that they hold, each once, in the order in which they are met."""
    found: dict[type, None] = {}
    left = list(roots)
    while left:
        record = left.pop(0)
        if record in found:
            continue
        found[record] = None
        parts = [part for hint in _fields(record).values() for part in _records_in(hint)]
        left = [*parts, *left]
    return list(found)


@functools.cache
def _fields(record: type) -> dict[str, object]:
    hints = typing.get_type_hints(record)
    if dataclasses.is_dataclass(record):
        return {field.name: hints[field.name] for field in dataclasses.fields(record)}
    return {name: hints[name] for name in record.__struct_fields__}  # type: ignore[attr-defined]


def _records_in(hint: object) -> list[type]:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        known = dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)
        return [hint] if known else []
    return [part for argument in typing.get_args(hint) for part in _records_in(argument)]


def _fields_of(record: type) -> str:
    """The docstring, the types of fields that are explained elsewhere, and a list of the others."""
    words = _words(record)
    rows, known = [], []
    for name, hint in _fields(record).items():
        meaning = _meaning(record, name)
        if meaning == ELSEWHERE:
            known.append(f"`{name}` {_type(hint)}")
        else:
            rows.append(f"- `{name}` ({_type(hint)}): {meaning}")
    parts = [f"**{record.__name__}.** {words[0]}", *words[1:]]
    if known:
        parts.append(f"Types: {'; '.join(known)}.")
    if rows:
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


@functools.cache
def _words(record: type) -> list[str]:
    """A docstring's paragraphs, each on one line."""
    text = inspect.cleandoc(record.__doc__ or "")
    return [re.sub(r"\bNone\b", "null", " ".join(part.split())) for part in text.split("\n\n")]


def _meaning(record: type, name: str) -> str | None:
    own = MEANING.get(f"{record.__name__}.{name}")
    if own is not None:
        return own
    if name in (comments := _comments(record)):
        return comments[name]
    text = " ".join(_words(record))
    stem = re.sub(r"_[a-z]+$", "_…", name)
    if re.search(rf"`{name}(\[[^`]*\])?`|`{re.escape(stem)}`|`…_{name.split('_')[-1]}`", text):
        return ELSEWHERE
    return ELSEWHERE if name in _shared() else MEANING.get(name)


@functools.cache
def _shared() -> set[str]:
    """The fields of several records that only `doc_meanings` explains."""
    names = Counter(
        name
        for record in _documented()
        for name in _fields(record)
        if name in MEANING and name not in _comments(record)
        if f"{record.__name__}.{name}" not in MEANING
    )
    return {name for name, records in names.items() if records > 1}


@functools.cache
def _comments(record: type) -> dict[str, str]:
    """What stands at the end of the lines of a record's fields."""
    found = re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(record), re.MULTILINE)
    return {name: re.sub(r"\bNone\b", "null", comment) for name, comment in found}


def _type(hint: object) -> str:
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "text"
    plain: dict[object, str] = {str: "text", int: "integer", float: "number", bool: "true/false"}
    if isinstance(hint, type) and hint in plain:
        return plain[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(argument) for argument in arguments)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (tuple, list, Sequence):
        kinds = [argument for argument in arguments if argument is not Ellipsis]
        return f"list of {' , '.join(_type(kind) for kind in kinds)}"
    if origin is dict:
        return "object" if arguments[1] is typing.Any else f"object of {_type(arguments[1])}"
    return hint.__name__ if isinstance(hint, type) else "any"


if __name__ == "__main__":
    missing = unexplained()
    if missing:
        raise SystemExit("neither a docstring nor doc_meanings explains " + ", ".join(missing))
    print(page(), end="")
