"""`draftbench runs`: which runs are there, and deleting old ones or what of one is private."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import (
    TEXT_FORMATS,
    OutputOption,
    TextFormatOption,
    one_of,
    write_result,
)
from draftbench.cli.help import Command, help_of
from draftbench.errors import RunFolderError, UsageError

runs = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, prune or redact run folders.\n\n\b\n"
    "draftbench runs list\ndraftbench runs redact results/runs/RUN",
)
FolderArgument = Annotated[Path, typer.Argument(help="Where to look.", metavar="FOLDER")]
USUAL_FOLDER = Path("results/runs")


def list_runs(
    folder: FolderArgument = USUAL_FOLDER,
    output_format: TextFormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """List the runs in a folder, the newest first; n counts their requests.

    draftbench runs list
    draftbench runs list /data/runs --format json | jq -r '.[].run'
    """
    import msgspec

    from draftbench.report.terminal.text import Section, columns, plain

    one_of("--format", output_format, TEXT_FORMATS)
    found = _newest_first(folder)
    if output_format == "json":
        write_result(msgspec.json.format(msgspec.json.encode(found), indent=2).decode(), output)
        return 0
    head = ("run", "created", "target", "traffic", "n", "texts")
    broken = [f"{_name(run)}: {run['problem']}" for run in found if run["problem"]]
    rows = [_row(run) for run in found if not run["problem"]]
    if output_format == "markdown":
        write_result(Section(f"Runs in {folder}", head, rows, broken).markdown(), output)
    else:
        write_result("\n".join([columns(head, rows), *map(plain, broken)]), output)
    return 0


def _newest_first(folder: Path) -> list[dict[str, str | int | None]]:
    if not folder.is_dir():
        raise UsageError(
            f"no folder `{folder}`", hint="`draftbench sweep` makes it; or name another one"
        )
    return sorted(_runs(folder), key=lambda run: str(run["created"]), reverse=True)


def _name(run: dict[str, str | int | None]) -> str:
    return Path(str(run["run"])).name


def _row(run: dict[str, str | int | None]) -> tuple[str, ...]:
    """Short enough for a terminal; the JSON has everything in full."""
    created = str(run["created"]).replace("T", " ")[:16]
    target, traffic = (str(run[key]).rsplit("/", 1)[-1] for key in ("target", "traffic"))
    return _name(run), created, target, traffic, str(run["requests"]), str(run["private"])


def _runs(folder: Path) -> list[dict[str, str | int | None]]:
    """One row a run; a folder that cannot be read is a row with its problem."""
    from draftbench.run_folder.folder import MANIFEST, RunFolder

    rows: list[dict[str, str | int | None]] = []
    for path in sorted(entry.parent for entry in folder.glob(f"*/{MANIFEST}")):
        row: dict[str, str | int | None] = dict.fromkeys(
            ("run", "created", "target", "traffic", "requests", "private", "problem"), None
        )
        row |= {"run": str(path), "created": ""}
        try:
            run = RunFolder(path)
        except RunFolderError as error:
            row["problem"] = error.message
        else:
            row |= {
                "created": run.manifest.created,
                "target": run.manifest.question.target,
                "traffic": run.manifest.question.traffic,
                "requests": run.manifest.traffic.requests,
                "private": "deleted" if run.redacted else "kept",
            }
        rows.append(row)
    return rows


def prune(
    folder: FolderArgument = USUAL_FOLDER,
    keep: Annotated[int, typer.Option(min=0, help="The newest runs that stay.")] = 10,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, say what would go.")] = (
        False
    ),
) -> int:
    """Delete the oldest runs of a folder. Runs that cannot be read, or are being made, stay.

    draftbench runs prune --keep 20
    draftbench runs prune results/runs --keep 20 --yes
    """
    import shutil

    from draftbench.run_folder.folder import RunFolder

    known = [run for run in _newest_first(folder) if not run["problem"]]
    for run in known[keep:]:
        path = Path(str(run["run"]))
        if yes:
            try:
                with RunFolder(path).writer():  # nobody else may be writing to it
                    shutil.rmtree(path)
            except (OSError, RunFolderError) as error:
                typer.echo(f"kept {path}: {error}", err=True)
                continue
        write_result(f"{'deleted' if yes else 'would delete'} {path}", "-")
    if not yes and known[keep:]:
        typer.echo("`--yes` deletes them", err=True)
    return 0


def redact(
    run: Annotated[Path, typer.Argument(help="A run folder that `sweep` made.", metavar="RUN")],
) -> int:
    """Delete a run's prompts and responses; every figure stays. The run cannot be continued then.

    draftbench runs redact results/runs/RUN
    """
    from draftbench.run_folder.folder import RunFolder

    RunFolder(run).redact()
    typer.echo(f"deleted the private part of {run}; its figures are as before", err=True)
    return 0


_SUMMARIES: dict[Callable[..., int], str] = {
    list_runs: "Those of a folder, the newest first.",
    prune: "Delete the oldest.",
    redact: "Delete the prompts and responses of one; its figures stay.",
}
for command, summary in _SUMMARIES.items():
    name = command.__name__.removesuffix("_runs")
    runs.command(name, cls=Command, help=help_of(command), short_help=summary)(command)
