"""What the passes of two models cost: v(n), c by level, the share of the machine's read bandwidth,
and what a round takes beyond its passes.
"""

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.table import Table

from draftbench.decoder.runner import clock_for
from draftbench.decoder.sampling import best
from draftbench.models.quantize import layer_bytes, linears

REPEATS = 9
WIDEST = 9


@dataclass(frozen=True)
class Costs:
    """Seconds of a target pass by tokens, of a draft step by level and tokens (1, 2), the bytes
    that a step reads, and bytes per second of reading memory.
    """

    target: dict[int, float]
    drafts: dict[str, dict[int, float]]
    read: dict[str, int]
    bandwidth: float
    context: int

    def overhead(self, name, responses) -> float | None:
        """Σ round time / Σ (draft steps + target pass) over our responses at one setting."""
        if not responses:
            return None
        steps = self.drafts.get(name.removeprefix("draftbench ").partition(":")[0])
        spent, passes = 0.0, 0.0
        for response in responses:
            spent += response.decode_seconds
            full = False
            for proposed, accepted in zip(response.proposed, response.accepted, strict=True):
                passes += self.target[min(proposed + 1, WIDEST)]
                if proposed and steps:
                    # After a round that was accepted whole the draft has two tokens to read.
                    passes += steps[2 if full else 1] + (proposed - 1) * steps[1]
                full = proposed > 0 and accepted == proposed
        return spent / passes

    def show(self, console) -> None:
        """Two tables."""
        plain = self.target[1]
        table = Table(title=f"Passes over n tokens, context {self.context}")
        for head in ("", *(f"n = {n}" for n in self.target)):
            table.add_column(head, justify="right")
        table.add_row("ms", *(f"{s * 1e3:.1f}" for s in self.target.values()))
        table.add_row("v(n)", *(f"{s / plain:.2f}" for s in self.target.values()))
        console.print(table)
        table = Table(title=f"One-token steps; reading memory: {self.bandwidth / 1e9:.1f} GB/s")
        for head in ("", "ms", "c", "GB read", "GB/s", "of reading"):
            table.add_column(head, justify="right")
        rows = {"target": plain} | {f"draft {q}": s[1] for q, s in self.drafts.items()}
        for name, seconds in rows.items():
            speed = self.read[name] / seconds
            table.add_row(
                name,
                f"{seconds * 1e3:.2f}",
                f"{seconds / plain:.3f}",
                f"{self.read[name] / 1e9:.3f}",
                f"{speed / 1e9:.1f}",
                f"{speed / self.bandwidth:.0%}",
            )
        console.print(table)


def measure_costs(ours, tokens, k) -> Costs:
    """Every pass in turn, in every repeat; medians. Each is run once before it is timed, as a
    decoder finds its weights as warm as its own last pass left them.
    """
    widths = range(1, max(k + 1, WIDEST) + 1)
    works = _passes("target", ours.target, tokens, widths)
    for level, runner in ours.drafts.items():
        works |= _passes(f"draft {level}", runner, tokens, (1, 2))
    clock, block = clock_for(ours.target.device), torch.ones(1 << 28, device=ours.target.device)
    seconds = {key: [] for key in (*works, "read")}
    for _ in range(REPEATS):
        for key, work in (*works.items(), ("read", block.sum)):
            work()
            start = clock.mark()
            work()
            seconds[key].append(clock.seconds(start, clock.mark()))
    found = {key: statistics.median(own) for key, own in seconds.items()}
    read = {"target": _bytes_read(ours.target)}
    read |= {f"draft {level}": _bytes_read(runner) for level, runner in ours.drafts.items()}
    return Costs(
        target={n: found["target", n] for n in widths},
        drafts={q: {n: found[f"draft {q}", n] for n in (1, 2)} for q in ours.drafts},
        read=read,
        # The fastest: memory cannot be read faster than it once was.
        bandwidth=block.nbytes / min(seconds["read"]),
        context=len(tokens),
    )


def _passes(name, runner, tokens, widths):
    """By width a pass over so many tokens behind a prompt, and the choice after each."""
    cache = runner.new_cache(len(tokens) + max(widths), widths=widths)
    runner.forward(torch.tensor(tokens, device=runner.device), cache, every=False)

    def work(new):
        best(runner.forward(new, cache, every=True))
        cache.rewind(0, len(tokens))

    read = torch.tensor((tokens * max(widths))[: max(widths)], device=runner.device)
    return {(name, n): partial(work, read[:n]) for n in widths}


def _bytes_read(runner) -> int:
    """What a step reads: all linear layers. Of an embedding it takes a row."""
    return sum(map(layer_bytes, linears(runner)))


def resident_bytes() -> int:
    """Memory of this process that is really there."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
