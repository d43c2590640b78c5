"""`draftbench estimate`: what formulas alone say, before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.values import (
    FORMATS,
    FormatOption,
    OutputOption,
    check_output,
    draft_lengths,
    one_of,
    width,
    write_result,
)
from draftbench.errors import UsageError

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
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences decoded together (default: 1).")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens behind each of them (default: 2048).")
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Draft lengths, for example 1-10.")] = "1-10",
    output_format: FormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Say what formulas alone promise: of an acceptance rate, or of two models on a card.

    draftbench estimate --alpha 0.75 --draft-cost 0.05 --verify-ratio 1.1 --k 1-10
    draftbench estimate --target llama-70b/config.json --draft llama-1b --hardware h100
    """
    one_of("--format", output_format, FORMATS)
    check_output(output)
    ks = draft_lengths(k)
    formula = (alpha, draft_cost, verify_ratio, overhead)
    models = (target, draft, hardware, batch, context)
    if alpha is not None and draft_cost is not None and not any(v is not None for v in models):
        text = _closed_form(alpha, draft_cost, ks, (verify_ratio, overhead), output_format)
    elif target and draft and hardware and not any(v is not None for v in formula):
        text = _roofline((target, draft), hardware, (batch, context), ks, output_format)
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
    from draftbench.plan.formula import table
    from draftbench.report.estimate import render_table

    verify = 1.0 if round_terms[0] is None else round_terms[0]
    found = table(alpha, cost, ks, verify=verify, overhead=round_terms[1] or 0.0)
    return render_table(found, style, width())


def _roofline(
    models: tuple[Path, Path],
    hardware: str,
    size: tuple[int | None, int | None],
    ks: tuple[int, ...],
    style: str,
) -> str:
    from draftbench.plan.cards import card_named
    from draftbench.plan.roofline import Load, pairings, read_shape
    from draftbench.report.estimate import render_roofline

    card, load = card_named(hardware), Load(size[0] or 1, size[1] or 2048)
    target, draft = map(read_shape, models)
    return render_roofline(pairings(target, draft, card, load, ks), card, load, style, width())
