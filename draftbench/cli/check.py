"""`draftbench check`: configurations and tokenizers of target and drafts → can they work?"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.flags import (
    DRAFTS,
    TEXT_FORMATS,
    OutputOption,
    TargetOption,
    TextFormatOption,
    TrustOption,
    complete_traffic,
    model_names,
    one_of,
    size_of,
)
from draftbench.cli.output import check_output, note, width, write_result
from draftbench.errors import UsageError

if TYPE_CHECKING:
    from draftbench.models.source import ModelSource


def check(
    target: TargetOption,
    drafts: Annotated[list[str], DRAFTS],
    traffic: Annotated[
        str | None,
        typer.Option(
            help="Count how often these requests use tokens that the drafts lack.",
            metavar="SOURCE",
            autocompletion=complete_traffic,
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="How many requests of --traffic to read.")
    ] = 256,
    memory: Annotated[
        str | None,
        typer.Option(
            help="The memory for target and draft together, e.g. 24GB (default: this machine's).",
            metavar="SIZE",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Show chat templates, sizes, memory and engine options too."),
    ] = False,
    trust_remote_code: TrustOption = False,
    output_format: TextFormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Check whether drafts can work with a target, before any weights load. Exits 1 if one cannot.

    draftbench check --target ./big --drafts ./small,./tiny
    draftbench check --target ./big --drafts ./small --traffic prod.jsonl
    draftbench check --target ./big --drafts ./small --memory 24GB
    """
    one_of("--format", output_format, TEXT_FORMATS)
    check_output(output)
    size = None if memory is None else size_of("--memory", memory)
    names = model_names("--drafts", drafts)
    for name in ("ngram", "self"):
        if name in names:
            raise UsageError(
                f"`{name}` is not a model that can be checked",
                hint="it works with every target; leave it out",
            )
    from draftbench.models.check import check_models, memory_here
    from draftbench.models.source import ModelSource, Trust
    from draftbench.report.terminal.check import render

    trust = Trust(remote_code=trust_remote_code)
    source = ModelSource(target, trust)
    models = [ModelSource(name, trust) for name in names]
    for model in (source, *models):
        if model.on_hub:
            note(
                f"note: the configuration and tokenizer of {model.spec} are fetched from the "
                "model hub unless they are cached"
            )
    tokens = None if traffic is None else _tokens(source, traffic, sample)
    answer = check_models(source, models, memory_here() if size is None else size, tokens)
    write_result(render(answer, output_format, width(), everything=everything), output)
    return 1 if any(pair.obstacles for pair in answer.pairs) else 0


def _tokens(target: ModelSource, traffic: str, sample: int) -> dict[int, float]:
    """How often the requests and their logged answers use each of the target's tokens."""
    from draftbench.measure.prompts import TextSide
    from draftbench.run_folder.key import request_key
    from draftbench.traffic import TrafficQuery, load

    query = TrafficQuery(traffic, sample, 0, None, None, None, False, request_key())
    if query.on_hub:
        note(f"note: {traffic} is fetched from the dataset hub unless it is cached")
    text, counts = TextSide(target), defaultdict[int, float](float)
    for request in load(query).requests:
        prompt = text.prompt(request, 1, sys.maxsize)
        for token in (*(prompt.tokens if prompt else ()), *text.answer(request)):
            counts[token] += request.weight
    return counts
