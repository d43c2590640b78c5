"""The records of a training: its forecast, its proof, and the `training.json` of the draft."""

from __future__ import annotations

from typing import Literal

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.decide import faster_than
from draftbench.records import Record

# A smaller gain of the rate is not worth a training.
LEAST_GAIN = 0.01
Verdict = Literal["worth it", "may be worth it", "cannot tell", "not worth it"]
# How much training brought: by its whole interval, or only as expected.
Gain = Literal["more", "perhaps more", "no more", "less"]


class TrainingPart(Record, frozen=True):
    """The draft after a part of its training."""

    share: float  # of the whole training; a step counts by its learning rate
    steps: int  # taken
    rate: float  # acceptance that it reached on held-out requests


class Reached(Record, frozen=True):
    """A draft's speed-up at its fastest k."""

    k: int  # at which it is fastest
    speedup: Estimate  # S, after the first token


class Forecast(Record, frozen=True):
    """What a training will bring, judged by its first parts."""

    rate: float  # how often a drafted token is accepted before training
    parts: tuple[TrainingPart, ...]  # the shortest first
    gain: Estimate  # by how much the rate will rise
    before: Reached | None  # None: the run did not time the draft
    after: Reached | None  # expected of the trained draft
    fastest: float | None  # speed-up of the run's fastest configuration, at least 1
    over_fastest: Estimate | None  # speed-up of the trained draft over that one
    requests: int  # held out
    tokens: int  # to train on in each epoch
    seconds: float  # that the training will take on this device
    device: str  # on which it trains

    @property
    def verdict(self) -> Verdict:
        """Whether the trained draft becomes faster than anything in the run; if speed is unknown,
        whether it is accepted more often.
        """
        if self.over_fastest is None:
            figure, least = self.gain, LEAST_GAIN
        else:
            figure, least = self.over_fastest, faster_than(1.0)
        if figure.value >= least:
            return "worth it" if figure.low >= least else "may be worth it"
        return "cannot tell" if figure.high >= least else "not worth it"

    @property
    def expects_it(self) -> bool:
        """Whether more speaks for the training than against it."""
        return self.verdict in ("worth it", "may be worth it")

    def held(self, gained: float) -> bool | None:
        """Whether what was gained lies in the forecast's interval; None if the interval includes 0
        and the gain is below its upper end: such a gain or loss says nothing about the forecast.
        """
        if self.gain.low <= 0 and gained <= self.gain.high:
            return None
        return self.gain.low <= gained <= self.gain.high


class Compared(Record, frozen=True):
    """A figure of the original and of the trained draft on the same requests."""

    original: Estimate  # before training
    trained: Estimate  # after it
    difference: Estimate  # trained minus original, request by request


class Proof(Record, frozen=True):
    """Both drafts on requests that the training never looked at."""

    requests: int  # that neither trained the draft nor said when to stop
    rate: Compared  # how often a drafted token is accepted
    k: int  # at which the tokens per round are compared
    tokens_per_round: Compared  # what speed depends on
    before: Reached | None  # None: the run did not time the draft
    after: Reached | None  # computed from its tokens per round
    faster: Estimate | None  # speed-up after over speed-up before
    over_fastest: Estimate | None  # speed-up after over that of the run's fastest configuration

    @property
    def gained(self) -> Estimate:
        """What training brought: the relative speed that the draft gained or, if its speed is not
        known, its additional tokens per round.
        """
        if self.faster is None:
            return self.tokens_per_round.difference
        return Estimate(self.faster.value - 1, self.faster.low - 1, self.faster.high - 1)

    @property
    def verdict(self) -> Gain:
        """Whether the trained draft gained, and how sure that is."""
        gained = self.gained
        if gained.value > 0:
            return "more" if gained.low > 0 else "perhaps more"
        return "less" if gained.high < 0 else "no more"

    @property
    def better(self) -> bool:
        """Whether the trained draft is expected to gain."""
        return self.verdict in ("more", "perhaps more")

    @property
    def beats_fastest(self) -> Literal["yes", "perhaps", "no"] | None:
        """Whether it is faster than the run's fastest configuration; None if speed is unknown."""
        if (over := self.over_fastest) is None:
            return None
        if over.low >= faster_than(1.0):
            return "yes"
        return "perhaps" if over.high >= faster_than(1.0) else "no"


class Split(Record, frozen=True):
    """The responses used for one purpose, without their texts."""

    requests: int  # that these responses answer
    tokens: int  # of the responses
    digest: str  # keyed hash of their prompts and responses


class Training(Record, frozen=True):
    """How a draft was trained; it holds no text."""

    draft: str  # what was trained, as it was named
    fingerprint: str  # of the original
    target: str  # of the run
    run: str  # id of the run whose responses these are
    train: Split  # what it was trained on
    validation: Split  # what said when to stop
    test: Split  # what proved it
    lora: int | None  # rank of the adapters that were trained, and added to the weights
    epochs: int  # how often the responses were read at most
    learning_rate: float  # the largest
    batch: int  # responses a step
    seed: int  # of their order
    looks: tuple[tuple[int, float], ...]  # steps, and the rate on requests that say when to stop
    seconds: float  # of training and looking; if resumed, of the last start alone
    forecast: Forecast | None  # what was expected; None: too few steps to tell
    proof: Proof  # what came of it
    other: Proof | None  # on the traffic of another run, with `--other`
    packages: dict[str, str]  # versions


class TrainingAnswer(Record, frozen=True):
    """What `train` answers. There is no training if only the forecast was asked for, or if it
    advised against training.
    """

    forecast: Forecast | None  # what training would gain; None: too few steps to tell
    training: Training | None = None  # what it did gain
    kept: bool = False  # whether the trained draft was better in the proof, and written
