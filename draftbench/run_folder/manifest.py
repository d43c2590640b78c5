"""The head of a run folder: what the run asked (`Question`) and where it ran (`Environment`).

Two runs may be compared, or one continued, only where they ask the same question; times are
compared only between equal environments.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from draftbench.errors import RunFolderError
from draftbench.flags import LARGEST_CONCURRENCY, LARGEST_K
from draftbench.records import Candidate, Count, DraftingMode, Environment, LongerPrompts, Record
from draftbench.safe_files import without_controls

# Of the layout of run folders; one of another layout is not read.
SCHEMA_VERSION = 6

PACKAGES = ("torch", "transformers", "tokenizers", "torchao", "numpy", "safetensors", "gguf")

# Types of the fields below, with limits far beyond what anyone would measure.
Tokens = Annotated[int, Meta(ge=1, le=LARGEST_K)]
Rows = Annotated[int, Meta(ge=1, le=LARGEST_CONCURRENCY)]
Few = Annotated[int, Meta(ge=1, le=10**6)]
Many = Annotated[int, Meta(ge=1, le=10**9)]
Real = Annotated[float, Meta(ge=0, le=10**9)]
Dtype = Annotated[str, Meta(pattern="^(bfloat16|float16|float32)$")]
Responses = Annotated[str, Meta(pattern="^(target|log)$")]
Measure = Annotated[str, Meta(pattern="^(best|all|none|replay)$")]
# When a round may end.
STOPS = ("none", "confidence")
Stop = Annotated[str, Meta(pattern=f"^({'|'.join(STOPS)})$")]
Servers = Annotated[
    str, Meta(pattern="^(started|started side by side|given|given with a baseline)$")
]
ReplayedBy = Annotated[str, Meta(pattern="^(local|engine)$")]
# What users call a field that is not the flag of the same name.
_NAMES = {
    "ks": "--k",
    "controls": "controls",
    "settled_after": "requests of --until settled",
    "quants": "--quant",
    "lookup_longest": "--ngram, longest",
    "lookup_shortest": "--ngram, shortest",
    "max_concurrency": "requests answered at once",
    "servers": "servers",
    "spec_files": "what spec files hold",
    "key_id": "key of the hashes",
    "traffic_digest": "requests, as a digest",
    "arrivals_digest": "times of arrival, as a digest",
}
# What to print if a digest differs, since its value says nothing to a reader.
_DIGESTS = {
    "traffic_digest": "other requests: another traffic, --sample or seed",
    "arrivals_digest": "the same requests at other times: other timestamps in the log, or --seed",
}
# Name → value before and after, as text; None where there is none.
Differences = dict[str, tuple[str | None, str | None]]


class Question(Record, frozen=True):
    """Everything that a measured figure depends on besides the machine; not how much is measured,
    which is the `Effort`.
    """

    target: str
    target_quant: str
    dtype: Dtype
    device: str
    drafts: tuple[str, ...]  # the drafts asked for
    quants: tuple[str, ...]  # the quantization levels asked for
    simulate_quant: bool  # whether levels without a kernel here were measured for acceptance alone
    ks: Annotated[tuple[Tokens, ...], Meta(min_length=1)]
    mode: DraftingMode
    lookup_longest: Few  # longest n-gram that prompt lookup tries
    lookup_shortest: Few  # shortest n-gram that prompt lookup tries
    traffic: str  # name of the source
    traffic_digest: str  # keyed hash of the chosen requests
    responses: Responses
    samples: Few
    max_new_tokens: Many | None  # cut of every response; None: the request's own limit
    temperature: Real | None  # override of every request's temperature; None: their own
    concurrency: Annotated[tuple[Rows, ...], Meta(min_length=1)] = (1,)
    stop: tuple[Stop, ...] = STOPS[:1]  # when a round ends: at k tokens, or where drafts are unsure
    engine: str | None = None  # the serving engine that ran the target; None: built-in decoder
    engine_args: str = ""  # what the user added to its start: its form, and a keyed hash
    arrivals: str = "closed"  # closed, log, or poisson:RATE
    # None: without an engine.
    servers: Servers | None = None  # started by the sweep, or given; and whether two took turns
    engine_command: str | None = None  # that starts it, likewise; empty: the engine's usual one
    spec_files: tuple[str, ...] | None = None  # what every spec:FILE.json among the drafts holds
    time_scale: Real | None = None  # times the log's own speed
    arrivals_digest: str | None = None  # keyed hash of the times of arrival; None: closed
    tokenizer: str | None = None  # empty: the target's, or the server's
    max_concurrency: Rows | None = None
    replay: ReplayedBy | None = None  # who replays an engine's drafts: local; kept for old runs

    @property
    def running(self) -> bool:
        """Whether the user's own servers were measured, which draft as they were started."""
        return self.servers in ("given", "given with a baseline")

    @property
    def in_turn(self) -> bool:
        """Whether an engine's servers with and without a draft were asked in turn."""
        both = self.servers in ("started side by side", "given with a baseline")
        return both and self.arrivals == "closed"


class Effort(Record, frozen=True):
    """How much of a question a sweep measures, as its options resolved."""

    measure: Measure  # which k are decoded: best, all or none; replay: nothing is timed either
    measure_requests: Count  # on how many responses
    controls: bool  # whether prompt lookup and the target itself are measured too
    sample: Count | None = None  # how many requests were drawn from the traffic; None: all
    processes: Few = 1  # in how many each candidate is timed and decoded; of an engine starts
    settled_after: Few | None = None  # requests with which --until settled ended; None: all


class TrafficFacts(Record, frozen=True):
    """How the traffic became requests."""

    form: str  # forms that were recognised
    rows: Count  # rows read
    requests: Count
    merged: Count  # exact duplicates merged
    dropped: dict[str, Count]  # rows left out, by reason
    revision: str | None = None  # commit of a data set of the hub; None for files and suites
    constrained: Count = 0  # requests with structured output
    chats: Count | None = None  # requests that the chat template renders; None: not counted
    longer: LongerPrompts | None = None  # what the draw missed; None: an older run

    @property
    def distinct(self) -> int:
        """How many requests the rows ask, whether drawn or not."""
        return self.rows - self.merged - sum(self.dropped.values())


class Seal(Record, frozen=True):
    """What a file of observations held when the last sweep ended."""

    records: Count = 0  # records in it
    digest: str = ""  # hash of its bytes; empty without any


class Manifest(Record, frozen=True):
    """The head of a run folder.

    `run` is random and tells the run from every other. `command` and `effort` are those of the last
    sweep that measured in it. `specs` maps the name of each draft to what `--drafts` called it.
    `under_way` are the candidates of a sweep that began and has not ended; None once it went to its
    end. `sealed` is what the files of observations held at that end, by name; None while a sweep is
    under way.
    """

    schema_version: Many
    draftbench: str  # version
    created: str
    command: str
    key_id: str  # tells keys apart, does not give the key away
    question: Question
    traffic: TrafficFacts  # how the log became requests
    environment: Environment  # the machine and the software
    effort: Effort
    specs: dict[str, str]
    run: str
    under_way: tuple[Candidate, ...] | None = None
    sealed: dict[str, Seal] | None = None

    @property
    def requests(self) -> int:
        """How many requests a finished sweep covers."""
        return self.effort.settled_after or self.traffic.requests


def refuse_other_schema(raw: bytes, known: int, where: str, if_older: str) -> None:
    """Refuse a JSON document by its `schema_version`, which every layout has; `if_older` is the
    hint for one that an older draftbench wrote.

    Raises:
        RunFolderError: `where` has another schema than `known`.
        msgspec.DecodeError: no JSON object.
        RecursionError: nested too deeply.
    """
    version = msgspec.json.decode(raw, type=dict[str, object]).get("schema_version")
    if isinstance(version, int) and version != known:
        age, hint = ("newer", "update draftbench") if version > known else ("older", if_older)
        raise RunFolderError(
            f"{where} has schema {version}, {age} than this draftbench reads ({known})", hint=hint
        )


def differing_question(before: Manifest, after: Manifest) -> Differences:
    """The fields in which two runs ask something else, and `key_id` where the hashes of their
    requests cannot be compared.
    """
    one, other = (
        {"key_id": manifest.key_id, **msgspec.structs.asdict(manifest.question)}
        for manifest in (before, after)
    )
    return _differences(one, other)


def differing_settings(before: Manifest, after: Manifest) -> Differences:
    """What `differing_question` finds, then how much each sweep measured, where that differs."""
    one, other = (msgspec.structs.asdict(manifest.effort) for manifest in (before, after))
    return differing_question(before, after) | _differences(one, other)


def differing_environment(before: Manifest, after: Manifest) -> Differences:
    """The facts in which the environments of two runs differ, draftbench among them."""
    one, other = (
        {"draftbench": manifest.draftbench, **_facts(manifest.environment)}
        for manifest in (before, after)
    )
    return _differences(one, other)


def differing_machine(before: Environment, after: Environment) -> Differences:
    """The facts in which two machines differ."""
    return _differences(_facts(before), _facts(after))


def _facts(environment: Environment) -> dict[str, object]:
    machine = msgspec.structs.asdict(environment)
    del machine["load"]
    packages = machine.pop("packages")
    return {**machine, **packages}


def _differences(before: dict[str, object], after: dict[str, object]) -> Differences:
    def text(value: object) -> str | None:
        # What an engine was not given is none, as it is without an engine.
        return None if value in (None, "", ()) else in_words(value)

    texts = {name: (text(before.get(name)), text(after.get(name))) for name in {**before, **after}}
    return {name: (a, b) for name, (a, b) in texts.items() if a != b}


def in_words(value: object) -> str:
    """The value of a setting as a person reads it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def flag_of(name: str) -> str:
    """What users call a field of a question or an effort: its flag, if it has one."""
    return _NAMES.get(name, f"--{name.replace('_', '-')}")


def difference_lines(differences: Differences) -> list[str]:
    """Differences of questions or environments (not of efforts), as "name: before → after"."""
    of_question = ("key_id", *Question.__struct_fields__)
    return [
        _DIGESTS.get(
            name,
            f"{flag_of(name) if name in of_question else name}: "
            f"{in_words(before)} → {in_words(after)}",
        )
        for name, (before, after) in differences.items()
    ]


def portable(text: str) -> str:
    """A text for files that may be shared: `~` for the home directory, whose path names the user,
    and no control characters.
    """
    return without_controls(text.replace(f"{Path.home()}/", "~/"))


def environment(threads: int, accelerator: str | None) -> Environment:
    """Facts about this machine; what takes torch to know, the caller gives."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    processor = None
    with contextlib.suppress(OSError):
        cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace")
        processor = re.search(r"model name\s*:\s*(.*\S)", cpuinfo)
    cores = cores_here()
    return Environment(
        platform=f"{platform.system()} {platform.machine()}",
        processor=processor[1] if processor else platform.processor() or platform.machine(),
        cores=cores,
        threads=threads,
        accelerator=accelerator,
        python=platform.python_version(),
        packages=packages,
        load=round(os.getloadavg()[0] / cores, 2),
    )


def cores_here() -> int:
    """Cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return count or 1


def repeat_flag(engine: str | None) -> str:
    """The flag of a sweep that measures everything several times on this runner (None: the built-in
    decoder), in other processes or by other starts of the servers.
    """
    return "--processes" if engine is None else "--restarts"
