"""What a training says of itself: its forecast, its proof, and the `training.json` of the draft."""

from __future__ import annotations

from draftbench.acceptance.intervals import Estimate
from draftbench.records import Record

# Speeds that differ by less are a tie, as in the decision; rates by less are not worth a training.
LEAST_FASTER, LEAST_GAIN = 0.02, 0.01


class Part(Record, frozen=True):
    """One training on a part of the data."""

    share: float  # of the tokens to train on
    responses: int
    rate: float  # that it reached on held-out requests
    seconds: float


class Reached(Record, frozen=True):
    """A draft's speed-up at its fastest k."""

    k: int
    speedup: Estimate  # S


class Forecast(Record, frozen=True):
    """What training on all of the data will bring, by training on small parts of it."""

    rate: float  # how often a drafted token is accepted before training
    parts: tuple[Part, ...]
    gain: Estimate  # of the rate
    before: Reached | None  # None: the run did not time the draft
    after: Reached | None
    fastest: float | None  # speed-up of the run's fastest configuration, at least 1
    requests: int  # held out
    tokens: int  # to train on, each epoch
    seconds: float  # that the training takes on this device
    device: str

    @property
    def worth_it(self) -> bool:
        """Whether the trained draft is expected to be faster than anything that the run has; where
        speed is unknown, whether it is expected to be accepted more often.
        """
        if self.after is None or self.fastest is None:
            return self.gain.value >= LEAST_GAIN
        return self.after.speedup.value >= self.fastest * (1 + LEAST_FASTER)


class Compared(Record, frozen=True):
    """A figure of the original and of the trained draft on the same requests."""

    original: Estimate
    trained: Estimate
    difference: Estimate


class Proof(Record, frozen=True):
    """Both drafts on requests that the training never looked at."""

    requests: int
    rate: Compared
    k: int  # at which the tokens per round are compared
    tokens_per_round: Compared
    before: Reached | None  # None: the run did not time the draft
    after: Reached | None


class Split(Record, frozen=True):
    """The responses of one purpose, without a text."""

    requests: int
    tokens: int
    digest: str  # keyed hash of their prompts and responses


class Training(Record, frozen=True):
    """`training.json`."""

    draft: str  # what was trained, as it was named
    fingerprint: str  # of the original
    target: str
    run: str  # id of the run whose responses these are
    train: Split
    stop: Split
    prove: Split
    epochs: int  # at most
    learning_rate: float
    batch: int
    seed: int
    looks: tuple[
        tuple[int, float], ...
    ]  # steps, and the rate on the requests that say when to stop
    seconds: float  # of training and looking; the last start alone where it was resumed
    forecast: Forecast
    proof: Proof
    packages: dict[str, str]  # versions
