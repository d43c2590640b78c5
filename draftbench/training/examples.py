"""The run's own responses as examples: to train on, to stop by, and to prove the draft on.

Which of the three a response is for follows from a keyed hash of its prompt: equal prompts are for
the same, in every run of the same key. So a request that a draft was trained on proves nothing of
it, neither here nor in a later run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftbench.acceptance.intervals import MIN_REQUESTS
from draftbench.errors import UsageError
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Request
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.run import Run

# Of all prompts: those that prove, and those that say when to stop; the others train.
PROVE, STOP = 0.15, 0.1
# The responses that say when to stop are read at every look: more would take longer than they tell.
LOOKED_AT = 300


@dataclass(frozen=True)
class Examples:
    """Responses of the target, those to train on in the order of a hash, so that any first part of
    them is a fair sample.
    """

    train: tuple[ScoredResponse, ...]
    stop: tuple[ScoredResponse, ...]
    prove: tuple[ScoredResponse, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the responses to train on."""
        return tokens_of(self.train)


def tokens_of(responses: Iterable[ScoredResponse]) -> int:
    """Tokens of responses."""
    return sum(len(response.tokens) for response in responses)


def place_of(prompt: Sequence[int], key: bytes) -> tuple[str, str]:
    """What the responses to a prompt are for, and the hash by which they are ordered there."""
    digest = keyed_hash(key, repr(tuple(prompt)).encode())
    share = int(digest, 16) / 16 ** len(digest)
    return "prove" if share < PROVE else "stop" if share < PROVE + STOP else "train", digest


def examples_of(run: Run, key: bytes) -> Examples:
    """The responses of a run, split.

    Raises:
        UsageError: the run has no texts, or too few.
    """
    places: dict[str, list[tuple[str, ScoredResponse]]] = {"prove": [], "stop": [], "train": []}
    for response in _recorded(run):
        place, digest = place_of(response.prompt.tokens, key)
        places[place].append((digest, response))
    ordered = {
        place: tuple(r for _, r in sorted(rows, key=lambda row: (row[0], row[1].key)))
        for place, rows in places.items()
    }
    if min(len({r.trajectory.request for r in rows}) for rows in ordered.values()) < MIN_REQUESTS:
        requests = len({r.trajectory.request for rows in ordered.values() for r in rows})
        raise UsageError(
            f"the run has {requests} requests to train on and to prove the draft on: too few",
            hint="sweep more of the traffic; some hundred requests are a beginning, and of a "
            "hundred 15 prove the draft and 10 say when to stop",
        )
    return Examples(**ordered | {"stop": ordered["stop"][:LOOKED_AT]})


def other_traffic(other: Run, run: Run, examples: Examples) -> tuple[ScoredResponse, ...]:
    """The responses of another run of the same target, without those to prompts that trained or
    said when to stop.

    Raises:
        UsageError: the run is another target's, has no texts, or too few.
    """
    if _target_of(run) != _target_of(other):
        raise UsageError(
            f"`{other.path}` is a run of another target, `{other.manifest.question.target}`",
            hint="sweep the other traffic with the target whose responses are trained on",
        )
    seen = {tuple(each.prompt.tokens) for each in (*examples.train, *examples.stop)}
    unseen = [r for r in _recorded(other) if tuple(r.prompt.tokens) not in seen]
    if len({response.trajectory.request for response in unseen}) < MIN_REQUESTS:
        raise UsageError(
            f"`{other.path}` has too few requests that the training does not see",
            hint=f"sweep at least {MIN_REQUESTS} others",
        )
    return tuple(unseen)


def _target_of(run: Run) -> str:
    """A hash of its weights; where an engine served it, its name."""
    facts = run.facts_of(None)
    return facts.fingerprint if facts else run.manifest.question.target


def _recorded(run: Run) -> Iterator[ScoredResponse]:
    """The responses with something to draft, with their tokens, of a run that was read."""
    assert run.path is not None
    folder = RunFolder(run.path)
    if folder.redacted:
        raise UsageError(
            f"`{folder.path}` was redacted: the responses to train on were deleted",
            hint="sweep again with another --out; a redacted run keeps its figures alone",
        )
    for text in folder.records(PrivateText):
        trajectory = run.responses.get(text.key)
        if trajectory is not None and len(text.tokens) > 1:
            settings = Request(id=text.request, source="", sampling=trajectory.sampling)
            prompt = Prompt(settings, text.prompt, trajectory.limit)
            yield ScoredResponse.recorded(prompt, text, trajectory)
