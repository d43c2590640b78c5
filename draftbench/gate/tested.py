"""A run's head and facts → what a baseline names as the thing tested: by name what may change from
run to run, and back from there on how many CPU threads it ran.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from draftbench.records import Candidate, LookupReplay, ModelFacts
from draftbench.run_folder.manifest import Environment
from draftbench.run_folder.observed import Observed


def tested_of(observed: Observed, candidate: Candidate) -> dict[str, str]:
    """Facts that may change, by name; those that are unknown are left out."""
    asked, where = observed.manifest.question, observed.manifest.environment
    tested = {
        # The name alone: a directory that was moved is no other target.
        "target": PurePath(asked.target).name,
        **_model("target", observed.facts_of(None)),
        "draft": candidate.draft,
        "draft quant": candidate.quant,
        **_model("draft", observed.facts_of(candidate)),
        "target quant": asked.target_quant,
        "dtype": asked.dtype,
        "device": asked.device,
        "machine": _machine(where),
        "draftbench": observed.manifest.draftbench,
        "python": where.python,
        **where.packages,
    }
    if any(isinstance(r, LookupReplay) and r.draft == candidate.draft for r in observed.replays):
        tested["lookup window"] = f"{asked.lookup_longest} to {asked.lookup_shortest}"
    return tested


def _machine(where: Environment) -> str:
    return (
        f"{where.platform}, {where.processor}, {where.cores} cores, {where.threads} threads, "
        f"{where.accelerator or 'no accelerator'}"
    )


def threads_of(tested: Mapping[str, str]) -> int | None:
    """CPU threads of the machine that `tested_of` describes; None where it does not say."""
    found = re.search(r" cores, (\d{1,6}) threads, ", tested.get("machine", ""))
    return int(found[1]) if found else None


def _model(name: str, facts: ModelFacts | None) -> dict[str, str]:
    if facts is None:
        return {}
    return {
        f"{name} fingerprint": facts.fingerprint,
        **{f"{name} {part}": digest for part, digest in facts.parts.items()},
        f"{name} dtype": facts.dtype,
        f"{name} runner": facts.runner,
    }
