"""Each fault is suspected where it is planted, and nowhere in a healthy run; a replay is
contradicted by decoding that accepts differently, and not by near ties or chance.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from scenes import ALL, NONE, SMALL, decode, facts, lookup, manifest, replay, replayed, trajectory

from draftbench.acceptance.breakdown import RISING, TEMPLATE
from draftbench.acceptance.candidate_rounds import candidate_rounds, served_rounds
from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.faults import (
    SuspectedFault,
    contradiction,
    suspected_faults,
    template_may_differ,
)
from draftbench.acceptance.rounds import PositionLaw, Rounds, StartLaw, expected_rounds
from draftbench.acceptance.summary import acceptance_report
from draftbench.records import (
    AnyObservation,
    Candidate,
    Decode,
    DraftingMode,
    Replay,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.run import Run, run_of

NGRAM = Candidate(draft="ngram")
SAMPLED = {"sampling": Sampling(temperature=1.0)}
DRAWN: dict[str, Any] = {"mode": DraftingMode.SAMPLED}


def rounds(*accepted: int, k: int = 2, request: str = "r", **changes: Any) -> Decode:
    """A run whose rounds accepted so much of k; the last one emits nothing more than that."""
    every = tuple(accepted)
    none = (0,) * len(every)
    proposed = (*(k,) * (len(every) - 1), every[-1])
    fields: dict[str, Any] = {"proposed": proposed, "accepted": every, "cut": none}
    fields |= {"draft_seconds": none, "verify_seconds": none, "request": request}
    fields |= {"output_tokens": 1 + sum(every) + len(every)}
    return decode(SMALL, k, 1.0, **fields | changes)


def found(accept: list[float], *rows: Decode, rounded: bool = False, **changes: Any) -> str | None:
    """What is said of a replay that accepts so; near ties are margins up to .5."""
    pair = trajectory("r", len(accept) + 1), replay(accept, **changes)
    fault = contradiction([pair], rows, 0.5, by_position=True, rounded=rounded)
    return fault and fault.message


def test_the_same_tokens_accepted_at_any_k_are_no_contradiction() -> None:
    # Two accepted, one rejected, and again.
    accept = [1.0, 1.0, 0.0] * 3
    assert found(accept, rounds(2, 2, 2), rounds(1, 0, 1, 0, 1, 0, k=1)) is None


def test_a_token_that_decoding_rejects_and_replay_accepts_contradicts_it() -> None:
    # Of positions 1 … 8 those after the first rejected one of each round are not tried.
    said = "decoding accepted differently from replay at {} of {} positions, near ties not counted"
    assert found(ALL, rounds(0, 2, 2, 0)) == said.format(1, 5)
    assert found(NONE, rounds(2, 2, 1)) == said.format(5, 5)
    # The same position at two k's is one.
    assert found(ALL, rounds(0, 2, 2, 0), rounds(0, 1, 1, 1, 0, k=1)) == said.format(1, 6)


def test_a_near_tie_of_the_draft_contradicts_nothing() -> None:
    tied = (0.4, *[5.0] * 7)
    assert found(ALL, rounds(0, 2, 2, 0), margin=tied) is None


def test_a_text_is_compared_up_to_where_it_differs_from_the_response() -> None:
    assert found(ALL, rounds(2, 0, 0, 0, 0, 0)) is not None
    assert found(ALL, rounds(2, 0, 0, 0, 0, 0, first_difference=4, tie=True)) is None
    assert found(ALL, rounds(0, 2, 2, 0, first_difference=0, tie=True)) is None


def test_one_position_in_fifty_may_differ() -> None:
    many = [1.0] * 150
    rejected = [(0, *[2] * 49, 1), (0, 0, 0, 0, *[2] * 48, 1)]
    assert [found(many, rounds(*row)) is None for row in rejected] == [True, False]


def test_of_a_quantized_draft_differences_to_one_side_alone_contradict() -> None:
    """13 of 13 to one side are 3.6 standard errors, 12 of 12 are 3.46: as 16 to both: chance."""
    for n in (12, 13):
        row = rounds(*[0] * n, *[1] * 50, k=1)
        accept = [1.0] * (row.output_tokens - 1)
        assert (found(accept, row, rounded=True) is None) == (n == 12)
        assert found(accept, row) is not None
    # In the replay every second token is rejected, in decoding the others.
    swapped = rounds(*[0, 1] * 16, k=1)
    replayed, at = [], 0
    for accepted in swapped.accepted:
        replayed += [1.0 - accepted, 1.0][: accepted + 1]
        at += accepted + 1
    assert found(replayed, swapped, rounded=True) is None
    assert found(replayed, swapped) is not None


def test_where_near_ties_hide_every_position_rounds_are_compared_in_expectation() -> None:
    names = [f"r{n}" for n in range(8)]
    pairs = [(trajectory(name, 9), replay(ALL, request=name, margin=(0.0,) * 8)) for name in names]
    lengths = [(0, 0, 0, 0, 0, 0, 0, 0), (1, 0, 0, 0, 0, 0, 0)]
    rows = [rounds(*lengths[n % 2], request=name) for n, name in enumerate(names)]
    fault = contradiction(pairs, rows, 0.5, by_position=True)
    assert fault is not None
    assert "fewer tokens per round than replay" in fault.message


def test_where_texts_differ_from_the_start_rounds_are_compared_in_expectation() -> None:
    names = [f"r{n}" for n in range(8)]
    pairs = [(trajectory(name, 9), replay(ALL, request=name)) for name in names]
    rows = [rounds(*[0] * (7 + n % 2), request=name) for n, name in enumerate(names)]
    rows = [msgspec.structs.replace(row, first_difference=1) for row in rows]
    fault = contradiction(pairs, rows, 0.5, by_position=True)
    assert fault is not None
    assert "fewer tokens per round than replay" in fault.message


def test_prompt_lookup_is_compared_by_the_starts_of_rounds() -> None:
    # From the start it finds two tokens and both are right; then nothing.
    response, looked_up = trajectory("r", 6), lookup((2, 2, 2, 0, 0), (2, 1, 0, 0, 0))
    same, other = (rounds(*accepted, 0, 0, proposed=(2, 0, 0)) for accepted in ((2,), (1,)))
    assert contradiction([(response, looked_up)], [same], 0.5, by_position=True) is None
    assert contradiction([(response, looked_up)], [other], 0.5, by_position=True) is not None


@pytest.mark.parametrize(("margin", "contradicts"), [(0.4, False), (0.6, True)])
def test_a_round_in_which_a_head_was_unsure_says_nothing(margin: float, contradicts: bool) -> None:
    """It might have drafted another token; a margin of .5 is a near tie."""
    response = trajectory("r", 6)
    head = msgspec.structs.replace(lookup((2,) * 5, (2, 1, 0, 0, 0)), margin=[margin] + [9.0] * 4)
    other = rounds(1, 0, 0, 0, proposed=(2, 2, 2, 1))
    found = contradiction([(response, head)], [other], 0.5, by_position=True)
    assert (found is not None) is contradicts


def drawn(shift: float, requests: int = 12, seed: int = 0) -> str | None:
    """Decoding by the law that replay names, each probability shifted: 60 tokens a request."""
    generator, pairs, rows = np.random.default_rng(seed), [], []
    for name in (f"r{n}" for n in range(requests)):
        accept = generator.choice([0.2, 0.5, 0.9], 60)
        pairs.append((trajectory(name, 61, **SAMPLED), replay(accept, request=name, **DRAWN)))
        at, kept = 1, []
        while at < 61:
            tried = accept[at - 1 : at + 1] + shift
            fate = generator.random(len(tried)) < tried
            kept.append(len(tried) if fate.all() else int(fate.argmin()))
            at += kept[-1] + 1
        rows.append(rounds(*kept, request=name, digest="other", **DRAWN))
    fault = contradiction(pairs, rows, 0.5, by_position=True)
    return fault and fault.message


def test_drawn_drafts_are_compared_in_expectation_beyond_chance() -> None:
    assert [drawn(0.0, seed=seed) for seed in range(200)] == [None] * 200
    more, fewer = drawn(0.3), drawn(-0.3)
    assert more
    assert re.fullmatch(
        "decoding gave [23].% more tokens per round than replay, which is not chance", more
    )
    assert fewer
    assert "% fewer tokens per round than replay" in fewer


def contradicted() -> list[AnyObservation]:
    """Six requests whose replay accepts everything, and whose rounds accepted nothing."""
    records: list[AnyObservation] = []
    for name in (f"r{n}" for n in range(6)):
        records += [trajectory(name), replay(ALL, request=name)]
        records.append(rounds(*[0] * 8, request=name, proposed=(2,) * 6 + (1, 0)))
    return records


def test_a_contradicted_replay_does_not_count_and_what_was_decoded_does() -> None:
    along = candidate_rounds(run_of(manifest(ks=(1, 2, 3)), contradicted()), SMALL)
    assert (along.replays, along.reaches(2), along.reaches(3)) == ((), True, False)
    assert along.contradiction is not None
    assert along.contradiction.kind == "decoding contradicts replay"
    assert tokens_per_round(along.trajectories, along.at(2)).value == pytest.approx(1.0)


def test_acceptance_says_that_a_replay_is_contradicted() -> None:
    run = run_of(manifest(ks=(1, 2)), contradicted())
    (card,) = acceptance_report(run, [SMALL], (1, 2), 0.1).candidates
    said = card.faults[0].message
    assert said.startswith("decoding accepted differently from replay at 42 of 42")
    assert (card.counted, card.alpha and card.alpha.pooled and card.alpha.pooled.value) == (True, 0)


def test_rounds_in_which_prompt_lookup_found_nothing_accept_nothing() -> None:
    # Six rounds, three of which found two tokens, both right: a half of the first ones accepted.
    row = rounds(2, 0, 2, 0, 2, 0, proposed=(2, 0) * 3)
    row = msgspec.structs.replace(row, candidate=NGRAM)
    run = run_of(manifest(), [trajectory("r", 13), row])
    assert [*served_rounds(run, NGRAM).hazards] == [0.5, 1.0]


def test_without_contradiction_the_replay_counts() -> None:
    accept = [1.0, 1.0, 0.0] * 3
    run = run_of(manifest(), [trajectory("r", 10), replay(accept), rounds(2, 2, 2)])
    along = candidate_rounds(run, SMALL)
    assert along.contradiction is None
    law = PositionLaw(10, 10, np.array(accept), 9)
    assert along.at(2).target_passes == pytest.approx(expected_rounds([law], 2).target_passes)


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
