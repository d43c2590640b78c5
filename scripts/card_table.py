"""The tables of `on_a_card.sh`, from what lies in OUT: its figures beside what is wanted of them;
tokens per second of all that ran, by rows in flight, and what each draft gained over the same
without it; what the runs say of themselves; what was not done.

    python scripts/card_table.py OUT

Tokens per second are counted after the first token. Of draftbench's runs they are the tokens of the
responses over their seconds of decoding, times the rows in flight; of every draft the fastest k is
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
# What a card was asked for, by the figure. The table says of each of them what was seen.
STEP, BESIDE_VLLM = "a step of embedded-8b, one row", "a token of embedded-8b, of vLLM's time"
WANTED = {
    STEP: "at least 80% of the memory's speed",
    BESIDE_VLLM: "at most 105%",
    "c of embedded-1.5b for embedded-8b": "at most 0.22",
    "c of embedded-0.3b for embedded-8b": "at most 0.05",
    **{
        f"products, {level}, tokens {tokens}, of a read's speed": "at least 80%"
        for level in ("none", "int8", "fp8")
        for tokens in (1, 16)
    },
    **{
        f"attention, {keys} keys, of FlashAttention's time": "at most 120%"
        for keys in (1024, 8192, 32768)
    },
    "built-in: speed-ups predicted, off by": "3% in the median",
    "replays by-worker, equal to the bit": "all",
    "replays by-ray, equal to the bit": "all",
}

Figure = tuple[str, str]  # what, and as seen


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


def target_of(run: Run) -> str:
    return Path(run.manifest.question.target).name


def costs(name: str, run: Run, read: float | None) -> Iterator[Figure]:
    """A step of the target at one row, beside a `read` of its weights, and c of each draft."""
    target = target_of(run)
    steps = [
        seconds
        for cost in run.costs
        if (cost.candidate, cost.what, cost.concurrency, cost.new_tokens) == (None, "step", 1, 1)
        for seconds in cost.seconds
    ]
    if steps:
        share = "" if read is None else f", {read / median(steps):.0%} of the memory's speed"
        yield f"a step of {target}, one row", f"{median(steps) * 1e3:.2f} ms{share}"
    answer = recommend(run, DecisionOptions(concurrency=(1,)))
    for draft, level in dict.fromkeys((each.draft, each.quant) for each in answer.evaluations):
        found = (e for e in answer.evaluations if (e.draft, e.quant) == (draft, level))
        if (c := next(found).draft_cost_ratio) is not None:
            at = "" if level == "none" else f" at {level}"
            yield f"c of {draft}{at} for {target}", f"{c.value:.3f}"
    if (error := answer.prediction_error) is not None:
        seen = f"{error.median:.1%} in the median, {error.worst:.1%} at most"
        yield f"{name}: speed-ups predicted, off by", seen


def beside_vllm(target: str, speeds: list[Speed]) -> Iterator[Figure]:
    """The time of a token at one row without a draft, here and in vLLM where that was fastest, as a
    server or without.
    """
    plain = {speed.name: speed.tokens_per_second for speed in speeds if speed.rows == 1}
    theirs = [plain[name] for name in ("vLLM, plain", f"{TIMED['vllm']}, plain") if name in plain]
    if theirs and (ours := plain.get(f"{TIMED['built-in']}, plain")):
        times = f"{1e3 / ours:.2f} of {1e3 / max(theirs):.2f} ms"
        yield f"a token of {target}, of vLLM's time", f"{max(theirs) / ours:.0%}: {times}"


def kernels(lines: list[dict]) -> Iterator[Figure]:
    """Of each level, the speed at which matrices are read; attention beside FlashAttention."""
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        name, seconds = line["what"], line["seconds"]
        if name.startswith("attention"):
            keys = name.split()[-2]
            of_flash = seconds / line["FlashAttention"]
            shares[f"attention, {keys} keys, of FlashAttention's time"].append(of_flash)
        else:
            level, tokens = name.split()[0], name.rpartition(" ")[2]
            of_read = line["bytes"] / seconds / line["read"]
            shares[f"products, {level}, tokens {tokens}, of a read's speed"].append(of_read)
    for name, found in shares.items():
        yield name, f"{min(found):.0%} to {max(found):.0%}"


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


def goals(seen: dict[str, str]) -> list[str]:
    """The lines of a table of all that was wanted, and of what else was seen, in Markdown."""
    rows = [(name, seen.get(name, "not measured"), wanted) for name, wanted in WANTED.items()]
    rows += [(name, figure, "") for name, figure in seen.items() if name not in WANTED]
    return ["| figure | seen | wanted |", "|---|---|---|", *(f"| {' | '.join(r)} |" for r in rows)]


def not_done(out: Path, runs: dict[str, Run]) -> list[str]:
    """A line for every model that failed, and for every step that was left out."""
    failed = [
        f"NOT DONE  {name}, {failure.candidate or 'the target'}: {failure.reason}"
        for name, run in runs.items()
        for failure in run.failures
    ]
    steps = out / "steps.txt"
    told = steps.read_text().splitlines() if steps.exists() else []
    return failed + [line for line in told if line.startswith("NOT DONE")]


def runs_in(out: Path) -> tuple[dict[str, Run], list[str]]:
    """The runs that can be read, and a line for every other one."""
    runs, lines = {}, []
    for file in sorted(out.glob("*/run.json")):
        try:
            runs[file.parent.name] = read_run(RunFolder(file.parent))
        except DraftbenchError as error:
            lines.append(f"NOT DONE  {file.parent.name}: {error}")
    return runs, lines


def main(out: Path) -> None:
    speeds = [Speed(**told) for told in lines_of(out / "peers.jsonl")]
    timed = lines_of(out / "kernels.jsonl")
    runs, unread = runs_in(out)
    read = None
    if timed and "built-in" in runs and (target := runs["built-in"].facts_of(None)):
        read = target.weight_bytes / timed[0]["read"]
    seen: dict[str, str] = dict(kernels(timed))
    for name in ("built-in", "levels", "embedded"):
        if name in runs:
            seen |= costs(name, runs[name], read if name == "built-in" else None)
    for name in ("by-worker", "by-ray"):
        if name in runs and "embedded" in runs:
            equal = equal_replays(runs["embedded"], runs[name])
            seen[f"replays {name}, equal to the bit"] = equal
    if (answer := out / "training.json").exists():
        rate = json.loads(answer.read_text())["training"]["proof"]["rate"]
        before, after = (rate[draft]["value"] for draft in ("original", "trained"))
        seen["α of a trained draft, before → after"] = f"{before:.3f} → {after:.3f}"
    for name, title in TIMED.items():
        if name in runs:
            speeds += measured(runs[name], title)
    if "built-in" in runs:
        seen |= beside_vllm(target_of(runs["built-in"]), speeds)
    for machine in [run.manifest.environment for run in runs.values()][:1]:
        torch = machine.packages.get("torch", "unknown")
        print(f"{machine.accelerator or machine.processor}, PyTorch {torch}\n")
    print("\n".join(goals(seen)))
    if speeds:
        print("\n".join(["", *table(read, speeds)]))
    for name in ("built-in", "embedded"):
        if name in runs:
            print(f"\n{name}:")
            print("\n".join(f"- {line}" for line in recommend(runs[name]).checks))
    if lines := unread + not_done(out, runs):
        print("\n".join(["", *lines]))
    if not (seen or speeds):
        sys.exit("error: nothing was timed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
