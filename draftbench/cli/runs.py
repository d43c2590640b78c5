"""`draftbench runs`: list run folders, delete old ones, or delete the private part of one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.commands import add_command
from draftbench.cli.output import TextOutput, note, write_result
from draftbench.errors import RunFolderError, UsageError
from draftbench.flags import flag
from draftbench.report.text import Section, counted
from draftbench.run_folder.folder import MANIFEST, RunFolder
from draftbench.run_folder.run import read_run

FolderArgument = Annotated[
    Path, typer.Argument(help="The folder that holds the run folders.", metavar="FOLDER")
]
DEFAULT_FOLDER = Path("results/runs")
# The answer, which can take seconds, is computed for this many of the newest runs.
_ANSWERED = 10


@dataclass(frozen=True)
class ListedRun:
    """A run folder in the list; one that cannot be read has a problem and nothing else."""

    run: str  # its path
    created: str = ""
    target: str | None = None
    traffic: str | None = None  # where its requests are from
    requests: int | None = None
    private: str | None = None  # kept or deleted
    status: str | None = None  # complete, or unfinished: its sweep did not go to its end
    answer: str | None = None  # the decision; None for all but the newest runs
    problem: str | None = None  # why it cannot be read


runs = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, prune or redact run folders.\n\n\b\n"
    "draftbench runs\ndraftbench runs redact results/runs/RUN",
)


def list_runs(
    *,
    folder: FolderArgument = DEFAULT_FOLDER,
    output: TextOutput,
) -> int:
    """List the runs in a folder, newest first, with their answers; n counts their requests.

    draftbench runs list
    draftbench runs list /data/runs --format json | jq -r '.[].run'
    """
    from draftbench.planner.recommend import recommend
    from draftbench.report.answer import headline

    listed = _newest_first(folder)
    recent = [at for at, run in enumerate(listed) if not run.problem][:_ANSWERED]
    for at in recent:
        try:
            observed = read_run(RunFolder(Path(listed[at].run)))
            known = headline(recommend(observed)) if observed.candidates else "nothing measured"
        except RunFolderError as error:
            known = error.message
        listed[at] = replace(listed[at], answer=known)
    head = ("run", "answer", "n", "target", "traffic")
    rows, notes = [], []
    for run in listed:
        name, target, traffic = (
            str(path).rstrip("/").rsplit("/", 1)[-1] for path in (run.run, run.target, run.traffic)
        )
        if run.problem:
            notes.append(f"{name}: {run.problem}")
            continue
        unfinished = "unfinished" if run.status == "unfinished" else None
        answer = "; ".join(filter(None, (unfinished, run.answer)))
        rows.append((name, answer or "complete", str(run.requests), target, traffic))
    if kept := sum(run.private == "kept" for run in listed):
        notes.append(
            f"prompts and responses are kept in {counted(kept, 'run')}: `draftbench runs redact "
            "RUN` deletes them"
        )
    section = Section(f"Runs in {folder}, the newest first", head, rows, notes)
    output.show(listed, [section])
    return 0


def newest() -> Path:
    """The newest run in the usual folder.

    Raises:
        UsageError: there is none.
    """
    runs = _newest_first(DEFAULT_FOLDER) if DEFAULT_FOLDER.is_dir() else []
    for run in runs:
        if not run.problem:
            return Path(run.run)
    raise UsageError(
        f"no run is named, and `{DEFAULT_FOLDER}` has none",
        hint="name a run folder, or make one with `draftbench sweep`",
    )


def _newest_first(folder: Path) -> list[ListedRun]:
    if not folder.is_dir():
        raise UsageError(
            f"no folder `{folder}`", hint="`draftbench sweep` creates it; or name another folder"
        )
    listed: list[ListedRun] = []
    for path in sorted(entry.parent for entry in folder.glob(f"*/{MANIFEST}")):
        try:
            run = RunFolder(path)
        except RunFolderError as error:
            listed.append(ListedRun(str(path), problem=error.message))
            continue
        listed.append(
            ListedRun(
                str(path),
                created=run.manifest.created,
                target=run.manifest.question.target,
                traffic=run.manifest.question.traffic,
                requests=run.manifest.requests,
                private="deleted" if run.redacted else "kept",
                status="complete" if run.manifest.under_way is None else "unfinished",
            )
        )
    return sorted(listed, key=lambda run: run.created, reverse=True)


def prune(
    *,
    folder: FolderArgument = DEFAULT_FOLDER,
    keep: int = flag(10, "How many of the newest runs to keep.", min=0),
    yes: bool = flag(False, "Delete them; without this flag they are only listed."),
) -> int:
    """Delete the oldest runs of a folder. Runs that cannot be read or are being written stay.

    draftbench runs prune --keep 20
    draftbench runs prune results/runs --keep 20 --yes
    """
    readable = [run for run in _newest_first(folder) if not run.problem]
    for run in readable[keep:]:
        path = Path(run.run)
        if yes:
            try:
                with RunFolder(path).writer():  # nobody else may be writing to it
                    shutil.rmtree(path)
            except (OSError, RunFolderError) as error:
                note(f"kept {path}: {error}")
                continue
        write_result(f"{'deleted' if yes else 'would delete'} {path}")
    if not yes and readable[keep:]:
        note("`--yes` deletes them")
    return 0


def redact(
    run: Annotated[Path, typer.Argument(help="A run folder made by `sweep`.", metavar="RUN")],
) -> int:
    """Delete a run's prompts and responses. Every figure stays, but the sweep cannot be resumed.

    draftbench runs redact results/runs/RUN
    """
    RunFolder(run).redact()
    note(f"deleted the private part of {run}; its figures are unchanged")
    return 0


add_command(runs, list_runs, "List the runs in a folder, newest first.", "list")
add_command(runs, prune, "Delete the oldest runs of a folder.")
add_command(runs, redact, "Delete the prompts and responses of a run; its figures stay.")
