"""The table of `on_a_card.sh`: tokens per second of all that ran, by rows in flight, and what each
draft gained over the same without it.

    python scripts/card_table.py OUT

Those of draftbench's runs are counted after the first token: the tokens of the responses over their
seconds of decoding, times the rows in flight. Of every draft the fastest k is shown.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from draftbench.errors import DraftbenchError
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

# Folders of runs in OUT, and what their rows are called.
RUNS = {"built-in": "draftbench", "vllm": "sweep on vLLM"}


class Speed(NamedTuple):
    """Tokens per second with so many rows in flight; `over` names the same without a draft."""

    name: str
    rows: int
    tokens_per_second: float
    over: str | None = None


def peers(file: Path) -> tuple[dict[str, float], list[Speed]]:
    """The figures of the card and the model by name, and the speeds of the peers."""
    facts: dict[str, float] = {}
    speeds: list[Speed] = []
    for line in file.read_text().splitlines() if file.exists() else ():
        told = json.loads(line)
        if "rows" in told:
            speeds.append(Speed(**told))
        else:
            name = told.pop("name")
            (facts[name],) = told.values()
    return facts, speeds


def measured(run: Run, name: str) -> list[Speed]:
    """A run's speeds without a draft, and with each draft at its fastest k."""
    tokens: defaultdict[tuple[str | None, int, int], int] = defaultdict(int)
    seconds: defaultdict[tuple[str | None, int, int], float] = defaultdict(float)
    for row in run.decodes:
        cell = (row.candidate and str(row.candidate), row.k, row.concurrency)
        tokens[cell] += row.output_tokens - 1
        seconds[cell] += row.decode_seconds
    plain, found = f"{name}, plain", []
    speeds = {cell: cell[2] * tokens[cell] / seconds[cell] for cell in tokens if seconds[cell]}
    for (draft, k, rows), speed in speeds.items():
        if draft is None:
            found.append(Speed(plain, rows, speed))
        elif speed == max(s for (d, _, r), s in speeds.items() if (d, r) == (draft, rows)):
            found.append(Speed(f"{name}, {draft} (k = {k})", rows, speed, plain))
    return found


def table(facts: dict[str, float], speeds: list[Speed]) -> list[str]:
    """The lines of a table in Markdown."""
    counts = sorted({speed.rows for speed in speeds})
    lines = [
        "| tokens a second | " + " | ".join(f"{count} in flight" for count in counts) + " |",
        "|---" * (1 + len(counts)) + "|",
    ]
    if {"memory", "weights"} <= facts.keys():
        read, size = facts["memory"], facts["weights"]
        floor = f"most: {size / 1e9:.3g} GB of weights read at {read / 1e12:.3g} TB/s"
        lines.append(f"| {floor} | {read / size:.0f} |" + " |" * (len(counts) - 1))
    by_name = {(speed.name, speed.rows): speed.tokens_per_second for speed in speeds}
    for name, over in dict.fromkeys((speed.name, speed.over) for speed in speeds):
        cells = []
        for count in counts:
            speed, plain = by_name.get((name, count)), by_name.get((over or "", count))
            ratio = f", **{speed / plain:.2f}×**" if speed and plain else ""
            cells.append("" if speed is None else f"{speed:.0f}{ratio}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main(out: Path) -> None:
    facts, speeds = peers(out / "peers.jsonl")
    for folder, name in RUNS.items():
        if (out / folder / "run.json").exists():
            speeds += measured(read_run(RunFolder(out / folder)), name)
    if not speeds:
        sys.exit("error: nothing was timed")
    print("\n".join(table(facts, speeds)))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except DraftbenchError as error:
        sys.exit(f"error: {error}")
