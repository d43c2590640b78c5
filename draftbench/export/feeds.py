"""What tools that simulate or schedule serving take of a run: how many drafted tokens the target
accepts, or how many passes it makes a second. They assume nothing themselves.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from draftbench.acceptance.candidate_rounds import CandidateRounds, candidate_rounds
from draftbench.acceptance.definitions import mean_accepted_length, tokens_per_round
from draftbench.acceptance.intervals import estimate
from draftbench.errors import UsageError
from draftbench.records import Candidate
from draftbench.run_folder.run import Run


@dataclass(frozen=True)
class Fed:
    """What a tool is given, and what is to be known of it."""

    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Feed:
    """A tool that takes a measured figure."""

    name: str
    read: str  # the version and file in which its format was read
    write: Callable[[Run, Candidate, int], Fed]  # of a candidate at one k


def _accepted(run: Run, candidate: Candidate, k: int) -> Fed:
    rounds = candidate_rounds(run, candidate)
    tokens = tokens_per_round(rounds.trajectories, rounds.at(k))
    if (found := estimate(tokens)) is None or tokens.value is None:
        value, between = _known(tokens.value), "no interval: too few requests"
    else:
        value, between = found.value, f"95% interval {found.low - 1:.2f} to {found.high - 1:.2f}"
    return Fed(
        f"--nextn {k} --nextn-accepted {value - 1:.3f}",
        (
            f"accepted draft tokens a step of {candidate}, {between}, "
            f"{_requests(rounds)}: try both ends too",
            "it models the cost of a target's own layers: the cost of this draft is not in it",
        ),
    )


def _golden(run: Run, candidate: Candidate, k: int) -> Fed:
    rounds, question = candidate_rounds(run, candidate), run.manifest.question
    temperatures = sorted({t.sampling.temperature for t in run.trajectories})
    lines = [
        "# Mean accepted length, with the target's token, by num_speculative_tokens.",
        f"# {_requests(rounds)} of {question.traffic}; temperature {_listed(temperatures)}",
    ]
    values = []
    for length in filter(rounds.knows, question.ks):
        sample = mean_accepted_length(rounds.trajectories, rounds.at(length))
        between = (found := estimate(sample)) and f"  # {found.low:.2f} to {found.high:.2f}"
        values.append(f"    {length}: {_known(sample.value):.2f}{between or ''}")
    model = json.dumps(question.target.rstrip("/").rpartition("/")[2].lower())
    draft = json.dumps(run.manifest.specs.get(candidate.draft, candidate.draft))
    body = ["_metadata:", f"  draft-model: {draft}", f"{model}:", "  thinking_off:", *values]
    return Fed(
        "\n".join([*lines, *body]),
        (
            "rename thinking_off to thinking_on if the log's requests think",
            "InferenceX measures its own on SPEED-Bench's coding prompts: this is your traffic",
        ),
    )


def _passes(run: Run, candidate: Candidate, k: int) -> Fed:
    seconds = defaultdict[int, list[float]](list)
    middle = sorted({p.context for p in run.costs if p.candidate is None and p.what == "step"})
    for point in run.costs:
        target = point.candidate is None and point.what == "step"
        if target and point.context == middle[len(middle) // 2]:
            seconds[point.new_tokens * point.concurrency].append(median(point.seconds))
    if not seconds:
        raise UsageError(
            "the run timed no passes of the target, which this table consists of",
            hint="a sweep on an engine times none; `sglang`'s own profiler writes such a table",
        )
    table = {
        "sample_batch_tokens": sorted(seconds),
        "sample_steps_per_sec": [round(1 / median(seconds[n]), 3) for n in sorted(seconds)],
        "max_batch_tokens": max(seconds),
    }
    return Fed(
        json.dumps(table),
        (
            f"passes of {run.manifest.question.target} as draftbench's decoder makes them on "
            f"{run.manifest.question.device}: on a server's card profile SGLang itself "
            "(sglang.benchmark.dspark_sps_profiler)",
            "serve with --speculative-algorithm DSPARK --speculative-dspark-sps-table-path FILE",
        ),
    )


FEEDS = {
    "aiconfigurator": Feed("AIConfigurator", "0.12.0 sdk/speculative.py", _accepted),
    "inferencex": Feed("InferenceX", "ce4e6f07 golden_al_distribution", _golden),
    "sglang-sps": Feed("SGLang's table for DSpark", "0.5.23 dspark_sps.py", _passes),
}


def _requests(rounds: CandidateRounds) -> str:
    return f"{len({t.request for t in rounds.trajectories})} requests"


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _known(value: float | None) -> float:
    if value is None:
        raise UsageError(
            "the run does not know how many tokens are accepted at this k",
            hint="`draftbench acceptance RUN --all` shows at which it does",
        )
    return value
