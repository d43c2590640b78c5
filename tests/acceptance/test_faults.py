"""Each fault is suspected where it is planted, and nowhere in a healthy run; a chat template where
prompts are chats and the draft may have been trained with another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scenes import SMALL, facts, manifest, replayed

from draftbench.acceptance.breakdown import RISING, TEMPLATE
from draftbench.acceptance.faults import SuspectedFault, suspected_faults, template_may_differ
from draftbench.acceptance.rounds import PositionLaw, Rounds, StartLaw, expected_rounds
from draftbench.acceptance.summary import acceptance_report
from draftbench.records import Candidate, Replay, Sampling, Trajectory
from draftbench.run_folder.run import Run, run_of

SELF = Candidate(draft="self")
Pairs = Sequence[tuple[Trajectory, Replay]]


def faults_of(candidate: Candidate, pairs: Pairs, *rounds: Rounds) -> list[SuspectedFault]:
    return list(suspected_faults(candidate, pairs, rounds, near_tie=0.1))


def whats(candidate: Candidate, pairs: Pairs, *rounds: Rounds) -> list[str]:
    return [fault.kind for fault in faults_of(candidate, pairs, *rounds)]


def rounds_of(accept: Sequence[float], k: int) -> Rounds:
    length = len(accept) + 1
    return expected_rounds([PositionLaw(length, length, np.array(accept), length - 1)], k)


def test_a_healthy_pair_raises_no_suspicion() -> None:
    accept = [1.0, 1.0, 0.0, 1.0] * 50
    rounds = [rounds_of(accept, k) for k in (1, 2)]
    assert whats(SMALL, [replayed(accept)], *rounds) == []


def test_zero_acceptance_is_one_suspicion_and_needs_enough_tokens() -> None:
    none = [0.0] * 60
    pairs = [replayed(none)]
    (fault,) = faults_of(SMALL, pairs, rounds_of(none, 3))
    assert fault.message == "not one token in 60 positions was accepted"
    assert whats(SMALL, [replayed(none[:10])], rounds_of(none[:10], 3)) == []


def test_positions_that_the_draft_cannot_reach_are_not_held_against_it() -> None:
    assert whats(SMALL, [replayed([0.0] * 60, draftable=20)]) == []


def test_a_mean_accepted_length_of_one_is_suspected_though_the_replay_was_fine() -> None:
    pairs = [replayed([1.0] * 60)]
    assert whats(SMALL, pairs, rounds_of([0.0] * 60, 3)) == ["one token per round"]


@pytest.mark.parametrize(
    ("accept", "message"),
    [
        # 40 rounds of four and one token, and a last token that the limit leaves no room to draft.
        ([1.0] * 201, "every one of 160 drafted tokens was accepted at k = 4"),
        # 100 rounds, one that is rejected, 100 rounds: 800 of 804.
        ([1.0] * 500 + [0.0] + [1.0] * 500, "99.5% of 804 drafted tokens were accepted at k = 4"),
        # 20 rounds, one that is rejected, 20 rounds: 160 of 164 is 97.6%.
        ([1.0] * 100 + [0.0] + [1.0] * 100, None),
        ([1.0] * 41, None),  # 32 tokens prove nothing
    ],
)
def test_a_draft_that_is_right_too_often_is_suspected_and_the_control_is_not(
    accept: list[float], message: str | None
) -> None:
    rounds = rounds_of(accept, 4)
    faults = [(fault.kind, fault.message) for fault in faults_of(SMALL, [], rounds)]
    assert faults == ([] if message is None else [("nearly all accepted", message)])
    assert whats(SELF, [], rounds) == []


@pytest.mark.parametrize("by_round", [True, False])
def test_acceptance_near_zero_at_the_first_position_is_suspected(by_round: bool) -> None:
    # One round of two tokens, 118 of one, and a last token that nothing is drafted for.
    rounds = rounds_of([1.0] + [0.0] * 120, 2)
    # Three rounds of two tokens, 59 of one: 4.8%.
    better = rounds_of([1.0, 0.0] * 3 + [0.0] * 60, 1)
    if not by_round:
        rounds, better = (
            replace(counted, reached=counted.reached * np.nan, survived=counted.survived * np.nan)
            for counted in (rounds, better)
        )
    (fault,) = faults_of(SMALL, [], rounds)
    assert fault.kind == "one token per round"
    assert fault.message == "only 0.8% of 119 rounds accepted a token at k = 2"
    assert whats(SMALL, [], better) == []


def test_prompt_lookup_that_finds_nothing_is_no_fault() -> None:
    nothing = np.zeros(99, dtype=np.int64)
    rounds = expected_rounds([StartLaw(100, 100, nothing, nothing, 3)], 3)
    assert whats(Candidate(draft="ngram"), [], rounds) == []


def test_a_draft_position_that_never_accepts_after_healthy_ones_is_suspected() -> None:
    # Two tokens right, then one wrong: with k = 4 the third of each round is always rejected,
    # in 39 of 40 rounds: the limit leaves no room to draft the very last position.
    rounds = rounds_of([1.0, 1.0, 0.0] * 40, 4)
    (fault,) = faults_of(SMALL, [], rounds, rounds_of([1.0, 1.0, 0.0] * 40, 3))
    assert fault.kind == "hazard falls to zero"
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
    changes: dict[str, object], accept: float, suspected: bool
) -> None:
    pairs = [replayed([1.0, accept], candidate=SELF, **changes)]
    assert whats(SELF, pairs) == (["control failed"] if suspected else [])
    assert whats(SMALL, pairs) == []


def test_the_control_forgives_a_near_tie_of_the_replay() -> None:
    assert whats(SELF, [replayed([1.0, 0.0], candidate=SELF, margin=(5.0, 0.02))]) == []


def run(form: str, target: str | None = "a", draft: str | None = "b") -> Run:
    """With the hashes of the chat templates of target and draft."""
    parts = [
        {} if template is None else {"chat template": template} for template in (target, draft)
    ]
    models = [facts(model, parts=part) for model, part in zip((None, SMALL), parts, strict=True)]
    return run_of(manifest(form=form), models)


@pytest.mark.parametrize(
    ("form", "differs"),
    [
        ("prompt", False),
        ("--prompt-field, prompt", False),
        ("text", False),  # as AIPerf has it
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
    # Unknown.
    assert template_may_differ(run("messages", None, None), SMALL)


@pytest.mark.parametrize(("form", "suspected"), [("prompt", False), ("messages", True)])
def test_low_acceptance_early_in_responses_blames_a_template_only_of_chats(
    form: str, suspected: bool
) -> None:
    early = [replayed([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], name) for name in "abcde"]
    chats = run(form)
    seen = run_of(chats.manifest, [*chats.facts, *(record for pair in early for record in pair)])
    (card,) = acceptance_report(seen, [SMALL], (1,), 0.02).candidates
    assert card.breakdown is not None
    assert card.breakdown.reading == (f"{RISING}: {TEMPLATE}" if suspected else RISING)
