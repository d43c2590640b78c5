"""Times a grid of drafts × k by replay and by decoding, and counts where the two disagree, on the
same requests at temperature 0.

    python scripts/bench_replay.py --target ./qwen1.5 --drafts ./qwen0.5:none ./qwen0.5:int8
    ./qwen0.5:int4 eagle3:./head:none --traffic prod.jsonl

Prints the seconds of the target's responses (both need them), of replaying all drafts (every k at
once; and without how sure they are off the path, which only rules to stop by need) and of decoding
every configuration, in all and by draft; their ratio without and with the responses; and how often
rounds, proposed and accepted tokens are the same by replay as in the decoder, or differ at a near
tie.
"""

import argparse
import time
from dataclasses import replace
from itertools import takewhile

import msgspec
import torch

from draftbench.acceptance.rounds import expected_rounds
from draftbench.decoder.device import set_threads
from draftbench.decoder.runner import HostClock
from draftbench.decoder.speculate import decode
from draftbench.drafts.eagle3.draft import build_head
from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.kinds import parsed
from draftbench.drafts.laws import law_of
from draftbench.drafts.model.draft import ModelDraft
from draftbench.measure.candidate import LoadedCandidate, MeasurementContext
from draftbench.measure.prompts import TargetText
from draftbench.measure.trajectories import generate, score, task_of
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import (
    NEAR_TIE_MARGIN,
    Candidate,
    DraftingMode,
    LookupReplay,
    NGramSizes,
    Sampling,
)
from draftbench.traffic import TrafficQuery, load


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument(
        "--drafts", nargs="+", required=True, help="PATH:QUANT, or eagle3:PATH:QUANT"
    )
    parser.add_argument("--traffic", required=True)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--largest-k", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    return parser.parse_args()


def greedy_prompts(options, text, context):
    query = TrafficQuery(options.traffic, b"bench")
    prompts = []
    for request in load(query).requests:
        plain = msgspec.structs.replace(request, sampling=Sampling(), stop=())
        limits = filter(None, (request.max_tokens, options.max_new_tokens))
        prompt = text.prompt(plain, min(limits), context)
        if prompt is not None and prompt.limit >= 16 and len(prompts) < options.requests:
            prompts.append(prompt)
    return prompts


def counted(response) -> tuple[int, int, int]:
    return len(response.proposed), sum(response.proposed), sum(response.accepted)


def main() -> None:
    options = arguments()
    set_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    source = ModelSource(options.target)
    text, clock, ks = TargetText(source), HostClock(), range(1, options.largest_k + 1)
    target, _ = build_runner(source, Build(dtype, "none", "cpu"), None)
    prompts = greedy_prompts(options, text, target.context_length)
    generate([(prompts[0], 0)], target, text, clock)
    start = time.perf_counter()
    asked = [(prompt, 0) for prompt in prompts]
    outputs = generate(asked, target, text, clock)
    material = score(asked, outputs, target, "target", lambda tokens: "")
    responses = time.perf_counter() - start
    tie = NEAR_TIE_MARGIN[options.dtype]
    measurement = MeasurementContext(
        target=target,
        text=text,
        mode=DraftingMode.GREEDY,
        ks=tuple(ks),
        lookup=NGramSizes(2, 1),
        dtype=options.dtype,
        clock=clock,
        process="",
        digest=str,
    )
    replay_seconds = along_seconds = decode_seconds = 0.0
    cells = exact = ties = wrong = 0
    for spec in options.drafts:
        name, _, level = spec.rpartition(":")
        method, path = parsed(name)
        build, draft = Build(dtype, level, "cpu"), ModelSource(path)
        if method == "eagle3":
            layers = source.config.get_text_config().num_hidden_layers
            head, _ = build_head(draft, build, name, target, layers)
            drafting = HeadDraft(head, target)
        else:
            model, _ = build_runner(draft, build, name)
            drafting = ModelDraft(model, target, DraftingMode.GREEDY)
            del model
        loaded = LoadedCandidate(Candidate(draft=name, quant=level), drafting, measurement)
        along = replace(loaded, measurement=replace(measurement, stops=False))
        loaded.replay(material[:1])
        start = time.perf_counter()
        along.replay(material)
        own_along = time.perf_counter() - start
        before, start = decode_seconds, time.perf_counter()
        replays = loaded.replay(material)
        laws = [
            law_of(item.trajectory, replay) for item, replay in zip(material, replays, strict=True)
        ]
        by_k = {k: expected_rounds(laws, k) for k in ks}
        own_seconds = time.perf_counter() - start
        replay_seconds, along_seconds = replay_seconds + own_seconds, along_seconds + own_along
        for k in ks:
            for row, scored in enumerate(material):
                prompt, trajectory = scored.prompt, scored.trajectory
                drafter = drafting.drafter()
                start = time.perf_counter()
                response = decode(task_of(prompt, 0, text), target, drafter, k, clock)
                decode_seconds += time.perf_counter() - start
                cells += 1
                predicted = tuple(
                    round(counts[row])
                    for counts in (
                        by_k[k].target_passes,
                        by_k[k].proposed,
                        by_k[k].accepted,
                    )
                )
                position = first_difference(replays[row], scored.tokens, response, prompt.limit, k)
                if predicted == counted(response):
                    exact += 1
                elif position is not None and near_tie(replays[row], trajectory, position, tie):
                    ties += 1
                else:
                    wrong += 1
                    print(f"{spec} k={k} request {row}: {predicted} by replay, {counted(response)}")
        print(
            f"{spec}: replay {own_seconds:.2f} s ({own_along:.2f} s without what is off the path), "
            f"decoding {decode_seconds - before:.1f} s"
        )
        del drafting, loaded, along
    print(f"{len(prompts)} requests, {len(options.drafts)} drafts, k = 1 … {options.largest_k}")
    print(f"target's responses and their scores {responses:8.1f} s")
    print(f"replay of the grid                  {replay_seconds:8.2f} s")
    print(f"  without what is off the path      {along_seconds:8.2f} s")
    print(f"decoding of the grid                {decode_seconds:8.1f} s")
    print(f"ratio without the responses         {decode_seconds / replay_seconds:8.1f} ×")
    both = (decode_seconds + responses) / (replay_seconds + responses)
    print(f"ratio with the responses            {both:8.1f} ×")
    print(f"cells × requests: {cells}, equal counts {exact}, near ties {ties}, others {wrong}")


def first_difference(replay, target_tokens, response, limit, k) -> int | None:
    """The first output position at which decoding differs from the replay, or None."""
    start, differences = 1, []
    for proposed, accepted in zip(response.proposed, response.accepted, strict=True):
        drafted = min(k, limit - start - 1)
        hits = min(drafted, matched(replay, start))
        if (drafted, hits) != (proposed, accepted):
            differences.append(start + min(hits, accepted))
            break
        start += hits + 1
    differing = [
        i for i, (a, b) in enumerate(zip(response.tokens, target_tokens, strict=False)) if a != b
    ]
    return min(differences + differing[:1], default=None)


def matched(replay, start) -> int:
    """How many tokens of a proposal that begins there are the response's."""
    if isinstance(replay, LookupReplay):
        return replay.matched[start - 1] if start <= len(replay.matched) else 0
    return sum(1 for _ in takewhile(bool, replay.accept[start - 1 :]))


def near_tie(replay, trajectory, position, tie) -> bool:
    """Whether a model's two best choices at this position were within numeric noise; of a head's
    nothing is known.
    """
    margins = [
        *(() if isinstance(replay, LookupReplay) else replay.margin[position - 1 : position]),
        *trajectory.margins[position : position + 1],
    ]
    return min(margins, default=0.0) <= tie


if __name__ == "__main__":
    main()
