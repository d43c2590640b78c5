"""Prompt lookup along a response: what it proposes at every start of a round, by the rule of the
built-in decoder or of a serving engine. No model runs.
"""

from __future__ import annotations

from itertools import takewhile

from draftbench.decoder.drafters import LookupIndex, LookupRule
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, LookupReplay

# By engine; those that are not named are taken to do as the built-in decoder does. The last
# occurrence of the longest n-gram: vLLM 0.32 (v1/worker/gpu/spec_decode/ngram/speculator.py), which
# always proposes k tokens. One length of n-gram, an occurrence with as many tokens after it and
# none that reaches into the newest token: llama.cpp (common/ngram-map.cpp). The first occurrence
# in any request's text: TensorRT-LLM without the options that `export` writes.
LOOKUP_RULES = {"vllm": LookupRule(fills=True)}


def lookup_index(engine: str | None, longest: int, shortest: int) -> LookupIndex:
    """An empty index that finds what the engine finds; None is the built-in decoder."""
    if engine == "llama.cpp":
        rule = LookupRule(unseen=1, begin=1, least=shortest)
        return LookupIndex(shortest, shortest, rule)
    return LookupIndex(longest, shortest, LOOKUP_RULES.get(engine or "", LookupRule()))


def replay_lookup(
    response: ScoredResponse,
    candidate: Candidate,
    index: LookupIndex,
    window: int,
) -> LookupReplay:
    """What prompt lookup proposes at every start of a round.

    Args:
        index: still empty.
        window: the largest k of the grid.
    """
    index.extend(list(response.prompt.tokens))
    proposed, matched = [], []
    tokens = response.tokens
    for start in range(1, len(tokens)):
        index.extend([tokens[start - 1]])
        found = index.lookup(window)
        pairs = zip(found, tokens[start:], strict=False)
        proposed.append(len(found))
        matched.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return LookupReplay(
        request=response.trajectory.request,
        sample=response.trajectory.sample,
        candidate=candidate,
        window=window,
        proposed=tuple(proposed),
        matched=tuple(matched),
    )
