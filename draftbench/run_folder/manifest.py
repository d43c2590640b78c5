"""What a run asked and where it ran: the records at the head of a run folder.

The question decides whether two runs may be compared or continued; the environment says on what the
times were taken.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import msgspec

from draftbench.errors import RunFolderError
from draftbench.records import NEAR_TIE_MARGIN, DraftingMode, Record
from draftbench.safe_files import without_controls

# 1: first layout. 2: batch sizes, active rows, looks at the machine. 3: records hold a candidate,
# not its two names; the manifest its effort and the drafts as they were given.
SCHEMA_VERSION = 3

RESPONSES = ("target", "log")
MEASURES = ("best", "all", "none", "replay")
# Least and most of every number, far around what can be asked or counted.
_LIMITS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (1, 64, ("ks",)),
    (1, 4096, ("batches",)),
    (1, 10**6, ("samples", "lookup_longest", "lookup_shortest", "cores", "threads")),
    (1, 10**9, ("schema_version", "max_new_tokens")),
    (0, 10**9, ("temperature", "load")),
    (0, 10**15, ("rows", "requests", "merged", "dropped", "sample", "measure_requests")),
)
PACKAGES = ("torch", "transformers", "tokenizers", "torchao", "numpy", "safetensors", "gguf")


class Question(Record, frozen=True):
    """Everything that a measured figure depends on besides the machine. Flags that only change
    effort are not in it.
    """

    target: str
    target_quant: str
    dtype: str
    device: str
    drafts: tuple[str, ...]
    quants: tuple[str, ...]
    simulate_quant: bool
    ks: tuple[int, ...]
    mode: DraftingMode
    lookup_longest: int
    lookup_shortest: int
    traffic: str
    traffic_digest: str
    responses: str
    samples: int
    max_new_tokens: int | None
    temperature: float | None
    batches: tuple[int, ...] = (1,)


class Effort(Record, frozen=True):
    """How much of a question a sweep measures, as its options resolved: `measure` is what is
    decoded ("best", "all", "none", or "replay": nothing is timed at all), `measure_requests` on how
    many responses, `controls` whether prompt lookup and the target itself are measured too,
    `sample` how many requests were drawn from the traffic (None: all).
    """

    measure: str
    measure_requests: int
    controls: bool
    sample: int | None = None


class TrafficFacts(Record, frozen=True):
    """How the traffic became requests: rows read, duplicates merged, rows left out by reason.

    `revision` is the commit of a data set of the hub.
    """

    form: str
    rows: int
    requests: int
    merged: int
    dropped: dict[str, int]
    revision: str | None = None


class Environment(Record, frozen=True):
    """The machine and the software; times are only compared between equal ones.

    `load` is the machine's load average per core when the run began, before it computed anything.
    """

    platform: str
    processor: str
    cores: int
    threads: int
    accelerator: str | None
    python: str
    packages: dict[str, str]
    load: float | None = None

    @property
    def machine(self) -> str:
        """What must agree for times to be comparable, as one word."""
        parts = (self.platform, self.processor, self.cores, self.threads, self.accelerator)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


class Manifest(Record, frozen=True):
    """The head of a run folder.

    `command` and `effort` are those of the last sweep that measured in it. `specs` maps the name
    of each draft to the path or hub id that the user gave. Runs of schema 1 and 2 know neither
    effort nor specs.
    """

    schema_version: int
    draftbench: str
    created: str
    command: str
    key_id: str
    question: Question
    traffic: TrafficFacts
    environment: Environment
    effort: Effort | None = None
    specs: dict[str, str] | None = None


def impossible(manifest: Manifest) -> str | None:
    """What no sweep can have written, by its key; None if all of it can be."""
    asked = manifest.question
    if asked.dtype not in NEAR_TIE_MARGIN or asked.responses not in RESPONSES:
        return f"`dtype` is one of {[*NEAR_TIE_MARGIN]}, `responses` of {[*RESPONSES]}"
    if manifest.effort is not None and manifest.effort.measure not in MEASURES:
        return f"`measure` is one of {[*MEASURES]}"
    if not asked.ks or not asked.batches:
        return "`ks` and `batches` are not empty"
    parts = (manifest, asked, manifest.traffic, manifest.environment, manifest.effort)
    for least, most, keys in _LIMITS:
        for part, key in itertools.product(parts, keys):
            if not all(least <= number <= most for number in _numbers(getattr(part, key, None))):
                return f"`{key}` lies between {least} and {most}"
    return None


def _numbers(value: Any) -> Iterable[float]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, tuple) else () if value is None else (value,)


def refuse_newer(raw: bytes, known: int, where: str) -> None:
    """Look at a JSON document's `schema_version` alone, since nothing else of a newer layout can be
    known.

    Raises:
        RunFolderError: `where` has a schema after `known`.
        msgspec.DecodeError: no JSON object.
        RecursionError: nested too deeply.
    """
    version = msgspec.json.decode(raw, type=dict[str, object]).get("schema_version")
    if isinstance(version, int) and version > known:
        raise RunFolderError(
            f"{where} has schema {version}, newer than this draftbench reads ({known})",
            hint="update draftbench",
        )


def differing_question(one: Manifest, other: Manifest) -> list[str]:
    """Names of the fields in which two runs ask something else; `key_id` where the hashes of their
    requests cannot be compared.
    """
    mine, theirs = msgspec.structs.asdict(one.question), msgspec.structs.asdict(other.question)
    key = ["key_id"] if one.key_id != other.key_id else []
    return key + [name for name in mine if mine[name] != theirs[name]]


def changed_question(before: Manifest, after: Manifest) -> list[str]:
    """The same with both values, each as "name: before → after"."""

    def value(manifest: Manifest, name: str) -> str:
        found = manifest.key_id if name == "key_id" else getattr(manifest.question, name)
        return ", ".join(map(str, found)) if isinstance(found, tuple) else str(found)

    return [
        f"{name}: {value(before, name)} → {value(after, name)}"
        for name in differing_question(before, after)
    ]


def differing_environment(one: Manifest, other: Manifest) -> list[str]:
    """What changed between two environments, each as "name: before → after"."""
    before, after = (_facts(manifest) for manifest in (one, other))
    return [
        f"{name}: {before.get(name)} → {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _facts(manifest: Manifest) -> dict[str, object]:
    facts = msgspec.structs.asdict(manifest.environment)
    packages = facts.pop("packages")
    del facts["load"]
    return {"draftbench": manifest.draftbench, **facts, **packages}


def portable(text: str) -> str:
    """Without this user's home directory, which names the user in files that may be shared, and
    without control characters.
    """
    return without_controls(text.replace(f"{Path.home()}/", "~/"))


def unpinned(spec: str) -> str:
    """A hub id without its revision; paths may hold an @."""
    path = spec.startswith((".", "/", "~")) or spec.count("/") > 1
    return spec if path else spec.partition("@")[0]


def short_name(spec: str) -> str:
    """The last part of a path or hub id, without a file's ending or a pinned revision."""
    path = PurePath(unpinned(spec))
    return path.stem if path.suffix == ".gguf" else path.name


def environment(threads: int, accelerator: str | None) -> Environment:
    """Facts about this machine; without torch, whose part the caller gives."""
    cores = cores_here()
    return Environment(
        platform=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=cores,
        threads=threads,
        accelerator=accelerator,
        python=".".join(map(str, sys.version_info[:3])),
        packages={name: version for name in PACKAGES if (version := _version(name))},
        load=round(os.getloadavg()[0] / cores, 2) if hasattr(os, "getloadavg") else None,
    )


def cores_here() -> int:
    """Cores that this process may use."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return own or 1


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text(errors="replace"))
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()
