"""The run's own responses, split into three sets: train; validation, which says when to stop; test,
which proves the draft.

The split is by a keyed hash of the prompt. Near-duplicates (turns of one conversation) go by the
hash of the first of them in token order, so nothing like a prompt of training is in the test set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from draftbench.acceptance.intervals import MIN_REQUESTS
from draftbench.errors import UsageError
from draftbench.measure.trajectories import ScoredResponse, recorded_responses
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.run import Run

# The shares of prompts in the test and the validation set; the others are trained on.
TEST, VALIDATION = 0.15, 0.1
# The most responses for validation: they are read at every look, and more would tell little.
LOOKED_AT = 300
# Two prompts are near each other if they share this part of the pieces of the shorter one; a piece
# is a run of this many tokens.
NEAR, PIECE = 0.5, 8
# Pieces that more than this share of all prompts have, and more than this many prompts, belong to
# the traffic (a system prompt) and do not count.
COMMON, COMMON_FROM = 0.05, 10

Tokens = tuple[int, ...]
# The weight of a token in the hash of a piece, by its place there.
_FACTORS = np.random.default_rng(0).integers(1 << 63, size=PIECE, dtype=np.uint64) * 2 + 1


@dataclass(frozen=True)
class Examples:
    """The target's responses. Those to train on are ordered by a hash, so that any first part of
    them is a fair sample.
    """

    train: tuple[ScoredResponse, ...]
    validation: tuple[ScoredResponse, ...]
    test: tuple[ScoredResponse, ...]


def prompt_of(response: ScoredResponse) -> Tokens:
    """The tokens of the prompt that it answers."""
    return tuple(response.prompt.tokens)


def tokens_of(responses: Iterable[ScoredResponse]) -> int:
    """Tokens of responses."""
    return sum(len(response.tokens) for response in responses)


def place_of(prompt: Sequence[int], key: bytes) -> str:
    """What the responses to a prompt, and to later ones near it, are for."""
    digest = _digest(prompt, key)
    share = int(digest, 16) / 16 ** len(digest)
    return "test" if share < TEST else "validation" if share < TEST + VALIDATION else "train"


def _digest(prompt: Sequence[int], key: bytes) -> str:
    return keyed_hash(key, repr(tuple(prompt)).encode())


def first_of_near(prompts: Iterable[Tokens]) -> dict[Tokens, Tokens]:
    """For each prompt, the first in token order among those near it, or near one of those."""
    if not (ordered := sorted(set(prompts))):
        return {}
    pieces = []
    for prompt in ordered:
        short = max(0, PIECE - len(prompt))
        runs = sliding_window_view(np.pad(np.array(prompt, np.uint64), (0, short)), PIECE)
        pieces.append(np.unique(runs @ _FACTORS))
    owner = np.repeat(np.arange(len(ordered)), [len(each) for each in pieces])
    _, piece, owners = np.unique(np.concatenate(pieces), return_inverse=True, return_counts=True)
    owners = owners[piece]
    telling = owners <= max(COMMON_FROM, COMMON * len(ordered))
    sizes = np.bincount(owner[telling], minlength=len(ordered))
    shared = telling & (owners > 1)
    order = np.argsort(piece[shared], kind="stable")
    ends = np.flatnonzero(np.diff(piece[shared][order])) + 1
    together = Counter(tuple(each.tolist()) for each in np.split(owner[shared][order], ends))
    common = Counter[tuple[int, int]]()
    for each, times in together.items():
        common.update(dict.fromkeys(combinations(each, 2), times))
    before = list(range(len(ordered)))

    def first(at: int) -> int:
        while before[at] != at:
            at = before[at]
        return at

    for pair, times in common.items():
        if times >= NEAR * min(sizes[at] for at in pair):
            one, other = sorted(map(first, pair))
            before[other] = one
    return {prompt: ordered[first(at)] for at, prompt in enumerate(ordered)}


def examples_of(run: Run, key: bytes) -> Examples:
    """The responses of a run, split into the three purposes.

    Raises:
        UsageError: the run has no texts, or too few.
    """
    responses = sorted(_recorded(run), key=lambda r: (_digest(r.prompt.tokens, key), r.key))
    first = first_of_near(map(prompt_of, responses))
    places: dict[str, list[ScoredResponse]] = {"test": [], "validation": [], "train": []}
    for response in responses:
        places[place_of(first[prompt_of(response)], key)].append(response)
    ordered = {place: tuple(rows) for place, rows in places.items()}
    if min(len({r.trajectory.request for r in rows}) for rows in ordered.values()) < MIN_REQUESTS:
        requests = len({r.trajectory.request for rows in ordered.values() for r in rows})
        raise UsageError(
            f"too few requests to train and prove the draft on: the run has {requests}",
            hint="sweep more of the traffic, a few hundred requests at least: of each hundred, 15 "
            "prove the draft and 10 say when to stop",
        )
    return Examples(**ordered | {"validation": ordered["validation"][:LOOKED_AT]})


def other_traffic(other: Run, run: Run, examples: Examples) -> tuple[ScoredResponse, ...]:
    """The responses of another run of the same target, without those to prompts that train the
    draft or say when to stop, or are near such a prompt.

    Raises:
        UsageError: the run has another target, no texts, or too few.
    """
    # By the target's weights; where an engine served it, by its name.
    facts = [each.facts_of(None) for each in (run, other)]
    names = [each.manifest.question.target for each in (run, other)]
    one, two = (f.fingerprint if f else name for f, name in zip(facts, names, strict=True))
    if one != two:
        raise UsageError(
            f"`{other.path}` is a run of another target, `{names[1]}`",
            hint="sweep the other traffic with the target that the draft is trained for",
        )
    trained, others = (
        (*examples.train, *examples.validation),
        list(_recorded(other)),
    )
    first = first_of_near(map(prompt_of, (*trained, *others)))
    seen = {first[prompt_of(each)] for each in trained}
    unseen = tuple(each for each in others if first[prompt_of(each)] not in seen)
    if len({response.trajectory.request for response in unseen}) < MIN_REQUESTS:
        raise UsageError(
            f"`{other.path}` has too few requests that the training does not see",
            hint=f"sweep at least {MIN_REQUESTS} other requests",
        )
    return unseen


def _recorded(run: Run) -> Iterator[ScoredResponse]:
    return recorded_responses(run, "to train on")
