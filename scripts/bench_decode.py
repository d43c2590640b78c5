"""Times the built-in decoder against transformers' `generate`: the same weights, prompts and
threads, request by request in turn.

    python scripts/bench_decode.py --target ./qwen1.5 --draft ./qwen0.5 --recommended int4:3 \
        --requests 8 --tokens 48

The draft may have another vocabulary, or be `mtp`, the layer that the target carries: transformers
then assists across vocabularies, or with `generate(use_mtp=True)`, which drafts one token
whatever k is.

Every figure is a ratio of tokens per second: the median over requests, and the interval between two
order statistics. The prompt counts, unless a column says "after 1st token". vLLM is timed by
`card_peers.py`, or by `draftbench sweep --engine vllm`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig
from transformers.generation import BaseStreamer
from transformers.generation.candidate_generator import AssistantVocabTranslatorCache

from draftbench.decoder.device import default_dtype, set_threads
from draftbench.decoder.drafters import ModelDrafter
from draftbench.decoder.eagle import HeadDrafter
from draftbench.decoder.mtp import MtpHead
from draftbench.decoder.runner import HostClock
from draftbench.decoder.speculate import decode
from draftbench.errors import DraftbenchError
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.trajectories import task_of
from draftbench.models.mtp import build_mtp
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.models.translation import keeps_ids, translated
from draftbench.records import DraftingMode, Sampling
from draftbench.traffic import TrafficQuery, load

GENERATE, ASSISTED, PLAIN = "generate", "assisted", "draftbench"
# Column heads, the contestant that each compares with, and what it counts.
COLUMNS = {
    "× generate": (GENERATE, "everything"),
    "after 1st token": (GENERATE, "decoding"),
    "× assisted": (ASSISTED, "everything"),
    "× on code": (GENERATE, "code"),
}


@dataclass
class Answer:
    """A contestant's output ids, seconds, and those until the first token if they are known."""

    tokens: list[int]
    seconds: float
    first: float | None

    def speed(self, counted: str) -> float | None:
        """Tokens per second, of all or of those after the first."""
        if counted != "decoding":
            return len(self.tokens) / self.seconds
        if self.first is None or len(self.tokens) < 2:
            return None
        return (len(self.tokens) - 1) / (self.seconds - self.first)


class Transformers:
    """Plain and assisted generation of the library, on weights as it loads them: constant draft
    length, no confidence threshold.
    """

    def __init__(self, target: ModelSource, draft: str, k: int, dtype: torch.dtype) -> None:
        self.target = target.load(dtype, "cpu")
        self.ends = sorted(TextSide(target).end_tokens)
        self.extra: dict[str, Any] = {"use_mtp": True}
        self.draws: dict[str, Any] = {}
        if draft == "mtp":
            return
        source = ModelSource(draft)
        assistant = source.load(dtype, "cpu")
        self.extra = {"assistant_model": assistant}
        if not keeps_ids(target, source):
            # Across vocabularies `generate` only assists where it draws.
            both = (target.tokenizer, source.tokenizer)
            self.extra |= zip(("tokenizer", "assistant_tokenizer"), both, strict=True)
            self.draws = {"do_sample": True, "top_k": 1}
            # Made here, it leaves the draft's output layer as it is; pruning that fails in 5.24.
            self._words = AssistantVocabTranslatorCache.get_translator(
                *both, self.target.config.vocab_size
            )
        config = assistant.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = k, "constant"
        config.assistant_confidence_threshold = 0.0

    def run(self, prompt: Prompt, *, assisted: bool) -> Answer:
        """Assisted generation hands over whole rounds: its first token's time is unknown."""
        # A new configuration: a checkpoint's own may ask for sampling or a repetition penalty.
        ends = {"eos_token_id": self.ends, "pad_token_id": self.ends[0]}
        how = {"do_sample": False} | (self.draws if assisted else {})
        ids = torch.tensor([list(prompt.tokens)])
        handed_over: list[float] = []

        class Watch(BaseStreamer):
            def put(self, value: object) -> None:
                handed_over.append(time.perf_counter())

            def end(self) -> None:
                pass

        start = time.perf_counter()
        out = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(max_new_tokens=prompt.limit, **ends, **how),
            streamer=Watch(),
            **(self.extra if assisted else {}),
        )
        seconds = time.perf_counter() - start
        # The prompt is handed over first.
        first = None if assisted else handed_over[1] - start
        return Answer(out[0, ids.shape[1] :].tolist(), seconds, first)


class Ours:
    """draftbench's decoder on a target and its draft at every level."""

    def __init__(self, options: argparse.Namespace, dtype: torch.dtype) -> None:
        source = ModelSource(options.target)
        self.text = TextSide(source)
        self.target, _ = build_runner(source, Build(dtype, "none", "cpu"), None)
        self.drafts: dict[str, Any] = {}
        for level in options.draft_quant.split(","):
            build = Build(dtype, level, "cpu")
            if options.draft == "mtp":
                self.drafts[level], _ = build_mtp(source, build, "mtp", self.target)
            else:
                draft = ModelSource(options.draft)
                runner, _ = build_runner(draft, build, draft.name)
                self.drafts[level] = translated(runner, source, draft)

    def run(self, prompt: Prompt, level: str | None = None, k: int = 0) -> Answer:
        drafter: Any = None
        if level is not None:
            runner = self.drafts[level]
            is_head = isinstance(runner, MtpHead)
            drafter = HeadDrafter(runner) if is_head else ModelDrafter(runner, DraftingMode.GREEDY)
        task = task_of(prompt, 0, self.text)
        start = time.perf_counter()
        response = decode(task, self.target, drafter, k, HostClock())
        seconds = time.perf_counter() - start
        return Answer(response.tokens, seconds, seconds - response.decode_seconds)

    def prompts(self, options: argparse.Namespace) -> list[tuple[Prompt, bool]]:
        """Greedy requests of the sources in turn, and whether they are of one for code."""
        queues = []
        for name in options.traffic.split(","):
            queues.append(
                [(r, "code" in name) for r in load(TrafficQuery(name, b"bench")).requests]
            )
        found: list[tuple[Prompt, bool]] = []
        for turn in range(max(map(len, queues))):
            for request, is_code in (queue[turn] for queue in queues if turn < len(queue)):
                greedy = msgspec.structs.replace(request, sampling=Sampling(), stop=())
                limit = min(options.tokens, request.max_tokens or options.tokens)
                prompt = self.text.prompt(greedy, limit, self.target.context_length)
                if prompt is not None and len(found) < options.requests:
                    found.append((prompt, is_code))
        return found


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


def table(answers: dict[str, list[Answer]], is_code: list[bool]) -> Table:
    """A row for each contestant."""
    shown = Table(title=f"{len(is_code)} requests")
    for head in ("", "tok/s", *COLUMNS, "same text"):
        shown.add_column(head, justify="right" if head else "left", no_wrap=True)
    for name, own in answers.items():
        cells = [f"{statistics.median(answer.speed('everything') or 0 for answer in own):.1f}"]
        for peer, counted in COLUMNS.values():
            ratios = [
                mine / theirs
                for a, b, code in zip(own, answers[peer], is_code, strict=True)
                if (mine := a.speed(counted)) and (theirs := b.speed(counted))
                if code or counted != "code"
            ]
            figures = median_ratio(ratios)
            cells.append("{:.2f} ({:.2f}–{:.2f})".format(*figures) if figures else "–")
        same = sum(a.tokens == b.tokens for a, b in zip(own, answers[GENERATE], strict=True))
        shown.add_row(name, *cells, f"{same}/{len(own)}")
    return shown


def main() -> None:
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
    parser.add_argument("--seconds", type=float, default=500, help="start no request after this")
    options = parser.parse_args()
    began, threads = time.perf_counter(), set_threads(options.threads)
    dtype = getattr(torch, options.dtype) if options.dtype else default_dtype("cpu")
    peer = Transformers(ModelSource(options.target), options.draft, options.k, dtype)
    ours = Ours(options, dtype)
    prompts = ours.prompts(options)
    console = Console(width=138)
    console.print(
        f"{options.target} with {options.draft}: {dtype}, {threads} threads, "
        f"{len(prompts)} requests of {options.traffic}, at most {options.tokens} tokens, k = "
        f"{options.k}"
    )
    settings = [(level, options.k) for level in ours.drafts]
    if options.recommended:
        level, _, k = options.recommended.partition(":")
        settings.append((level, int(k)))
    contestants = {
        GENERATE: lambda prompt: peer.run(prompt, assisted=False),
        ASSISTED: lambda prompt: peer.run(prompt, assisted=True),
        PLAIN: ours.run,
    }
    for level, k in settings:
        contestants[f"{PLAIN} {level}:{k}"] = lambda p, level=level, k=k: ours.run(p, level, k)
    first = prompts[0][0]
    for run in contestants.values():
        run(Prompt(first.request, first.tokens, min(first.limit, 12)))
    answers: dict[str, list[Answer]] = {name: [] for name in contestants}
    is_code: list[bool] = []
    for turn, (prompt, code) in enumerate(prompts):
        if turn >= 3 and time.perf_counter() - began > options.seconds:
            break
        names, at = list(contestants), turn % len(contestants)
        for name in names[at:] + names[:at]:
            answers[name].append(contestants[name](prompt))
        is_code.append(code)
        print(f"request {turn + 1} of {len(prompts)}", file=sys.stderr, flush=True)
    console.print(table(answers, is_code))


if __name__ == "__main__":
    try:
        main()
    except DraftbenchError as error:
        sys.exit(f"error: {error}")
