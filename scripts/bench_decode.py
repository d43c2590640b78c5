"""Times the built-in decoder against transformers: the same weights, prompts and threads, request
by request in turn.

    python scripts/bench_decode.py --target ./qwen1.5 --draft ./qwen0.5 --recommended int4:3 \
        --requests 8 --tokens 48

Every figure is a ratio of tokens per second: the median over requests, and the interval between two
order statistics. The prompt counts, unless a column says "after 1st token".
"""

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass, field

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig
from transformers.generation import BaseStreamer

from draftbench.decoder.device import default_dtype, set_threads
from draftbench.decoder.drafters import ModelDrafter
from draftbench.decoder.runner import HostClock
from draftbench.decoder.speculate import decode
from draftbench.errors import DraftbenchError
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.trajectories import task_of
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import DraftingMode, Sampling
from draftbench.traffic import TrafficQuery, load

GENERATE, ASSISTED, PLAIN = "generate", "assisted", "draftbench"
# Heads of columns, and what the rows are compared with there.
COLUMNS = {
    "× generate": GENERATE,
    "after 1st token": GENERATE,
    "× assisted": ASSISTED,
    "× on code": GENERATE,
}
CONSOLE = Console(width=138)


@dataclass
class Part:
    """Speeds and texts by contestant, request by request."""

    code: list[bool] = field(default_factory=list)
    speeds: dict[str, list[float]] = field(default_factory=dict)
    # Of the tokens after the first; None if there are none or the time of the first is unknown.
    decoding: dict[str, list[float | None]] = field(default_factory=dict)
    texts: dict[str, list[list[int]]] = field(default_factory=dict)

    def add(self, name: str, tokens: list[int], seconds: float, first: float | None) -> None:
        """Add a run of a contestant, which took `first` seconds to its first token."""
        self.speeds.setdefault(name, []).append(len(tokens) / seconds)
        known = first is not None and len(tokens) > 1
        speed = (len(tokens) - 1) / (seconds - first) if known else None
        self.decoding.setdefault(name, []).append(speed)
        self.texts.setdefault(name, []).append(tokens)

    def ratio(self, name: str, other: str, *, code: bool, decoding: bool) -> str:
        """Median and interval of one contestant's speed over another's."""
        speeds = self.decoding if decoding else self.speeds
        both = zip(speeds[name], speeds[other], self.code, strict=True)
        ratios = [a / b for a, b, is_code in both if a and b and (is_code or not code)]
        return "{:.2f} ({:.2f}–{:.2f})".format(*median_ratio(ratios)) if ratios else "–"


def median_ratio(ratios: list[float]) -> tuple[float, float, float]:
    """The median and the narrowest pair of order statistics around it with 90% coverage or more;
    with too few requests for that, the smallest and the largest.
    """
    own, n, left = sorted(ratios), len(ratios), 0
    outside = 0.5**n
    while 1 - 2 * (outside + math.comb(n, left + 1) * 0.5**n) >= 0.9:
        left += 1
        outside += math.comb(n, left) * 0.5**n
    return statistics.median(own), own[left], own[n - 1 - left]


def show(part: Part) -> None:
    table = Table(title=f"Against transformers: {len(part.code)} requests")
    for head in ("", "tok/s", *COLUMNS, "same text"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for name, speeds in part.speeds.items():
        ratios = (
            part.ratio(name, peer, code="code" in head, decoding="1st" in head)
            for head, peer in COLUMNS.items()
        )
        same = sum(a == b for a, b in zip(part.texts[name], part.texts[GENERATE], strict=True))
        speed = f"{statistics.median(speeds):.1f}"
        table.add_row(name, speed, *ratios, f"{same}/{len(speeds)}")
    CONSOLE.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--draft-quant", default="none,int8,int4")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--recommended", metavar="LEVEL:K", help="what `recommend` says")
    parser.add_argument("--traffic", default="suite:code,suite:chat", help="sources, taken in turn")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", help="(default: as `sweep` chooses)")
    return parser.parse_args()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Transformers:
    """Plain and assisted generation of the library, on weights as it loads them: constant draft
    length, no confidence threshold.
    """

    def __init__(self, options, dtype):
        source = ModelSource(options.target)
        self.target = source.load(dtype, "cpu")
        self.draft = ModelSource(options.draft).load(dtype, "cpu")
        self.ends = sorted(TextSide(source).end_tokens)
        config = self.draft.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = options.k, "constant"
        config.assistant_confidence_threshold = 0.0

    def run(self, prompt: Prompt, *, assisted: bool):
        """Output ids, seconds, and those of them until the first token came: not known of assisted
        generation, which hands over whole rounds.
        """
        # A new configuration: a checkpoint's own may ask for sampling or a repetition penalty.
        config = GenerationConfig(
            max_new_tokens=prompt.limit,
            do_sample=False,
            eos_token_id=self.ends,
            pad_token_id=self.ends[0],
        )
        extra = {"assistant_model": self.draft} if assisted else {}
        ids = torch.tensor([prompt.tokens])
        watch = _FirstToken()
        start = time.perf_counter()
        out = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            streamer=watch,
            **extra,
        )
        seconds = time.perf_counter() - start
        first = None if assisted else watch.seen[1] - start
        return out[0, len(prompt.tokens) :].tolist(), seconds, first


class _FirstToken(BaseStreamer):
    """When the prompt, the first tokens and all others were handed over."""

    def __init__(self):
        self.seen = []

    def put(self, value):
        self.seen.append(time.perf_counter())

    def end(self):
        pass


class Ours:
    """draftbench's decoder on a target and its draft at every level."""

    def __init__(self, options, dtype):
        source, draft = ModelSource(options.target), ModelSource(options.draft)
        self.text = TextSide(source)
        self.target, _ = build_runner(source, Build(dtype, "none", "cpu"), None)
        self.drafts = {}
        for level in options.draft_quant.split(","):
            note(f"building the draft at {level}")
            build = Build(dtype, level, "cpu")
            self.drafts[level], _ = build_runner(draft, build, draft.name)

    def run(self, prompt, level=None, k=0):
        """Output ids, seconds, and those until the first token."""
        drafter = None
        if level is not None:
            runner = self.drafts[level]
            drafter = ModelDrafter(runner, DraftingMode.GREEDY, self.target.vocab_size)
        task = task_of(prompt, 0, self.text)
        start = time.perf_counter()
        response = decode(task, self.target, drafter, k, HostClock())
        seconds = time.perf_counter() - start
        return response.tokens, seconds, seconds - response.decode_seconds

    def prompts(self, options) -> list[tuple[Prompt, bool]]:
        """Greedy requests of the sources in turn, and whether they are of one for code."""
        queues = []
        for name in options.traffic.split(","):
            query = TrafficQuery(name, b"bench")
            queues.append([(r, "code" in name) for r in load(query).requests])
        found = []
        for turn in range(max(map(len, queues))):
            for queue in queues:
                if turn < len(queue) and len(found) < options.requests:
                    found += self._prompt(*queue[turn], options.tokens)
        return found

    def _prompt(self, request, is_code, tokens):
        greedy = msgspec.structs.replace(request, sampling=Sampling(), stop=())
        prompt = self.text.prompt(greedy, tokens, self.target.context_length)
        return [] if prompt is None else [(prompt, is_code)]


def interleave(contestants, prompts) -> Part:
    """Run each contestant on each request, in rotating order."""
    part = Part()
    first = prompts[0][0]
    for run in contestants.values():
        run(Prompt(first.request, first.tokens, min(first.limit, 12)))
    names = list(contestants)
    for turn, (prompt, is_code) in enumerate(prompts):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            part.add(name, *contestants[name](prompt))
        part.code.append(is_code)
        note(f"request {turn + 1} of {len(prompts)}")
    return part


def main() -> None:
    options = arguments()
    threads = set_threads(options.threads)
    dtype = getattr(torch, options.dtype) if options.dtype else default_dtype("cpu")
    note("loading transformers' models")
    peer = Transformers(options, dtype)
    ours = Ours(options, dtype)
    prompts = ours.prompts(options)
    CONSOLE.print(
        f"{options.target} with {options.draft}: {dtype}, {threads} threads, "
        f"{len(prompts)} requests of {options.traffic}, at most {options.tokens} tokens, k = "
        f"{options.k}"
    )
    contestants = {
        GENERATE: lambda p: peer.run(p, assisted=False),
        ASSISTED: lambda p: peer.run(p, assisted=True),
        PLAIN: ours.run,
    }
    asked = [f"{level}:{options.k}" for level in ours.drafts]
    for name in dict.fromkeys([*asked, *filter(None, [options.recommended])]):
        level, _, k = name.partition(":")
        contestants[f"{PLAIN} {name}"] = lambda p, level=level, k=int(k): ours.run(p, level, k)
    show(interleave(contestants, prompts))


if __name__ == "__main__":
    try:
        main()
    except DraftbenchError as error:
        sys.exit(f"error: {error}")
