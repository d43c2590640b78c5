"""What a training says of itself: its forecast, its proof, and the `training.json` of the draft."""

from __future__ import annotations

from typing import Literal

from draftbench.acceptance.intervals import Estimate
from draftbench.records import Record

# Speeds that differ by less are a tie, as in the decision; rates by less are not worth a training.
LEAST_FASTER, LEAST_GAIN = 0.02, 0.01


def faster_than(speedup: float) -> float:
    """The least speed-up that is no tie."""
    return speedup * (1 + LEAST_FASTER)


Verdict = Literal["worth it", "may be worth it", "cannot tell", "not worth it"]


class Part(Record, frozen=True):
    """The draft after a part of its training."""

    share: float  # of the training: a step counts by its learning rate
    steps: int  # that were taken
    rate: float  # that it reached on held-out requests


class Reached(Record, frozen=True):
    """A draft's speed-up at its fastest k."""

    k: int  # at which it is fastest
    speedup: Estimate  # S, after the first token


class Forecast(Record, frozen=True):
    """What a training will bring, by the first parts of it."""

    rate: float  # how often a drafted token is accepted before training
    parts: tuple[Part, ...]  # the shortest first
    gain: Estimate  # of the rate
    before: Reached | None  # None: the run did not time the draft
    after: Reached | None  # what is expected of the trained draft
    fastest: float | None  # speed-up of the run's fastest configuration, at least 1
    requests: int  # held out
    tokens: int  # to train on, each epoch
    seconds: float  # that the training takes on this device
    device: str  # that trains

    @property
    def verdict(self) -> Verdict:
        """Whether the trained draft becomes faster than anything that the run has; where speed is
        unknown, whether it is accepted more often.
        """
        if self.after is None or self.fastest is None:
            figure, least = self.gain, LEAST_GAIN
        else:
            figure, least = self.after.speedup, faster_than(self.fastest)
        if figure.value >= least:
            return "worth it" if figure.low >= least else "may be worth it"
        return "cannot tell" if figure.high >= least else "not worth it"

    @property
    def expects_it(self) -> bool:
        """Whether more speaks for the training than against it."""
        return self.verdict in ("worth it", "may be worth it")

    def held(self, gained: float) -> bool | None:
        """Whether its interval has what was gained; None where it promised no gain for certain, so
        that neither a small one nor a loss says anything of it.
        """
        if self.gain.low <= 0 and gained <= self.gain.high:
            return None
        return self.gain.low <= gained <= self.gain.high


class Compared(Record, frozen=True):
    """A figure of the original and of the trained draft on the same requests."""

    original: Estimate  # before training
    trained: Estimate  # after it
    difference: Estimate  # trained less original, request by request


class Proof(Record, frozen=True):
    """Both drafts on requests that the training never looked at."""

    requests: int  # that neither trained nor said when to stop
    rate: Compared  # how often a drafted token is accepted
    k: int  # at which the tokens per round are compared
    tokens_per_round: Compared  # what speed depends on
    before: Reached | None  # None: the run did not time the draft
    after: Reached | None  # by the tokens that its rounds yield
    faster: Estimate | None  # speed-up after over that before

    @property
    def gained(self) -> Estimate:
        """What training brought: the part by which the draft is faster or, where its speed is not
        known, the tokens that its rounds yield more.
        """
        if self.faster is None:
            return self.tokens_per_round.difference
        return Estimate(self.faster.value - 1, self.faster.low - 1, self.faster.high - 1)

    @property
    def better(self) -> bool:
        """Whether the trained draft is expected to gain; none that is shown to lose is."""
        return self.gained.value > 0


class Split(Record, frozen=True):
    """The responses of one purpose, without a text."""

    requests: int  # that they answer
    tokens: int  # of the responses
    digest: str  # keyed hash of their prompts and responses


class Training(Record, frozen=True):
    """How a draft was trained; it holds no text."""

    draft: str  # what was trained, as it was named
    fingerprint: str  # of the original
    target: str  # of the run
    run: str  # id of the run whose responses these are
    train: Split  # what it was trained on
    stop: Split  # what said when to stop
    prove: Split  # what proved it
    lora: int | None  # rank of the adapters that were trained, and added to the weights
    epochs: int  # how often the responses were read at most
    learning_rate: float  # the largest
    batch: int  # responses a step
    seed: int  # of their order
    looks: tuple[tuple[int, float], ...]  # steps, and the rate of those who say when to stop
    seconds: float  # of training and looking; the last start alone where it was resumed
    forecast: Forecast | None  # what was expected; None: too few steps to tell
    proof: Proof  # what came of it
    other: Proof | None  # on the traffic of another run, with `--other`
    packages: dict[str, str]  # versions


class TrainingAnswer(Record, frozen=True):
    """What `train` answers: no training where the forecast was all that was asked, or advised
    against it.
    """

    forecast: Forecast | None  # what training would gain; None: too few steps to tell
    training: Training | None = None  # and what it gained
    kept: bool = False  # whether the trained draft was better in the proof, and written
