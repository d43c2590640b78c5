"""How fast the decoder is against transformers on the same weights, prompts and thread count, in
one process, interleaved.

    python scripts/bench_decode.py --target ./qwen1.5 --draft ./qwen0.5 --traffic prod.jsonl

Prints medians over requests of the ratio of tokens per second: plain decoding against `generate`,
speculation against assisted generation (constant k, no confidence threshold) and against
`generate`; the time of a round beyond its draft steps and pass; and the share of the machine's read
bandwidth that a plain step reaches. Outputs are compared too: a faster decoder of other text is no
decoder.
"""

import argparse
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

from draftbench.decode.clock import HostClock
from draftbench.decode.drafters import ModelDrafter
from draftbench.decode.loop import decode
from draftbench.measure.prompts import TextSide
from draftbench.measure.trajectories import task_of
from draftbench.models.quantize import Build, build_runner, set_threads
from draftbench.models.source import ModelSource
from draftbench.records import DraftingMode, Sampling
from draftbench.traffic import TrafficQuery, load


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--quants", default="none,int8,int4")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--traffic", required=True)
    parser.add_argument("--segment", help="only requests of this segment")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    return parser.parse_args()


def read_bandwidth() -> float:
    """Bytes per second of summing a tensor far larger than the caches; best of five."""
    block = torch.ones(1 << 28)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        block.sum()
        best = min(best, time.perf_counter() - start)
    return block.nbytes / best


class Transformers:
    """The peer: plain and assisted generation of the library, on weights as it loads them."""

    def __init__(self, target, draft, dtype, k):
        self.target, self.draft = target.load(dtype, "cpu"), draft.load(dtype, "cpu")
        config = self.draft.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = k, "constant"
        config.assistant_confidence_threshold = 0.0

    def run(self, prompt, limit, *, assisted):
        extra = {"assistant_model": self.draft} if assisted else {}
        ids = torch.tensor([prompt])
        start = time.perf_counter()
        out = self.target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False, **extra
        )
        return out[0, len(prompt) :].tolist(), time.perf_counter() - start


def prompts_of(options, text, context):
    query = TrafficQuery(options.traffic, None, 0, None, None, None, False, b"bench")
    found = [r for r in load(query).requests if options.segment in (None, r.segment)]
    prompts = []
    for request in found:
        prompt = text.prompt(request, options.max_new_tokens, context)
        if prompt is not None and len(prompts) < options.requests:
            prompts.append(prompt)
    return prompts


def main() -> None:
    options = arguments()
    threads = set_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    target_source, draft_source = ModelSource(options.target), ModelSource(options.draft)
    text, clock = TextSide(target_source), HostClock()
    peer = Transformers(target_source, draft_source, dtype, options.k)
    target, facts = build_runner(target_source, Build(dtype, "none", "cpu"), None)
    drafts = {
        level: build_runner(draft_source, Build(dtype, level, "cpu"), draft_source.name)
        for level in options.quants.split(",")
    }
    prompts = prompts_of(options, text, target.context_length)

    def ours(prompt, level):
        import msgspec

        request = msgspec.structs.replace(prompt.request, sampling=Sampling(), stop=())
        task = task_of(type(prompt)(request, prompt.tokens, prompt.limit), 0, text)
        drafter = None
        if level is not None:
            runner = drafts[level][0]
            drafter = ModelDrafter(runner, DraftingMode.GREEDY, Sampling(), None, target.vocab_size)
        start = time.perf_counter()
        response = decode(task, target, drafter, options.k if drafter else 0, clock)
        return response.tokens, time.perf_counter() - start, response

    contestants = {"transformers generate": lambda p: peer.run(p.tokens, p.limit, assisted=False)}
    contestants["transformers assisted"] = lambda p: peer.run(p.tokens, p.limit, assisted=True)
    contestants["draftbench plain"] = lambda p: ours(p, None)
    for level in drafts:
        contestants[f"draftbench {level}"] = lambda p, level=level: ours(p, level)
    for run in contestants.values():
        run(prompts[0])
    speeds = {name: [] for name in contestants}
    outputs = {name: [] for name in contestants}
    overheads = {name: [] for name in contestants}
    for turn, prompt in enumerate(prompts):
        names = list(contestants)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            tokens, seconds, *rest = contestants[name](prompt)
            speeds[name].append(len(tokens) / seconds)
            outputs[name].append(tokens)
            if rest:
                passes = sum(rest[0].draft_seconds) + sum(rest[0].verify_seconds)
                overheads[name].append(rest[0].decode_seconds / passes)
    show(options, threads, speeds, outputs, overheads)
    step = statistics.median(
        seconds for p in prompts[:3] for seconds in ours(p, None)[2].verify_seconds
    )
    bandwidth = read_bandwidth()
    read = (facts.weight_bytes - target.embedding.nbytes) / step
    print(
        f"plain step {step * 1e3:.1f} ms reads {read / 1e9:.1f} GB/s of weights, "
        f"{read / bandwidth:.0%} of the {bandwidth / 1e9:.1f} GB/s that summing a tensor reaches"
    )


def show(options, threads, speeds, outputs, overheads) -> None:
    table = Table(
        title=f"{len(next(iter(speeds.values())))} requests, k = {options.k}, {threads} threads"
    )
    for head in ("", "tok/s", "× generate", "× assisted", "same text", "round / passes"):
        table.add_column(head, justify="right")
    plain, assisted = speeds["transformers generate"], speeds["transformers assisted"]
    for name, own in speeds.items():
        same = sum(
            a == b for a, b in zip(outputs[name], outputs["transformers generate"], strict=True)
        )
        table.add_row(
            name,
            f"{statistics.median(own):.1f}",
            f"{statistics.median(a / b for a, b in zip(own, plain, strict=True)):.2f}",
            f"{statistics.median(a / b for a, b in zip(own, assisted, strict=True)):.2f}",
            f"{same}/{len(own)}",
            f"{statistics.median(overheads[name]):.3f}" if overheads[name] else "",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
