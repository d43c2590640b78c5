"""`draftbench check`: configurations and tokenizers of target and drafts → can they work?"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from draftbench.cli.flags import traffic_flag, traffic_query
from draftbench.cli.output import TextOutput, note, width
from draftbench.flags import drafts_flag, flag, size_of, target_flag, trust_flag
from draftbench.hub import Trust, refuse_missing
from draftbench.models.drafting import parsed
from draftbench.records import SELF, draft_of_stack

if TYPE_CHECKING:
    from draftbench.models.source import ModelSource


_EVERY_TARGET = "it works with every target"
_STACKED = (
    "prompt lookup goes with every draft, and of the engines llama.cpp alone looks up first "
    "(--spec-type ngram-simple,draft-…; before a head it then accepts a little less than replay)"
)
# Ways to draft without anything that could be checked.
_UNCHECKED = {
    "ngram": _EVERY_TARGET,
    "suffix": "vLLM drafts so for every target",
    "raw": "only the engine knows whether it can draft so",
}


def check(
    *,
    target: str = target_flag(),
    drafts: tuple[str, ...] = drafts_flag(),
    traffic: str | None = traffic_flag(
        None, "Count how often these requests use tokens that the drafts lack."
    ),
    sample: int = flag(256, "How many requests of --traffic to read.", min=1),
    memory: int | None = flag(
        None,
        "The memory for target and draft together, e.g. 24GB (default: this machine's).",
        "SIZE",
        parse=partial(size_of, "--memory"),
    ),
    everything: bool = flag(
        False, "Show chat templates, sizes, memory and engine options too.", names=("--all",)
    ),
    trust_remote_code: bool = trust_flag(),
    output: TextOutput,
) -> int:
    """Check whether drafts can work with a target, before any weights load. Exits 1 if one cannot.

    draftbench check --target ./big --drafts ./small,./tiny
    draftbench check --target ./big --drafts ./small --traffic prod.jsonl
    draftbench check --target ./big --drafts ./small --memory 24GB
    """
    for name in drafts:
        if parsed(name) and draft_of_stack(name):
            note(f"note: `{name}` is checked as its draft: {_STACKED}")
    methods = {n: parsed(n)[0] for n in dict.fromkeys(draft_of_stack(d) or d for d in drafts)}
    for name, method in list(methods.items()):
        if name == SELF or method in _UNCHECKED:
            note(f"note: `{name}` is not a model: {_UNCHECKED.get(method, _EVERY_TARGET)}")
            del methods[name]
    for spec in (target, *(name for name in methods if methods[name] == "draft-model")):
        refuse_missing(spec)  # before libraries load
    from draftbench.models.check import check_models, memory_here
    from draftbench.models.heads import checkpoint_of
    from draftbench.models.source import ModelSource
    from draftbench.report.terminal.check import render

    trust = Trust(remote_code=trust_remote_code)
    source = ModelSource(target, trust)
    models = [checkpoint_of(name, trust) for name in methods if methods[name] == "draft-model"]
    heads = [name for name, method in methods.items() if method != "draft-model"]
    for model in (source, *models):
        if model.on_hub:
            note(
                f"note: the configuration and tokenizer of {model.spec} are fetched from the "
                "model hub unless they are cached"
            )
    tokens = None if traffic is None else _tokens(source, traffic, sample)
    answer = check_models(source, models, memory or memory_here(), tokens, heads=heads)
    output.write(render(answer, output.style, width(), everything=everything))
    obstacles = [each.obstacles for each in answer.pairs] + [
        each.obstacles for each in answer.heads
    ]
    return 1 if any(obstacles) else 0


def _tokens(target: ModelSource, traffic: str, sample: int) -> dict[int, float]:
    """How often the requests and their logged answers use each token id of the target."""
    from draftbench.measure.prompts import TextSide
    from draftbench.traffic import load

    query = traffic_query(traffic, sample)
    if query.on_hub:
        note(f"note: {traffic} is fetched from the dataset hub unless it is cached")
    text, counts = TextSide(target), defaultdict[int, float](float)
    for request in load(query).requests:
        prompt = text.prompt(request, 1, sys.maxsize)
        for token in (*(prompt.tokens if prompt else ()), *text.answer(request)):
            counts[token] += request.weight
    return counts
