"""`draftbench runs`: which runs are there, and deleting what of a run may not be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.values import OutputOption, one_of, write_result
from draftbench.errors import RunFolderError, UsageError

runs = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List run folders, or redact one."
)


@runs.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.", metavar="FOLDER")] = Path(
        "results/runs"
    ),
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    output: OutputOption = "-",
) -> int:
    """List the runs in a folder, the newest first.

    draftbench runs list
    draftbench runs list /data/runs --format json | jq -r '.[].run'
    """
    import msgspec

    from draftbench.report.text import columns

    one_of("--format", output_format, ["table", "json"])
    if not folder.is_dir():
        raise UsageError(
            f"no folder `{folder}`", hint="`draftbench sweep` makes it; or name another one"
        )
    found = sorted(_runs(folder), key=lambda run: str(run["created"]), reverse=True)
    if output_format == "json":
        write_result(msgspec.json.format(msgspec.json.encode(found), indent=2).decode(), output)
    else:
        head = ("run", "created", "target", "traffic", "requests", "private", "problem")
        rows = [tuple(str(run[name] or "") for name in head) for run in found]
        write_result(columns(head, rows), output)
    return 0


def _runs(folder: Path) -> list[dict[str, str | int | None]]:
    """One row a run; a folder that cannot be read is a row with its problem."""
    from draftbench.store.folder import MANIFEST, RunFolder

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


@runs.command()
def redact(
    run: Annotated[Path, typer.Argument(help="A run folder that `sweep` made.", metavar="RUN")],
) -> int:
    """Delete a run's prompts and responses; every figure stays. The run cannot be continued then.

    draftbench runs redact results/runs/RUN
    """
    from draftbench.store.folder import RunFolder

    RunFolder(run).redact()
    typer.echo(f"deleted the private part of {run}; its figures are as before", err=True)
    return 0
