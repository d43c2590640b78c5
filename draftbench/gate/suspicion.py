"""Paired requests → signs that the set-up broke, which acceptance alone may hide or even reward.

A doubled first token, a template of another model or a damaged target change what is asked and
answered: acceptance may then fall a little, or rise because loops are easy to draft. Such figures
are no result, whatever they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from draftbench.gate.baseline import Baseline
from draftbench.gate.noninferiority import TAIL
from draftbench.gate.pairing import Pair

# A smaller share of the requests is no matter yet.
_SHARE = 0.1
# What a message counts differs from run to run; its other words say which kind of fault it is.
_FIGURES = re.compile(r"\d[\d.]*(?:, \d[\d.]*)*")


def new_faults(old: Baseline, new: Baseline, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Suspected faults of the new run of a kind that the old did not show."""
    known = set(map(_kind, old.faults))
    kept = [fault for fault in new.faults if _kind(fault) not in known]
    more = _silent(pairs), _looping(pairs)
    return (*kept, *(fault for fault in more if fault is not None))


def prompts_changed(pairs: Sequence[Pair]) -> str | None:
    """How the same requests are rendered otherwise; None where their prompts are as long as before,
    or of unknown length.
    """
    longer = [
        new.prompt_tokens - old.prompt_tokens
        for old, new in pairs
        if old.prompt_tokens is not None and new.prompt_tokens is not None
    ]
    changed = [tokens for tokens in longer if tokens]
    if not changed:
        return None
    least, most = min(changed), max(changed)
    by = f"{least:+}" if least == most else f"{least:+} to {most:+}"
    return (
        f"{len(changed)} of {len(pairs)} requests are rendered to prompts of another length "
        f"({by} tokens): the chat template or the tokenizer changed"
    )


def responses_changed(pairs: Sequence[Pair]) -> str | None:
    """Whether the target still writes what it wrote; None where that is unknown."""
    known = [(old, new) for old, new in pairs if old.output and new.output]
    if not known:
        return None
    others = sum(old.output != new.output for old, new in known)
    if not others:
        return "the target's responses are the same as before: what changed is the draft"
    return (
        f"the target wrote other responses to {others} of {len(known)} requests: "
        "its weights, prompts or kernels changed, not the draft alone"
    )


def _kind(fault: str) -> str:
    return _FIGURES.sub("#", fault)


def _silent(pairs: Sequence[Pair]) -> str | None:
    states = [(old.tokens == 0, new.tokens == 0) for old, new in pairs]
    return _more(states, "end after one token, so that nothing is drafted")


def _looping(pairs: Sequence[Pair]) -> str | None:
    states = [(old.looping > 0, new.looping > 0) for old, new in pairs]
    return _more(states, "end in a loop, in which any draft is accepted more than it deserves")


def _more(states: Sequence[tuple[bool, bool]], what: str) -> str | None:
    """Whether surely more responses are in a bad state than before (McNemar's exact test: of those
    that changed, as many should have got better).
    """
    begun = sum(now and not was for was, now in states)
    ended = sum(was and not now for was, now in states)
    changed = begun + ended
    chance = sum(math.comb(changed, i) for i in range(begun, changed + 1)) / 2**changed
    if chance > TAIL or begun - ended < _SHARE * len(states):
        return None
    before, after = (sum(state[side] for state in states) for side in (0, 1))
    return f"{after} of {len(states)} responses {what}; before it were {before}"
