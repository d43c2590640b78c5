"""`draftbench runs`: list run folders, delete old ones, or delete the private part of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import TEXT_FORMATS, OutputOption, RunArgument, TextFormatOption, one_of
from draftbench.cli.help import Command, help_of
from draftbench.cli.output import check_output, note, write_result
from draftbench.errors import RunFolderError, UsageError

Row = dict[str, str | int | None]
FolderArgument = Annotated[
    Path, typer.Argument(help="The folder that holds the run folders.", metavar="FOLDER")
]
DEFAULT_FOLDER = Path("results/runs")

runs = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, prune or redact run folders.\n\n\b\n"
    "draftbench runs list\ndraftbench runs redact results/runs/RUN",
)


def list_runs(
    folder: FolderArgument = DEFAULT_FOLDER,
    output_format: TextFormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """List the runs in a folder, newest first; n counts their requests.

    draftbench runs list
    draftbench runs list /data/runs --format json | jq -r '.[].run'
    """
    from draftbench.records import to_json
    from draftbench.report.terminal.text import Section, columns, plain

    one_of("--format", output_format, TEXT_FORMATS)
    check_output(output)
    listed = _newest_first(folder)
    if output_format == "json":
        write_result(to_json(listed), output)
        return 0
    head = ("run", "created", "target", "traffic", "n", "texts")
    broken = [f"{Path(str(run['run'])).name}: {run['problem']}" for run in listed if run["problem"]]
    rows = [_cells(run) for run in listed if not run["problem"]]
    if output_format == "markdown":
        write_result(Section(f"Runs in {folder}", head, rows, broken).markdown(), output)
    else:
        write_result("\n".join([columns(head, rows), *map(plain, broken)]), output)
    return 0


def _newest_first(folder: Path) -> list[Row]:
    """One row per run; a folder that cannot be read is a row with its problem."""
    from draftbench.run_folder.folder import MANIFEST, RunFolder

    if not folder.is_dir():
        raise UsageError(
            f"no folder `{folder}`", hint="`draftbench sweep` creates it; or name another folder"
        )
    rows: list[Row] = []
    for path in sorted(entry.parent for entry in folder.glob(f"*/{MANIFEST}")):
        row: Row = dict.fromkeys(
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
    return sorted(rows, key=lambda run: str(run["created"]), reverse=True)


def _cells(run: Row) -> tuple[str, ...]:
    """Short enough for a terminal; the JSON has everything in full."""
    created = str(run["created"]).replace("T", " ")[:16]
    name, target, traffic = (
        str(run[key]).rsplit("/", 1)[-1] for key in ("run", "target", "traffic")
    )
    return name, created, target, traffic, str(run["requests"]), str(run["private"])


def prune(
    folder: FolderArgument = DEFAULT_FOLDER,
    keep: Annotated[int, typer.Option(min=0, help="How many of the newest runs to keep.")] = 10,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete; without it only list what would be deleted.")
    ] = False,
) -> int:
    """Delete the oldest runs of a folder. Runs that cannot be read or are being written stay.

    draftbench runs prune --keep 20
    draftbench runs prune results/runs --keep 20 --yes
    """
    import shutil

    from draftbench.run_folder.folder import RunFolder

    readable = [run for run in _newest_first(folder) if not run["problem"]]
    for run in readable[keep:]:
        path = Path(str(run["run"]))
        if yes:
            try:
                with RunFolder(path).writer():  # nobody else may be writing to it
                    shutil.rmtree(path)
            except (OSError, RunFolderError) as error:
                note(f"kept {path}: {error}")
                continue
        write_result(f"{'deleted' if yes else 'would delete'} {path}", "-")
    if not yes and readable[keep:]:
        note("`--yes` deletes them")
    return 0


def redact(run: RunArgument) -> int:
    """Delete a run's prompts and responses. Every figure stays, but the sweep cannot be resumed.

    draftbench runs redact results/runs/RUN
    """
    from draftbench.run_folder.folder import RunFolder

    RunFolder(run).redact()
    note(f"deleted the private part of {run}; its figures are unchanged")
    return 0


_SUMMARIES: dict[Callable[..., int], str] = {
    list_runs: "List the runs in a folder, newest first.",
    prune: "Delete the oldest runs of a folder.",
    redact: "Delete the prompts and responses of a run; its figures stay.",
}
for command, summary in _SUMMARIES.items():
    name = command.__name__.removesuffix("_runs")
    runs.command(name, cls=Command, help=help_of(command), short_help=summary)(command)
