"""Each fault is suspected where it is planted, and nowhere in a healthy run; a chat template where
prompts are chats and the draft may have been trained with another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scenes import manifest, named

from draftbench.acceptance.breakdown import TEMPLATE
from draftbench.acceptance.faults import Fault, suspected_faults, template_may_differ
from draftbench.acceptance.rounds import PositionLaw, Rounds, StartLaw, expected_rounds
from draftbench.acceptance.summary import acceptance_report
from draftbench.records import Candidate, ModelFacts, Replay, Sampling, Trajectory
from draftbench.run_folder.run import Run, run_of

Make = Callable[..., Trajectory]
MakeReplay = Callable[..., Replay]
SMALL, SELF = Candidate(draft="small"), Candidate(draft="self")
Pairs = Sequence[tuple[Trajectory, Replay]]


def found(candidate: Candidate, pairs: Pairs, *rounds: Rounds) -> list[Fault]:
    return list(suspected_faults(candidate, pairs, rounds, near_tie=0.1))


def whats(candidate: Candidate, pairs: Pairs, *rounds: Rounds) -> list[str]:
    return [fault.what for fault in found(candidate, pairs, *rounds)]


def rounds_of(accept: Sequence[float], k: int) -> Rounds:
    length = len(accept) + 1
    return expected_rounds([PositionLaw(length, length, np.array(accept), length - 1)], k)


def test_a_healthy_pair_raises_no_suspicion(trajectory: Make, replay: MakeReplay) -> None:
    accept = [1.0, 1.0, 0.0, 1.0] * 50
    rounds = [rounds_of(accept, k) for k in (1, 2)]
    assert whats(SMALL, [(trajectory("r", 201), replay(accept))], *rounds) == []


def test_zero_acceptance_is_one_suspicion_and_needs_enough_tokens(
    trajectory: Make, replay: MakeReplay
) -> None:
    none = [0.0] * 60
    pairs = [(trajectory("r", 61), replay(none))]
    (fault,) = found(SMALL, pairs, rounds_of(none, 3))
    assert fault.candidate == "small"
    assert fault.message == "not one token in 60 positions was accepted"
    assert whats(SMALL, [(trajectory("r", 11), replay(none[:10]))], rounds_of(none[:10], 3)) == []


def test_positions_that_the_draft_cannot_reach_are_not_held_against_it(
    trajectory: Make, replay: MakeReplay
) -> None:
    assert whats(SMALL, [(trajectory("r", 61), replay([0.0] * 60, draftable=20))]) == []


def test_a_mean_accepted_length_of_one_is_suspected_though_the_replay_was_fine(
    trajectory: Make, replay: MakeReplay
) -> None:
    pairs = [(trajectory("r", 61), replay([1.0] * 60))]
    assert whats(SMALL, pairs, rounds_of([0.0] * 60, 3)) == ["one token per round"]


def test_prompt_lookup_that_finds_nothing_is_no_fault() -> None:
    nothing = np.zeros(99, dtype=np.int64)
    assert (
        whats(
            Candidate(draft="ngram"), [], expected_rounds([StartLaw(100, 100, nothing, nothing)], 3)
        )
        == []
    )


def test_a_draft_position_that_never_accepts_after_healthy_ones_is_suspected() -> None:
    # Two tokens right, then one wrong: with k = 4 the third of each round is always rejected,
    # in 39 of 40 rounds: the limit leaves no room to draft the very last position.
    rounds = rounds_of([1.0, 1.0, 0.0] * 40, 4)
    (fault,) = found(SMALL, [], rounds, rounds_of([1.0, 1.0, 0.0] * 40, 3))
    assert fault.what == "hazard falls to zero"
    assert fault.message == (
        "draft position 3 was never accepted in 39 tries at k = 4; "
        "the positions before it have hazards of 1.00, 1.00"
    )
    assert whats(SMALL, [], rounds_of([1.0, 1.0, 0.0] * 5, 4)) == []  # five tries prove nothing


@pytest.mark.parametrize(
    ("changes", "accept", "suspected"),
    [
        ({}, 1.0, False),
        ({}, 0.0, True),
        ({"margins": (5.0, 5.0, 0.01)}, 0.0, False),  # the target's near tie
        ({"argmax": (1, 1, 0)}, 0.0, False),  # a log holds another token than the target's best
        ({"sampling": Sampling(temperature=1.0)}, 0.0, False),
    ],
)
def test_the_target_must_accept_its_own_greedy_draft(
    trajectory: Make, replay: MakeReplay, changes: dict[str, object], accept: float, suspected: bool
) -> None:
    pairs = [(trajectory("r", 3, **changes), replay([1.0, accept], candidate=SELF))]
    assert whats(SELF, pairs) == (["control failed"] if suspected else [])
    assert whats(SMALL, pairs) == []


def test_the_control_forgives_a_near_tie_of_the_replay(
    trajectory: Make, replay: MakeReplay
) -> None:
    tie = replay([1.0, 0.0], candidate=SELF, margin=(5.0, 0.02))
    assert whats(SELF, [(trajectory("r", 3), tie)]) == []


def facts(draft: str | None, template: str | None) -> ModelFacts:
    fields: dict[str, Any] = dict.fromkeys(("parameters", "weight_bytes", "vocab_size"), 1)
    return ModelFacts(
        candidate=named(draft),
        quant="none",
        dtype="float32",
        quantized_share=0.0,
        kv_bytes_per_token=1,
        context_length=100,
        runner="cpu",
        fingerprint="",
        caveats=(),
        has_kernel=True,
        replay_disagreement=None,
        parts={} if template is None else {"chat template": template},
        **fields,
    )


def run(form: str, target: str | None = "a", draft: str | None = "b") -> Run:
    return run_of(manifest(form=form), [facts(None, target), facts("small", draft)])


@pytest.mark.parametrize(
    ("form", "differs"),
    [
        ("prompt", False),
        ("--prompt-field, prompt", False),
        ("messages", True),
        ("messages, prompt", True),
        ("OpenAI request", True),
    ],
)
def test_plain_prompts_have_no_template(form: str, differs: bool) -> None:
    assert template_may_differ(run(form), SMALL) == differs


def test_one_template_of_both_is_none_to_suspect() -> None:
    assert not template_may_differ(run("messages", "a", "a"), SMALL)
    assert not template_may_differ(run("messages"), SELF)
    # Older runs did not keep them.
    assert template_may_differ(run("messages", None, None), SMALL)


@pytest.mark.parametrize(("form", "suspected"), [("prompt", False), ("messages", True)])
def test_low_acceptance_early_in_responses_blames_a_template_only_of_chats(
    trajectory: Callable[..., Trajectory],
    replay: Callable[..., Replay],
    form: str,
    suspected: bool,
) -> None:
    records: list[Any] = [facts(None, "a"), facts("small", "b")]
    for name in "abcde":
        records += [trajectory(name, 7), replay([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], name)]
    report = acceptance_report(run_of(manifest(form=form), records), [SMALL], (1,), 0.02)
    (card,) = report.candidates
    assert card.breakdown is not None
    reading = str(card.breakdown.reading)
    assert reading.startswith("fewer tokens are accepted early in a response than late")
    assert (TEMPLATE in reading) == suspected
    assert ("template" in reading) == suspected
