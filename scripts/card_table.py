"""The tables of `on_a_card.sh`, from what lies in OUT: its figures beside what is wanted of them;
tokens per second of all that ran, by rows in flight, and what each draft gained over the same
without it; what the runs say of themselves; what was not done.

    python scripts/card_table.py OUT

Tokens per second of draftbench's runs are counted after the first token: the tokens of the
responses over their seconds of decoding, times the rows in flight. Of every draft the fastest k is
shown.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from draftbench.errors import DraftbenchError
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.records import Replay
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

# Runs whose speeds are compared, and what they are called there.
TIMED = {"built-in": "draftbench", "vllm": "sweep on vLLM"}
# The largest c of a draft that a card was asked for, by the model's folder.
WANTED = {"d1": "at most 0.22", "d03": "at most 0.05"}

Row = tuple[str, str, str]  # what, as seen, as wanted


class Speed(NamedTuple):
    """Tokens per second with so many rows in flight; `over` names the same without a draft."""

    name: str
    rows: int
    tokens_per_second: float
    over: str | None = None


def lines_of(file: Path) -> list[dict]:
    """The lines of JSON of a file; none if it is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


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


def costs(run: Run, read: float | None) -> Iterator[Row]:
    """A step of the target at one row, beside a `read` of its weights, and c of each draft."""
    steps = [
        seconds
        for cost in run.costs
        if (cost.candidate, cost.what, cost.concurrency, cost.new_tokens) == (None, "step", 1, 1)
        for seconds in cost.seconds
    ]
    if read is not None and steps:
        seen = f"{median(steps) * 1e3:.2f} ms, {read / median(steps):.0%} of the memory's speed"
        yield "a step of the target, one row", seen, "at least 80%"
    answer = recommend(run, DecisionOptions(concurrency=(1,)))
    for draft in dict.fromkeys((each.draft, each.quant) for each in answer.evaluations):
        found = (each for each in answer.evaluations if (each.draft, each.quant) == draft)
        if (c := next(found).draft_cost_ratio) is not None:
            whole = draft[1] == "none"
            level, wanted = ("", WANTED.get(draft[0], "")) if whole else (f" at {draft[1]}", "")
            yield f"c of {draft[0]}{level}", f"{c.value:.3f}", wanted
    if (error := answer.prediction_error) is not None:
        seen = f"{error.median:.1%} in the median, {error.worst:.1%} at most"
        yield "speed-ups predicted, off by", seen, "3% in the median"


def kernels(lines: list[dict]) -> Iterator[Row]:
    """Of each level, the speed at which matrices are read; attention beside FlashAttention."""
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        name, seconds = line["what"], line["seconds"]
        if name.startswith("attention"):
            shares["attention"].append(seconds / line["FlashAttention"])
        else:
            level, tokens = name.split()[0], name.rpartition(" ")[2]
            shares[f"{level}, tokens {tokens}"].append(line["bytes"] / seconds / line["read"])
    for name, found in shares.items():
        low, high = f"{min(found):.0%}", f"{max(found):.0%}"
        if name == "attention":
            yield "attention, of FlashAttention's time", f"{low} to {high}", "at most 120%"
        else:
            yield f"products, {name}, of a read's speed", f"{low} to {high}", "at least 80%"


def equal_replays(run: Run, other: Run) -> str:
    """How many of another run's replays are those of the run, to the bit."""
    ours = {(row.candidate, row.key): row.accept for row in run.replays if isinstance(row, Replay)}
    theirs = [row for row in other.replays if isinstance(row, Replay)]
    equal = sum(ours.get((row.candidate, row.key)) == row.accept for row in theirs)
    return f"{equal} of {len(theirs)}"


def table(read: float | None, speeds: list[Speed]) -> list[str]:
    """The lines of a table of speeds in Markdown; a `read` of the weights takes so many seconds."""
    counts = sorted({speed.rows for speed in speeds})
    lines = [
        "| tokens a second | " + " | ".join(f"{count} in flight" for count in counts) + " |",
        "|---" * (1 + len(counts)) + "|",
    ]
    if read is not None:
        floor = f"most: weights read at the memory's speed | {1 / read:.0f}"
        lines.append(f"| {floor} |" + " |" * (len(counts) - 1))
    by_name = {(speed.name, speed.rows): speed.tokens_per_second for speed in speeds}
    for name, over in dict.fromkeys((speed.name, speed.over) for speed in speeds):
        cells = []
        for count in counts:
            speed, plain = by_name.get((name, count)), by_name.get((over or "", count))
            ratio = f", **{speed / plain:.2f}×**" if speed and plain else ""
            cells.append("" if speed is None else f"{speed:.0f}{ratio}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def not_done(out: Path, runs: dict[str, Run]) -> list[str]:
    """A line for every candidate that failed, and for every step that was left out."""
    failed = [
        f"NOT DONE  {name}, {failure.candidate}: {failure.reason}"
        for name, run in runs.items()
        for failure in run.failures
    ]
    steps = out / "not-done.txt"
    return failed + (steps.read_text().splitlines() if steps.exists() else [])


def main(out: Path) -> None:
    speeds = [Speed(**told) for told in lines_of(out / "peers.jsonl")]
    timed = lines_of(out / "kernels.jsonl")
    runs = {file.parent.name: read_run(RunFolder(file.parent)) for file in out.glob("*/run.json")}
    read = None
    if timed and "built-in" in runs and (target := runs["built-in"].facts_of(None)):
        read = target.weight_bytes / timed[0]["read"]
    rows: list[Row] = []
    for name in ("built-in", "levels", "embedded"):
        if name in runs:
            of_run = costs(runs[name], read if name == "built-in" else None)
            rows += [(f"{name}: {what}", seen, wanted) for what, seen, wanted in of_run]
    rows += kernels(timed)
    for name in ("by-worker", "by-ray"):
        if name in runs and "embedded" in runs:
            seen = equal_replays(runs["embedded"], runs[name])
            rows.append((f"replays {name}, equal to the bit", seen, "all"))
    if (answer := out / "training.json").exists():
        rate = json.loads(answer.read_text())["training"]["proof"]["rate"]
        before, after = (rate[draft]["value"] for draft in ("original", "trained"))
        rows.append(("α of a trained draft, before → after", f"{before:.3f} → {after:.3f}", ""))
    for name, title in TIMED.items():
        if name in runs:
            speeds += measured(runs[name], title)
    if not (rows or speeds):
        sys.exit("error: nothing was timed")
    print("| figure | seen | wanted |\n|---|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    if speeds:
        print("\n".join(["", *table(read, speeds)]))
    for name in ("built-in", "embedded"):
        if name in runs:
            print(f"\n{name}:")
            print("\n".join(f"- {line}" for line in recommend(runs[name]).checks))
    if lines := not_done(out, runs):
        print("\n".join(["", *lines]))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except DraftbenchError as error:
        sys.exit(f"error: {error}")
