"""Seconds and peak memory of each step of one large sweep on scripted models: planned, run, read
and answered.

    python scripts/bench_scale.py --requests 20000 --drafts 12

The models are functions of the last token, so what is timed is draftbench and not a model: target
and drafts agree on a token as often as a draft is good. Everything else is a sweep's own: prompts
of 30 tokens, responses of up to `--tokens`, groups, replays, step times, decoding, the run folder.
Each step runs in a process of its own, and the folder is deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# This process imports no package, since a child's peak memory is at least its parent's.
EMBEDDED = Path(__file__).resolve().parents[1] / "draftbench" / "embedded"
VOCABULARY, BEST, WORST = 2048, 0.9, 0.5
WORDS = ["def", "read", "write", "open", "path", "line", "file", "name"]


def scripted_sweep(words: list[str]) -> int:
    """A command of draftbench in this process, on scripted models."""
    import msgspec
    import torch

    from draftbench.cli import main
    from draftbench.decoder.runner import last_of_each
    from draftbench.decoder.scripted_model import ScriptedRunner
    from draftbench.drafts.model import draft as drafted
    from draftbench.models.quantize import build_runner
    from draftbench.sweep import worker

    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(3, VOCABULARY, (VOCABULARY,), generator=generator)

    class Chain(ScriptedRunner):
        """Chooses by the last token alone, all rows at once."""

        def forward(self, tokens, cache, *, every, counts=None, hidden=None):
            counts = counts or [len(tokens)]
            for row, count in enumerate(counts):
                cache.lengths[row] += count
            if not every:
                tokens = tokens[last_of_each(counts)]
            logits = torch.zeros(len(tokens), VOCABULARY)
            return logits.scatter_(1, self.script(tokens)[:, None], 9.0)

    class Cache:
        def __init__(self, rows):
            self.lengths = [0] * rows

        def rewind(self, row, length):
            self.lengths[row] = length

    def scripted(source, build, draft):
        _, facts = build_runner(source, build, draft)
        good = 1.0 if draft is None else BEST - (BEST - WORST) * int(draft[1:]) / 12
        agrees = torch.rand(VOCABULARY, generator=generator) < good
        table = torch.where(agrees, chosen, chosen.roll(1))
        runner = Chain(lambda tokens: table[tokens], VOCABULARY)
        runner.new_cache = lambda capacity, rows=1, widths=(), reads=(): Cache(rows)
        return runner, msgspec.structs.replace(facts, runner="scripted")

    worker.build_runner = drafted.build_runner = scripted
    return main(words)


def measured(name: str, command: list[str], **more: object) -> None:
    """Run a step and print its seconds, those of the processor, and its peak memory."""
    begun = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, **more)
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3):  # the gate may be inconclusive
        raise SystemExit(f"{name} failed")
    seconds, busy = time.monotonic() - begun, usage.ru_utime + usage.ru_stime
    print(f"| {name} | {seconds:.0f} | {busy:.0f} | {usage.ru_maxrss / 1024:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--drafts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=24, help="of a response, at most")
    parser.add_argument("--until", default="all")
    parser.add_argument("--workers", type=int)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for at in range(asked.drafts):
            shutil.copytree(EMBEDDED / "draft", folder / f"d{at}")
        with (folder / "prod.jsonl").open("w") as log:
            for at in range(asked.requests):
                text = " ".join(WORDS[(at >> shift) % len(WORDS)] for shift in range(0, 24, 2))
                log.write(json.dumps({"prompt": f"# {at}\n{text}", "temperature": 0}) + "\n")
        drafts = ",".join(str(folder / f"d{at}") for at in range(asked.drafts))
        sweep = ["sweep", "--target", str(EMBEDDED / "target"), "--drafts", drafts, "--no-controls"]
        sweep += ["--traffic", str(folder / "prod.jsonl"), "--max-new-tokens", str(asked.tokens)]
        sweep += ["--out", str(folder / "run"), "--threads", "1", "--until", asked.until, "--quiet"]
        if asked.workers:
            sweep += ["--workers", str(asked.workers)]
        ours, run = [sys.executable, "-m", "draftbench"], str(folder / "run")
        base = str(folder / "base.json")
        print("| step | seconds | of processor | peak memory, MB |")
        print("|---|---:|---:|---:|")
        measured("sweep --dry-run", [*ours, *sweep, "--dry-run"])
        measured("sweep", [sys.executable, __file__, "--scripted", *sweep])
        size = sum(file.stat().st_size for file in Path(run).rglob("*.jsonl")) / 1e6
        measured("sweep again, nothing left", [sys.executable, __file__, "--scripted", *sweep])
        measured("recommend", [*ours, "recommend", run])
        measured("acceptance", [*ours, "acceptance", run])
        measured("acceptance --all", [*ours, "acceptance", run, "--all"])
        measured("report", [*ours, "report", run, "--html", str(folder / "page.html")])
        of = ["--candidate", "d0", "--k", "4"]
        measured("gate --save", [*ours, "gate", "--save", base, run, *of])
        measured("gate", [*ours, "gate", "--baseline", base, run])
        print(f"\nThe run folder takes {size:.0f} MB.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--scripted"]:
        raise SystemExit(scripted_sweep(sys.argv[2:]))
    main()
