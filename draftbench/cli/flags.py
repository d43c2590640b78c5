"""How flags are declared: each in one place, as a parameter of its command or as a field of a group
that several commands share; `with_flags` hands them to typer.

A flag's panel is its heading in `--help`; flags without one come first.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from draftbench.cli.invocation import words_of
from draftbench.errors import UsageError, did_you_mean
from draftbench.memory import LEVELS, parse_size

if TYPE_CHECKING:
    from draftbench.planner.options import DecisionOptions
    from draftbench.records import Candidate
    from draftbench.run_folder.run import Run
    from draftbench.traffic import TrafficQuery

# The headings that come last in `--help`, in this order.
LAST = ("Decision", "Safety", "Output")

LARGEST_K, LARGEST_CONCURRENCY = 64, 256
# The largest concurrency that can be decided for; it need not be measured.
LARGEST_LOAD = 4096


def flag(
    default: Any,
    help: str,
    metavar: str | None = None,
    names: Sequence[str] = (),
    *,
    among: Collection[str] = (),
    parse: Callable[[Any], Any] | None = None,
    many: bool = False,
    panel: str | None = None,
    **more: Any,
) -> Any:
    """One flag, as the default of a parameter or of a group's field.

    Args:
        default: `...` if the flag must be given.
        names: if it is not named as its parameter.
        among: its only values; the shell completes them.
        parse: text → value; with `many`, the flag may be repeated: texts → value. None is not
            parsed.
        more: what else `typer.Option` takes.
    """
    if among:
        more["autocompletion"] = lambda incomplete: list(among)
    option = typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, **more)
    metadata = {"option": option, "names": names, "among": among, "parse": parse, "many": many}
    return field(default=MISSING if default is ... else default, metadata=metadata)


in_traffic = partial(flag, panel="Traffic")
in_models = partial(flag, panel="Models and hardware")
in_measure = partial(flag, panel="What to measure")
in_built_in = partial(flag, panel="Built-in decoder only (without --engine and --server)")
in_decision, in_safety, in_output = (partial(flag, panel=panel) for panel in LAST)


def with_flags(command: Callable[..., int]) -> Callable[..., int]:
    """The command with its groups of flags as single parameters for typer, and every value parsed.

    The command that is returned raises a UsageError for a value that a flag does not know.
    """
    flags: dict[str, Field[Any]] = {}
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        declarations: dict[str, tuple[Field[Any], Any]] = {}
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            hints = get_type_hints(group)
            declarations = {each.name: (each, hints[each.name]) for each in fields(group)}
        elif isinstance(parameter.default, Field):
            declarations = {parameter.name: (parameter.default, parameter.annotation)}
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        for name, (declared, kind) in declarations.items():
            flags[name] = declared
            parameters.append(_parameter(name, declared, kind))

    @functools.wraps(command)
    def called(**values: Any) -> int:
        for name, declared in flags.items():
            values[name] = _parsed(name, declared, values[name])
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        return command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(name: str, declared: Field[Any], kind: Any) -> inspect.Parameter:
    """A flag as a parameter for typer: of type str if `_parsed` parses it."""
    default = inspect.Parameter.empty if declared.default is MISSING else declared.default
    if declared.metadata["many"]:
        kind = list[str] if default else list[str] | None
    elif declared.metadata["parse"]:
        kind = str if default is not None else str | None
    annotation = Annotated[kind, declared.metadata["option"]]
    only = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, only, default=default, annotation=annotation)


def _parsed(name: str, declared: Field[Any], value: Any) -> Any:
    among, parse = declared.metadata["among"], declared.metadata["parse"]
    if value is None:
        return value
    if among:
        long = next(iter(declared.metadata["names"]), f"--{name.replace('_', '-')}")
        one_of(long, value, among)
    return parse(value) if parse else value


def one_of(flag: str, value: str, allowed: Collection[str]) -> None:
    """Refuse a value that the flag does not know."""
    if value not in allowed:
        hint = did_you_mean(value, allowed, f"it can be {', '.join(allowed)}")
        raise UsageError(f"{flag} cannot be `{value}`", hint=hint)


def numbers(flag: str, largest: int, text: str) -> tuple[int, ...]:
    """`8,1-3` → (8, 1, 2, 3): each number once, in the order given."""
    chosen: dict[int, None] = {}
    for part in text.split(","):
        low, high = number_range(flag, part)
        if high > largest:
            raise UsageError(
                f"{flag} {text}: the largest value is {largest}", hint=f"for example {flag} 1,4"
            )
        chosen.update(dict.fromkeys(range(low, high + 1)))
    return tuple(chosen)


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


def draft_lengths(text: str) -> tuple[int, ...]:
    """`2,4-6` → draft lengths, the shortest first."""
    return tuple(sorted(numbers("--k", LARGEST_K, text)))


def model_names(texts: Sequence[str]) -> tuple[str, ...]:
    """`a,b`, or the flag repeated → each name once. A path that exists keeps its commas."""
    names: dict[str, None] = {}
    for text in texts:
        parts = [text] if Path(text).expanduser().exists() else text.split(",")
        if not all(part.strip() for part in parts):
            raise UsageError(
                f"--drafts {text}: a name between commas is empty",
                hint="for example --drafts ./a,./b",
            )
        names.update((part.strip(), None) for part in parts)
    return tuple(names)


def level_names(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """`none,int4`, or the flag repeated → each level once."""
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(level_name(flag, part) for part in parts))


def level_name(flag: str, text: str) -> str:
    """Refuse an unknown level; one of a stored format (`gptq-int4`) is checked when it is read."""
    stored = "-" in text and "," not in text
    one_of(flag, text, LEVELS if not stored else (text,))
    return text


def size_of(flag: str, text: str) -> int:
    """`20GB` → bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        hint = "a number and a unit, for example 24GB or 16GiB"
        raise UsageError(f"{flag} {error}", hint=hint) from None


def slo_of(text: str) -> dict[str, float]:
    """`ttft=300ms,tpot=40ms` → seconds by name."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        limit = re.fullmatch(r"\s*(ttft|tpot|e2e)\s*=\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*", part)
        if limit is None or limit[1] in limits:
            raise UsageError(
                f"--slo {text}: expected limits such as ttft=300ms,tpot=40ms",
                hint="ttft is the time to the first token, tpot the time for each further one, e2e "
                "that to the last; each once, in ms or s",
            )
        limits[limit[1]] = float(limit[2]) / (1000 if limit[3] == "ms" else 1)
    return limits


def complete_levels(incomplete: str) -> list[str]:
    """`none,i` → `none,int8`, `none,int4`."""
    given, comma, _ = incomplete.rpartition(",")
    return [f"{given}{comma}{level}" for level in LEVELS if level not in given.split(",")]


def _complete_traffic(incomplete: str) -> list[str]:
    """Suites after `su`; before that the shell completes file names."""
    from draftbench.traffic.suites import suite_names

    suites = [f"suite:{name}" for name in suite_names()]
    return suites if incomplete.startswith("su") else []


def complete_devices(incomplete: str) -> list[str]:
    """Kinds of device, and this machine's GPUs by number."""
    cards = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*"))
    return ["cpu", "cuda", "auto", *(f"cuda:{card}" for card in cards)]


RunArgument = Annotated[Path, typer.Argument(help="A run folder made by `sweep`.", metavar="RUN")]


TRUST = in_safety(
    False, "Run Python code that comes with a checkpoint. It can do anything that you can."
)


def target_flag(default: Any = ...) -> Any:
    """A flag for the target model."""
    needed = "" if default is ... else " Required without --server."
    return flag(
        default, f"The target model: a folder, a .gguf file or a Hugging Face id.{needed}", "MODEL"
    )


def drafts_flag(help: str = "The draft models, separated by commas.", default: Any = ...) -> Any:
    """A flag for names of models."""
    return flag(default, help, "MODEL,…", parse=model_names, many=True)


def traffic_flag(
    default: Any, help: str = "The requests: a log file, suite:NAME or hf:DATASET."
) -> Any:
    """A flag for a source of requests."""
    return flag(default, help, "SOURCE", autocompletion=_complete_traffic)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How the rows of the traffic are read."""

    seed: int = in_traffic(0, "The seed by which --sample picks requests.")
    segment_by: str | None = in_traffic(None, "The field of a row that names its segment.", "FIELD")
    prompt_field: str | None = in_traffic(
        None, "The field of a row that holds the prompt.", "FIELD"
    )
    response_field: str | None = in_traffic(
        None, "The field of a row that holds the logged answer.", "FIELD"
    )
    as_chat: bool = in_traffic(
        False, "Treat a plain prompt as a user's message, as vLLM's custom data sets do."
    )
    skip_bad: bool = in_traffic(
        False, "Skip and count rows that cannot be read, instead of stopping at the first."
    )

    def query(self, source: str, sample: int | None = None) -> TrafficQuery:
        """The requests to read from a source: `sample` of them, or all."""
        from draftbench.run_folder.key import request_key
        from draftbench.traffic import TrafficQuery

        return TrafficQuery(source, request_key(), sample, **asdict(self))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The flags of every command that decides, so that one run cannot get two answers."""

    min_speedup: float = in_decision(
        1.0, "The smallest speed-up worth speculating for.", "S", min=0.0, max=1000.0
    )
    concurrency: tuple[int, ...] | None = in_decision(
        None,
        "How many concurrent requests to decide for, e.g. 1,8,32 (default: as swept).",
        "N,…",
        parse=partial(numbers, "--concurrency", LARGEST_LOAD),
    )
    objective: str = in_decision(
        "speedup",
        "Rank by speedup (after the first token), latency (prefills included), throughput or "
        "cost; the last two also choose among --concurrency.",
        "NAME",
        among=("speedup", "latency", "throughput", "cost"),
    )
    price_per_hour: float | None = in_decision(
        None, "The machine's price per hour, to compute tokens per dollar.", "PRICE"
    )
    max_memory: int | None = in_decision(
        None,
        "How much memory target, draft and caches may take together, e.g. 20GB.",
        "SIZE",
        parse=partial(size_of, "--max-memory"),
    )
    max_p99_ratio: float | None = in_decision(
        None,
        "The most that p99 time per output token may grow, as a ratio, e.g. 1.2.",
        "RATIO",
        min=0.0,
    )
    slo: dict[str, float] | None = in_decision(
        None,
        "Latency limits, e.g. ttft=300ms,tpot=40ms,e2e=10s: prints the share of requests within "
        "them (runs on a serving engine).",
        "LIMITS",
        parse=slo_of,
    )
    costs: Path | None = in_decision(
        None,
        "Use the step times of another run, or of an engine from a YAML file.",
        "PATH",
    )

    def words(self) -> list[str]:
        """These flags as they were typed, to repeat in a suggested command."""
        return words_of({f"--{name.replace('_', '-')}" for name in vars(self)})

    def options(self, run: Run) -> DecisionOptions:
        """These flags for the planner; --costs is read for this run's candidates.

        Raises:
            UsageError: nothing was measured, or `--costs` has times of none of the drafts.
        """
        from draftbench.planner.cost_sources import CostSource, costs_of_run, read_engine_costs
        from draftbench.planner.options import DecisionOptions
        from draftbench.planner.recommendation import Slo

        require_measured(run)
        costs: CostSource | None = None
        if self.costs is not None and self.costs.is_dir():
            costs = costs_of_run(read(self.costs), run, f"`{self.costs}`")
        elif self.costs is not None:
            costs = read_engine_costs(self.costs, run.candidates)
        arrivals = run.manifest.question.arrivals
        if self.concurrency and arrivals != "closed" and costs is None:
            raise UsageError(
                f"--concurrency with a run whose requests came at their times ({arrivals})",
                hint="leave it out; a sweep without --arrivals measures numbers in flight",
            )
        if self.slo is not None and not run.served:
            raise UsageError(
                "--slo needs requests that a serving engine answered, and this run has none",
                hint="the built-in decoder knows no queueing; sweep with --engine or --server",
            )
        slo = Slo(**self.slo) if self.slo else None
        asked = asdict(self) | {"concurrency": self.concurrency or (), "costs": costs, "slo": slo}
        return DecisionOptions(**asked)


def read(folder: Path) -> Run:
    """Everything in a run folder."""
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    return read_run(RunFolder(folder))


def require_measured(run: Run) -> Run:
    """The run itself.

    Raises:
        UsageError: no candidate was measured.
    """
    if run.candidates:
        return run
    failed = [f"{each.candidate or 'the target'}: {each.reason}" for each in run.failures]
    raise UsageError(
        f"no candidate was measured in this run{f' ({failed[0]})' if failed else ''}",
        hint="start the same sweep again: it resumes, or ends with what is wrong",
    )


def candidate_named(run: Run, name: str) -> Candidate:
    """The candidate that `--candidate` names.

    Raises:
        UsageError: the run has none of that name.
    """
    candidates = {str(candidate): candidate for candidate in run.candidates}
    if name in candidates:
        return candidates[name]
    hint = did_you_mean(name, candidates, f"its candidates are {', '.join(candidates) or 'none'}")
    raise UsageError(f"the run has no candidate `{name}`", hint=hint)
