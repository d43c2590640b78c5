"""`draftbench estimate`: what formulas alone say, before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.flags import (
    FORMATS,
    FormatOption,
    OutputOption,
    draft_lengths,
    one_of,
)
from draftbench.cli.output import check_output, width, write_result
from draftbench.errors import UsageError

if TYPE_CHECKING:
    from draftbench.planner.roofline import Load

_FORMS = (
    "`draftbench estimate --alpha 0.75 --draft-cost 0.05` or "
    "`draftbench estimate --target CONFIG --draft CONFIG --hardware h100`"
)


def estimate(
    alpha: Annotated[float | None, typer.Option(help="Acceptance rate, 0 to 1.")] = None,
    draft_cost: Annotated[
        float | None, typer.Option(help="c: time of one draft step over one target step.")
    ] = None,
    verify_ratio: Annotated[
        float | None,
        typer.Option(help="v: target pass over k+1 tokens over one (default: 1)."),
    ] = None,
    overhead: Annotated[
        float | None, typer.Option(help="o: what a round costs besides, in target steps.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="config.json of the target, or its folder.")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(help="config.json of the draft, or its folder.")
    ] = None,
    hardware: Annotated[str | None, typer.Option(help="The card, for example h100.")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "--batch", min=1, help="Sequences decoded together (default: 1)."
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each of them (default: 2048).")
    ] = None,
    memory_share: Annotated[
        float | None,
        typer.Option(help="Of the card, for weights and cache (default: 0.92, vLLM's)."),
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Draft lengths, for example 1-10.")] = "1-10",
    output_format: FormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Say what formulas alone promise: of an acceptance rate, or of two models on a card.

    draftbench estimate --alpha 0.75 --draft-cost 0.05 --verify-ratio 1.1 --k 1-10
    draftbench estimate --target ./big/config.json --draft ./small --hardware h100
    draftbench estimate --target ./big --draft ./small --hardware h200 \\
        --concurrency 16 --context 8192
    """
    one_of("--format", output_format, FORMATS)
    check_output(output)
    ks = draft_lengths(k)
    formula = (alpha, draft_cost, verify_ratio, overhead)
    size = (concurrency, context, memory_share)
    models = (target, draft, hardware, *size)
    if alpha is not None and draft_cost is not None and not any(v is not None for v in models):
        text = _closed_form(alpha, draft_cost, ks, (verify_ratio, overhead), output_format)
    elif target and draft and hardware and not any(v is not None for v in formula):
        text = _roofline((target, draft), hardware, _load(*size), ks, output_format)
    else:
        raise UsageError("these flags do not go together, or one is missing", hint=_FORMS)
    write_result(text, output)
    return 0


def _closed_form(
    alpha: float,
    cost: float,
    ks: tuple[int, ...],
    round_terms: tuple[float | None, float | None],
    style: str,
) -> str:
    from draftbench.planner.formula import table
    from draftbench.report.estimate import render_table

    verify = 1.0 if round_terms[0] is None else round_terms[0]
    found = table(alpha, cost, ks, verify=verify, overhead=round_terms[1] or 0.0)
    return render_table(found, style, width())


def _load(concurrency: int | None, context: int | None, share: float | None) -> Load:
    from draftbench.planner.roofline import MEMORY_SHARE, Load

    share = MEMORY_SHARE if share is None else share
    if not 0 < share <= 1:
        raise UsageError(
            f"--memory-share {share} is no share of a card", hint="above 0, at most 1; vLLM's 0.92"
        )
    return Load(concurrency or 1, context or 2048, share)


def _roofline(
    models: tuple[Path, Path], hardware: str, load: Load, ks: tuple[int, ...], style: str
) -> str:
    from draftbench.planner.cards import card_named
    from draftbench.planner.roofline import read_shape, roofline
    from draftbench.report.estimate import render_roofline

    card = card_named(hardware)
    target, draft = map(read_shape, models)
    return render_roofline(roofline(target, draft, card, load, ks), style, width())
