"""Each fault is suspected where it is planted, and nowhere in a healthy run; a replay is
contradicted by decoding that accepts differently, and not by near ties or chance.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from scenes import (
    ALL,
    NONE,
    SMALL,
    decode,
    facts,
    lookup,
    manifest,
    replay,
    replayed,
    served,
    trajectory,
)

from draftbench.acceptance.breakdown import RISING, TEMPLATE
from draftbench.acceptance.candidate_rounds import candidate_rounds, served_rounds
from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.faults import contradiction, suspected_faults, template_may_differ
from draftbench.acceptance.rounds import expected_rounds
from draftbench.acceptance.summary import acceptance_report
from draftbench.drafts.laws import PositionLaw, StartLaw
from draftbench.drafts.stack.replay import combined
from draftbench.records import Candidate, DraftingMode, Replay, Sampling, Trajectory
from draftbench.run_folder.run import run_of

NGRAM = Candidate(draft="ngram")
SAMPLED = {"sampling": Sampling(temperature=1.0)}
DRAWN = {"mode": DraftingMode.SAMPLED}


def rounds(*accepted, k=2, request="r", **changes):
    """A run whose rounds accepted so much of k; the last one emits nothing more than that."""
    every = tuple(accepted)
    none = (0,) * len(every)
    proposed = (*(k,) * (len(every) - 1), every[-1])
    fields = {"proposed": proposed, "accepted": every, "cut": none}
    fields |= {"draft_seconds": none, "verify_seconds": none, "request": request}
    fields |= {"output_tokens": 1 + sum(every) + len(every)}
    return decode(SMALL, k, 1.0, **fields | changes)


def found(accept, *rows, rounded=False, temperature=0.0, **changes):
    """What is said of a replay that accepts so; near ties are margins up to .5."""
    sampling = Sampling(temperature=temperature)
    pair = trajectory("r", len(accept) + 1, sampling=sampling), replay(accept, **changes)
    fault = contradiction([pair], rows, 0.5, by_position=True, rounded=rounded)
    return fault and fault.message


SAID = "decoding accepted differently from replay at {} of {} positions, near ties not counted"
TWICE, TIED = [1.0, 1.0, 0.0] * 3, {"margin": (0.4, *[5.0] * 7)}
LEFT = rounds(2, 0, 0, 0, 0, 0)
WRONG = 0, 0, 2, 2
TWO_WRONG = rounds(*WRONG)


@pytest.mark.parametrize(
    ("accept", "rows", "changes", "said"),
    [
        # Two accepted, one rejected, and again, at any k.
        (TWICE, [rounds(2, 2, 2), rounds(1, 0, 1, 0, 1, 0, k=1)], {}, None),
        # Of positions 1 … 8 those after the first rejected one of each round are not tried.
        (ALL, [TWO_WRONG], {}, SAID.format(2, 6)),
        (NONE, [rounds(2, 2, 1)], {}, SAID.format(5, 5)),
        # The same position at two k's is one.
        (ALL, [TWO_WRONG, rounds(0, 0, 1, 1, 1, k=1)], {}, SAID.format(2, 7)),
        (ALL, [TWO_WRONG], TIED, None),
        # At temperature 0 a draft that would be drawn is greedy, too.
        (ALL, [TWO_WRONG], DRAWN, SAID.format(2, 6)),
        (ALL, [TWO_WRONG], {"temperature": 1.0}, SAID.format(2, 6)),
        (ALL, [TWO_WRONG], DRAWN | {"temperature": 1.0}, None),
        # How far another text equals the response must be known.
        (ALL, [rounds(*WRONG, digest="other")], {}, None),
        (ALL, [rounds(*WRONG, digest="other", first_difference=9)], {}, SAID.format(2, 6)),
        # A text is compared up to where it differs from the response.
        (ALL, [LEFT], {}, SAID.format(4, 6)),
        (ALL, [msgspec.structs.replace(LEFT, first_difference=4, tie=True)], {}, None),
        (ALL, [rounds(*WRONG, first_difference=0, tie=True)], {}, None),
        # One in 2,000 may differ, and by chance more: 2(n ln(n/s) - n + s) is at most 3.5², for s
        # = 600 / 2000 9.9 of 3 and 13.3 of 4.
        ([1.0] * 1200, [rounds(*[0] * 3, *[1] * 597, k=1)], {}, None),
        ([1.0] * 1200, [rounds(*[0] * 4, *[1] * 596, k=1)], {}, SAID.format(4, 600)),
        ([1.0] * 9, [rounds(0, 2, 2, 0)], {}, None),  # and 1 of 5 may be that one
        # Of 2,000 that is 5, but .5% of them move no speed-up.
        ([1.0] * 4000, [rounds(*[0] * 8, *[1] * 1992, k=1)], {}, None),
        ([1.0] * 4000, [rounds(*[0] * 11, *[1] * 1989, k=1)], {}, SAID.format(11, 2000)),
    ],
)
def test_decoding_that_accepts_other_tokens_contradicts_the_replay(accept, rows, changes, said):
    assert found(accept, *rows, **changes) == said


def test_of_a_quantized_draft_differences_to_one_side_alone_contradict():
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


@pytest.mark.parametrize(
    ("own", "contradicts"),
    # After a near tie another text has its own luck.
    [({"first_difference": 1}, True), ({"first_difference": 1, "tie": True}, False)],
)
def test_where_other_texts_hide_positions_rounds_are_compared_in_expectation(own, contradicts):
    names = [f"r{n}" for n in range(8)]
    pairs = [(trajectory(name, 9), replay(ALL, request=name)) for name in names]
    kept = (0,) * 8, (1, 0, 0, 0, 0, 0, 0)
    rows = [rounds(*kept[n % 2], request=name, **own) for n, name in enumerate(names)]
    fault = contradiction(pairs, rows, 0.5, by_position=True)
    said = fault is not None and "fewer tokens per round than replay" in fault.message
    assert said is contradicts


@pytest.mark.parametrize(
    ("fewer", "more", "contradicts"),
    # 13 of 13 are 3.6 standard errors, of 19 and 3 to the other side 3.4, of 20 and 3 3.54.
    [(12, 0, False), (13, 0, True), (0, 13, True), (19, 3, False), (20, 3, True), (15, 15, False)],
)
def test_near_ties_that_all_fall_to_one_side_contradict(fewer, more, contradicts):
    """Known fault: near ties were left out, so a replay that took them all for accepted stood."""
    kept = [0] * fewer + [1] * more + [1] * 60
    accept, margin = [], []
    for at, accepted in enumerate(kept):
        tied = at < fewer + more
        accept += [1.0 if at < fewer or at >= fewer + more else 0.0, 1.0][: accepted + 1]
        margin += [0.1 if tied else 5.0, 5.0][: accepted + 1]
    row = rounds(*kept, k=1)
    fault = found(accept, row, margin=tuple(margin))
    assert (fault is not None) is contradicts
    assert not fault or f"rejected {fewer} that it accepts" in fault


@pytest.mark.parametrize(("window", "contradicts"), [(2, True), (1, False)])
def test_rounds_that_drafted_further_than_was_looked_up_are_not_compared(window, contradicts):
    """An engine that looks up in its own way accepted all of two tokens; the replay none."""
    names, found = [f"r{n}" for n in range(8)], ((window,) * 8, (0,) * 8, window)
    pairs = [(trajectory(name, 9), lookup(*found, name)) for name in names]
    rows = [rounds(2, 2, 1, request=name) for name in names]
    fault = contradiction(pairs, rows, 0.5, by_position=False)
    assert (fault is not None) is contradicts


@pytest.mark.parametrize(
    ("k", "accepted", "margin", "contradicts"),
    [
        (2, (2, 0, 0), (), False),
        (2, (1, 0, 0), (), True),
        (1, (1, 0, 0, 0), (), False),  # there was no room for the second
        # A head that was unsure might have drafted another token; a margin of .5 is a near tie.
        (2, (1, 0, 0), [0.4] + [9.0] * 4, False),
        (2, (1, 0, 0), [0.6] + [9.0] * 4, True),
    ],
)
def test_prompt_lookup_and_heads_are_compared_by_the_starts_of_rounds(
    k, accepted, margin, contradicts
):
    """From the start it finds two tokens and both are right; then nothing."""
    looked_up = lookup((2, 2, 2, 0, 0), (2, 1, 0, 0, 0))
    looked_up = msgspec.structs.replace(looked_up, margin=margin)
    row = rounds(*accepted, k=k, proposed=(k, *(0,) * (len(accepted) - 1)))
    assert contradicts is of_two_requests(looked_up, row)


@pytest.mark.parametrize(
    ("row", "contradicts"),
    [(rounds(2, 1), False), (rounds(2, 0, 0, proposed=(2, 1, 0)), True)],
)
def test_each_part_of_a_stack_is_compared_where_it_drafts(row, contradicts):
    """Lookup finds two tokens from the start, both right; the draft is right from the fourth on."""
    parts = lookup((2, 0, 0, 0, 0), (2, 0, 0, 0, 0)), replay([0.0, 0.0, 0.0, 1.0, 1.0])
    (stack,) = combined(parts, ["small", "ngram+small"])
    assert contradicts is of_two_requests(stack, row)


def of_two_requests(replayed, row):
    """Whether two requests that are decoded like this contradict it."""
    pairs, rows = [], []
    for name in ("r", "s"):
        pairs.append((trajectory(name, 6), msgspec.structs.replace(replayed, request=name)))
        rows.append(msgspec.structs.replace(row, request=name, digest=pairs[-1][0].digest))
    return contradiction(pairs, rows, 0.5, by_position=True) is not None


def drawn(shift, requests=12, seed=0):
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


@pytest.mark.parametrize(
    ("proposed", "said"),
    [
        # Where all is rejected, shorter blocks give the same tokens a round.
        ((3, 3, 3, 3, 3, 2, 1, 0), None),
        # 13 of 18.
        ((2, 2, 2, 2, 2, 2, 1, 0), "decoding proposed 28% fewer tokens per round than replay"),
        # Some engines go on proposing at the end, and some do not say what they proposed.
        ((3,) * 8, None),
        ((0,) * 8, None),
    ],
)
def test_rounds_that_propose_fewer_tokens_than_replay_contradict_it(proposed, said):
    names = [f"r{n}" for n in range(8)]
    pairs = [(trajectory(name, 9), replay(NONE, request=name)) for name in names]
    rows = [rounds(*[0] * 8, k=3, request=name, proposed=proposed) for name in names]
    fault = contradiction(pairs, rows, 0.5, by_position=False)
    assert (fault and fault.message) == (said and f"{said}, which is not chance")


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        # Fewer tokens at two places, more at one: on average the same, but not of sums alone.
        ({"by_round": ((2, 0), (2, 0), (2, 2), (2, 2))}, SAID.format(2, 6)),
        ({"rounds": 4, "drafted": 8, "accepted": 4}, None),
    ],
)
def test_an_engine_that_tells_every_round_is_compared_by_position(counts, said):
    answer = served(SMALL, 2, *[0.1 * n for n in range(9)], **counts)
    records = [trajectory("r", 9), replay(ALL), answer]
    fault = candidate_rounds(run_of(manifest(engine="vllm"), records), SMALL).contradiction
    assert (fault and fault.message) == said


def test_drawn_drafts_are_compared_in_expectation_beyond_chance():
    assert [drawn(0.0, seed=seed) for seed in range(200)] == [None] * 200
    more, fewer = drawn(0.3), drawn(-0.3)
    assert more
    assert re.fullmatch(
        "decoding gave [23].% more tokens per round than replay, which is not chance", more
    )
    assert fewer
    assert "% fewer tokens per round than replay" in fewer


@pytest.fixture
def contradicted():
    """Six requests whose replay accepts everything, and whose rounds accepted nothing."""
    records = []
    for name in (f"r{n}" for n in range(6)):
        records += [trajectory(name), replay(ALL, request=name)]
        records.append(rounds(*[0] * 8, request=name, proposed=(2,) * 6 + (1, 0)))
    return run_of(manifest(ks=(1, 2, 3)), records)


def test_a_contradicted_replay_does_not_count_and_what_was_decoded_does(contradicted):
    along = candidate_rounds(contradicted, SMALL)
    assert (along.replays, along.reaches(2), along.reaches(3)) == ((), True, False)
    assert along.contradiction.kind == "decoding contradicts replay"
    assert tokens_per_round(along.trajectories, along.at(2)).value == pytest.approx(1.0)
    (card,) = acceptance_report(contradicted, [SMALL], (1, 2), 0.1).candidates
    assert card.faults[0].message.startswith(SAID.format(42, 42)[:60])
    assert (card.counted, card.alpha.pooled.value) == (True, 0)


def test_rounds_in_which_prompt_lookup_found_nothing_accept_nothing():
    # Six rounds, three of which found two tokens, both right: a half of the first ones accepted.
    row = rounds(2, 0, 2, 0, 2, 0, proposed=(2, 0) * 3)
    row = msgspec.structs.replace(row, candidate=NGRAM)
    run = run_of(manifest(), [trajectory("r", 13), row])
    assert [*served_rounds(run, NGRAM).hazards] == [0.5, 1.0]


def test_without_contradiction_the_replay_counts():
    run = run_of(manifest(), [trajectory("r", 10), replay(TWICE), rounds(2, 2, 2)])
    along = candidate_rounds(run, SMALL)
    assert along.contradiction is None
    law = PositionLaw(10, 10, np.array(TWICE), 9)
    assert along.at(2).target_passes == pytest.approx(expected_rounds([law], 2).target_passes)


SELF = Candidate(draft="self")
Pairs = Sequence[tuple[Trajectory, Replay]]


def faults_of(candidate, pairs, *rounds):
    return list(suspected_faults(candidate, pairs, rounds, near_tie=0.1))


def whats(candidate, pairs, *rounds):
    return [fault.kind for fault in faults_of(candidate, pairs, *rounds)]


def rounds_of(accept, k):
    length = len(accept) + 1
    return expected_rounds([PositionLaw(length, length, np.array(accept), length - 1)], k)


def test_a_healthy_pair_raises_no_suspicion():
    accept = [1.0, 1.0, 0.0, 1.0] * 50
    rounds = [rounds_of(accept, k) for k in (1, 2)]
    assert whats(SMALL, [replayed(accept)], *rounds) == []


def test_zero_acceptance_is_one_suspicion_and_needs_enough_tokens_that_the_draft_can_reach():
    none = [0.0] * 60
    (fault,) = faults_of(SMALL, [replayed(none)], rounds_of(none, 3))
    assert fault.message == "not one token in 60 positions was accepted"
    assert whats(SMALL, [replayed(none[:10])], rounds_of(none[:10], 3)) == []
    assert whats(SMALL, [replayed(none, draftable=20)]) == []
    # Though the replay was fine, no round accepted a token.
    assert whats(SMALL, [replayed([1.0] * 60)], rounds_of(none, 3)) == ["one token per round"]


@pytest.mark.parametrize(
    ("accept", "message"),
    [
        # 40 rounds of four and one token, and a last token that the limit leaves no room to draft.
        ([1.0] * 201, "100.0% of 160 drafted tokens were accepted at k = 4"),
        # 100 rounds, one that is rejected, 100 rounds: 800 of 804.
        ([1.0] * 500 + [0.0] + [1.0] * 500, "99.5% of 804 drafted tokens were accepted at k = 4"),
        # 20 rounds, one that is rejected, 20 rounds: 160 of 164 is 97.6%.
        ([1.0] * 100 + [0.0] + [1.0] * 100, None),
        ([1.0] * 41, None),  # 32 tokens prove nothing
    ],
)
def test_a_draft_that_is_right_too_often_is_suspected_and_the_control_is_not(accept, message):
    rounds = rounds_of(accept, 4)
    faults = [(fault.kind, fault.message) for fault in faults_of(SMALL, [], rounds)]
    assert faults == ([] if message is None else [("nearly all accepted", message)])
    assert whats(SELF, [], rounds) == []


@pytest.mark.parametrize("by_round", [True, False])
def test_acceptance_near_zero_at_the_first_position_is_suspected(by_round):
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


def test_prompt_lookup_that_finds_nothing_is_no_fault():
    nothing = np.zeros(99, dtype=np.int64)
    rounds = expected_rounds([StartLaw(100, 100, nothing, nothing, 3)], 3)
    assert whats(Candidate(draft="ngram"), [], rounds) == []


def test_a_draft_position_that_never_accepts_after_healthy_ones_is_suspected():
    # Two tokens right, then one wrong: with k = 4 the third of each round is always rejected,
    # in 39 of 40 rounds: the limit leaves no room to draft the very last position.
    rounds = rounds_of([1.0, 1.0, 0.0] * 40, 4)
    (fault,) = faults_of(SMALL, [], rounds, rounds_of([1.0, 1.0, 0.0] * 40, 3))
    assert fault.kind == "hazard falls to zero"
    assert fault.message == (
        "draft position 3 was never accepted in 39 tries at k = 4; "
        "the positions before it accept 1.00, 1.00 of the time"
    )
    assert whats(SMALL, [], rounds_of([1.0, 1.0, 0.0] * 15, 4)) == []  # 14 tries prove nothing


@pytest.mark.parametrize(
    ("changes", "accept", "suspected"),
    [
        ({}, 1.0, False),
        ({}, 0.0, True),
        ({"margins": (5.0, 5.0, 0.01)}, 0.0, False),  # the target's near tie
        ({"margin": (5.0, 0.02)}, 0.0, False),  # the replay's
        ({"argmax": (1, 1, 0)}, 0.0, False),  # a log holds another token than the target's best
        ({"sampling": Sampling(temperature=1.0)}, 0.0, False),
        ({"draftable": 1}, 0.0, False),  # the limit leaves no room to draft it
    ],
)
def test_the_target_must_accept_its_own_greedy_draft(changes, accept, suspected):
    pairs = [replayed([1.0, accept], candidate=SELF, **changes)]
    assert whats(SELF, pairs) == (["control failed"] if suspected else [])
    assert whats(SMALL, pairs) == []


def run(chats, target="a", draft="b"):
    """Of so many chats, with the hashes of the chat templates of target and draft."""
    parts = [
        {} if template is None else {"chat template": template} for template in (target, draft)
    ]
    models = [facts(model, parts=part) for model, part in zip((None, SMALL), parts, strict=True)]
    return run_of(manifest(chats=chats), models)


@pytest.mark.parametrize(
    ("chats", "differs"),
    [(0, False), (1, True), (None, True)],  # None: an older run, which did not count them
)
def test_plain_prompts_have_no_template(chats, differs):
    assert template_may_differ(run(chats), SMALL) == differs


def test_one_template_of_both_is_none_to_suspect():
    assert not template_may_differ(run(1, "a", "a"), SMALL)
    assert not template_may_differ(run(1), SELF)
    # Unknown.
    assert template_may_differ(run(1, None, None), SMALL)


@pytest.mark.parametrize(("count", "suspected"), [(0, False), (1, True)])
def test_low_acceptance_early_in_responses_blames_a_template_only_of_chats(count, suspected):
    early = [replayed([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], name) for name in "abcde"]
    chats = run(count)
    seen = run_of(chats.manifest, [*chats.facts, *(record for pair in early for record in pair)])
    (card,) = acceptance_report(seen, [SMALL], (1,), 0.02).candidates
    assert card.breakdown is not None
    assert card.breakdown.reading == (f"{RISING}: {TEMPLATE}" if suspected else RISING)
