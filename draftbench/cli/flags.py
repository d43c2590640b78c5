"""Flags that several commands share, and the text of flags → checked values.

A flag's panel is the heading that it stands under in `--help`; flags without one come first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftbench.errors import UsageError, did_you_mean
from draftbench.memory import LEVELS, parse_size

if TYPE_CHECKING:
    from draftbench.planner.options import DecisionOptions
    from draftbench.records import Candidate
    from draftbench.run_folder.run import Run

TRAFFIC, MODELS, MEASURE, DECISION, OUTPUT, SAFETY = (
    "Traffic",
    "Models and hardware",
    "What to measure",
    "Decision",
    "Output",
    "Safety",
)

MODES = ("greedy", "sampled", "sampled-temperature-only")
OBJECTIVES = ("speedup", "latency", "throughput", "cost")
FORMATS = ("table", "json", "markdown", "csv")
# Of results that are no grid of figures.
TEXT_FORMATS = ("table", "json", "markdown")
LARGEST_K, LARGEST_CONCURRENCY = 64, 256


def among(*values: str) -> Callable[[str], list[str]]:
    """A completion to one of these."""
    return lambda incomplete: list(values)


def complete_levels(incomplete: str) -> list[str]:
    """`none,i` → `none,int8`, `none,int4`."""
    given, comma, _ = incomplete.rpartition(",")
    return [f"{given}{comma}{level}" for level in LEVELS if level not in given.split(",")]


def complete_traffic(incomplete: str) -> list[str]:
    """Suites, from `su` on; before that the shell completes file names."""
    from draftbench.traffic.suites import suite_names

    known = [f"suite:{name}" for name in suite_names()]
    return known if incomplete.startswith("su") else []


RunArgument = Annotated[Path, typer.Argument(help="A run folder made by `sweep`.", metavar="RUN")]
TargetOption = Annotated[
    str,
    typer.Option(
        help="The target model: a folder, a .gguf file or a Hugging Face id.", metavar="MODEL"
    ),
]
DRAFTS = typer.Option(
    help="The draft models, separated by commas; ngram is prompt lookup.", metavar="MODEL,…"
)
TrafficOption = Annotated[
    str,
    typer.Option(
        help="The requests: a log file, suite:NAME or hf:DATASET.",
        metavar="SOURCE",
        autocompletion=complete_traffic,
    ),
]
SegmentByOption = Annotated[
    str | None,
    typer.Option(
        help="The field of a row that names its segment.", metavar="FIELD", rich_help_panel=TRAFFIC
    ),
]
PromptFieldOption = Annotated[
    str | None,
    typer.Option(
        help="The field of a row that holds the prompt.", metavar="FIELD", rich_help_panel=TRAFFIC
    ),
]
ResponseFieldOption = Annotated[
    str | None,
    typer.Option(
        help="The field of a row that holds the logged answer.",
        metavar="FIELD",
        rich_help_panel=TRAFFIC,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="The number of CPU threads (default: one per core).", rich_help_panel=MODELS
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        help="Run Python code that comes with a checkpoint. It can do anything that you can.",
        rich_help_panel=SAFETY,
    ),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        help="Print a table, json, markdown or csv.",
        metavar="FORMAT",
        autocompletion=among(*FORMATS),
        rich_help_panel=OUTPUT,
    ),
]
TextFormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        help="Print a table, json or markdown.",
        metavar="FORMAT",
        autocompletion=among(*TEXT_FORMATS),
        rich_help_panel=OUTPUT,
    ),
]
OutputOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        help="Write the result to this file instead of stdout.",
        metavar="FILE",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only the result and errors.", rich_help_panel=OUTPUT),
]


def decides(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the flags of a decision in place of its parameter `decision`: the same seven
    for every command that decides, so that one run cannot get two answers.
    """
    given = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [
        each
        for known in given
        for each in (_DECISION_FLAGS.values() if known.name == "decision" else [known])
    ]

    @functools.wraps(command)
    def called(**values: Any) -> int:
        decision = Decision(**{name: values.pop(name) for name in _DECISION_FLAGS})
        return command(**values, decision=decision)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


class Decision:
    """What the flags of a decision ask for.

    Raises:
        UsageError: a value that cannot be used.
    """

    def __init__(
        self,
        min_speedup: Annotated[
            float,
            typer.Option(
                min=0.0,
                help="Speculate only from this speed-up on.",
                metavar="S",
                rich_help_panel=DECISION,
            ),
        ] = 1.0,
        concurrency: Annotated[
            str | None,
            typer.Option(
                help="The numbers of concurrent requests to decide for, e.g. 1,8,32 (default: "
                "those of the run).",
                metavar="N,…",
                rich_help_panel=DECISION,
            ),
        ] = None,
        objective: Annotated[
            str,
            typer.Option(
                help="Rank by speedup (after the first token), latency (prefills included), "
                "throughput or cost; the last two also choose among --concurrency.",
                metavar="NAME",
                rich_help_panel=DECISION,
                autocompletion=among(*OBJECTIVES),
            ),
        ] = "speedup",
        price_per_hour: Annotated[
            float | None,
            typer.Option(
                help="What the machine costs in an hour, for tokens per dollar.",
                metavar="PRICE",
                rich_help_panel=DECISION,
            ),
        ] = None,
        max_memory: Annotated[
            str | None,
            typer.Option(
                help="The most memory for target, draft and caches together, e.g. 20GB.",
                metavar="SIZE",
                rich_help_panel=DECISION,
            ),
        ] = None,
        max_p99_ratio: Annotated[
            float | None,
            typer.Option(
                min=0.0,
                help="How much the p99 of a request's time per output token may grow, e.g. 1.2.",
                metavar="RATIO",
                rich_help_panel=DECISION,
            ),
        ] = None,
        costs: Annotated[
            Path | None,
            typer.Option(
                help="Take step times from another run, or from a YAML file with those of an "
                "engine.",
                metavar="PATH",
                rich_help_panel=DECISION,
            ),
        ] = None,
    ) -> None:
        one_of("--objective", objective, OBJECTIVES)
        self.costs = costs
        self.asked: dict[str, Any] = {
            "min_speedup": min_speedup,
            "concurrency": () if concurrency is None else concurrencies(concurrency),
            "objective": objective,
            "price_per_hour": price_per_hour,
            "max_memory": None if max_memory is None else size_of("--max-memory", max_memory),
            "max_p99_ratio": max_p99_ratio,
        }

    def options(self, run: Run) -> DecisionOptions:
        """The same as the planner takes it, with the costs read for this run's candidates.

        Raises:
            UsageError: nothing was measured, or `--costs` has times of none of the drafts.
        """
        from draftbench.planner.cost_sources import CostSource, costs_of_run, read_engine_costs
        from draftbench.planner.options import DecisionOptions
        from draftbench.run_folder.folder import RunFolder
        from draftbench.run_folder.run import read_run

        require_measured(run)
        source: CostSource | None = None
        if self.costs is not None and self.costs.is_dir():
            source = costs_of_run(read_run(RunFolder(self.costs)), run, f"`{self.costs}`")
        elif self.costs is not None:
            source = read_engine_costs(self.costs, run.candidates)
        return DecisionOptions(**self.asked, costs=source)


_DECISION_FLAGS = dict(inspect.signature(Decision, eval_str=True).parameters)
DECISION_FLAGS = frozenset(_DECISION_FLAGS)


def require_measured(observed: Run) -> Run:
    """The same run, if any candidate was measured.

    Raises:
        UsageError: none was.
    """
    if not observed.candidates:
        raise UsageError(
            "no candidate was measured in this run", hint="look at its failures, then sweep again"
        )
    return observed


def candidate_named(observed: Run, name: str) -> Candidate:
    """The candidate that `--candidate` names.

    Raises:
        UsageError: the run has none of that name.
    """
    known = {str(candidate): candidate for candidate in observed.candidates}
    if name in known:
        return known[name]
    others = f"its candidates are {', '.join(known) or 'none'}"
    meant = did_you_mean(name, known, "")
    hint = f"{meant} {others}" if meant else others
    raise UsageError(f"the run has no candidate `{name}`", hint=hint)


def draft_lengths(text: str) -> tuple[int, ...]:
    """`1-8`, `2,4` or a mixture → sorted draft lengths."""
    return _numbers("--k", text, LARGEST_K)


def swept_concurrencies(text: str) -> tuple[int, ...]:
    """`1,4,16` → sorted numbers of requests that decode together."""
    return _numbers("--concurrency", text, LARGEST_CONCURRENCY)


def concurrencies(text: str) -> tuple[int, ...]:
    """`1,8,32` → numbers of concurrent requests in the order given."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(
            f"--concurrency {text}: expected whole numbers from 1, separated by commas",
            hint="for example --concurrency 1,8,32",
        )
    return tuple(dict.fromkeys(map(int, parts)))


def _numbers(flag: str, text: str, largest: int) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.split(","):
        low, high = number_range(flag, part)
        if high > largest:
            raise UsageError(
                f"{flag} {text}: the largest value is {largest}", hint=f"for example {flag} 1,4"
            )
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def number_range(flag: str, text: str) -> tuple[int, int]:
    """`2-4` or `3` → first and last."""
    low, dash, high = text.partition("-")
    try:
        first, last = int(low), int(high if dash else low)
    except ValueError:
        raise UsageError(
            f"{flag} {text}: expected a number or a range", hint=f"for example {flag} 2-4"
        ) from None
    if first < 1:
        raise UsageError(f"{flag} {text}: the smallest value is 1", hint=f"for example {flag} 1-4")
    if first > last:
        raise UsageError(
            f"{flag} {text}: the start of a range must not exceed its end",
            hint=f"for example {flag} {last}-{first}",
        )
    return first, last


def model_names(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """`a,b`, or the flag repeated → each name once. A path that exists keeps its commas."""
    names: dict[str, None] = {}
    for text in texts:
        parts = [text] if Path(text).expanduser().exists() else text.split(",")
        if not all(part.strip() for part in parts):
            raise UsageError(
                f"{flag} {text}: a name between commas is empty", hint=f"for example {flag} ./a,./b"
            )
        names.update((part.strip(), None) for part in parts)
    return tuple(names)


def level_names(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """`none,int4`, or the flag repeated → each level once."""
    levels = (level_name(flag, part.strip()) for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(levels))


def level_name(flag: str, text: str) -> str:
    """A level; those of stored formats (`gptq-int4`) are known to the library that reads them."""
    return text if "-" in text else one_of(flag, text, tuple(LEVELS))


def one_of(flag: str, value: str, allowed: Sequence[str]) -> str:
    """The value, if the flag knows it."""
    if value in allowed:
        return value
    hint = did_you_mean(value, allowed, f"one of {', '.join(allowed)}")
    raise UsageError(f"{flag} cannot be `{value}`", hint=hint)


def size_of(flag: str, text: str) -> int:
    """`20GB` → bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        sentence, _, hint = str(error).partition(": ")
        raise UsageError(f"{flag} {sentence}", hint=hint) from None
