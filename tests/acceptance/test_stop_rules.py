"""Rounds that a rule stops, against a walk that drafts token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_by_hand import assert_same, tally
from scenes import SMALL, lookup, replay, trajectory

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.every_rule import every_rule
from draftbench.acceptance.rounds import MOST_READ
from draftbench.drafts.laws import drafted_along, drafted_from
from draftbench.drafts.stack.replay import StackReplay
from draftbench.drafts.stopping import STOP_RULES, THRESHOLDS, Watch, stops_at
from draftbench.records import Candidate, Confidences, DraftLength, LookupReplay, StopRule

K = 4
SURE = st.integers(0, 20).map(lambda twentieths: twentieths / 20)
RULES = st.builds(
    StopRule, kind=st.sampled_from([*STOP_RULES]), threshold=st.sampled_from(THRESHOLDS)
)


def pairs_of(size):
    return st.lists(st.tuples(SURE, SURE), min_size=size, max_size=size)


def recorded(runs):
    """Runs of (confidence among all, among ten) as a sweep keeps them: cut after a token at which
    every rule stops.
    """
    kept = []
    for run in runs:
        ends = [at for at, both in enumerate(run) if max(both) < THRESHOLDS[0]]
        kept.append(run[: ends[0] + 1] if ends else run)
    flat = [both for run in kept for both in run]
    return Confidences(
        lengths=tuple(map(len, kept)),
        of_all=tuple(a for a, _ in flat),
        of_ten=tuple(t for _, t in flat),
    )


@st.composite
def models(draw):
    """A response with a replay of a model, and its confidences from each start."""
    length = draw(st.integers(2, 9))
    limit = length + draw(st.integers(0, 4))
    draftable = draw(st.integers(0, length + 4))
    bits = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=length - 1, max_size=length - 1))
    bits = [bit if at < draftable else 0.0 for at, bit in enumerate(bits)]
    path = draw(pairs_of(length - 1))
    wrong = [at for at, bit in enumerate(bits, 1) if bit == 0 and at <= draftable]
    after = {at: draw(pairs_of(K - 1)) for at in [*wrong, length]}
    record = replay(
        bits,
        draftable=draftable,
        confidence=tuple(a for a, _ in path),
        confidence_of_ten=tuple(t for _, t in path),
        off_path=recorded([after[at] for at in [*wrong, length]]),
    )

    def drafts(start):
        """The confidence of every token that a round from here may draft, and how many match."""
        run, at = [], start
        while at < length and bits[at - 1]:
            run.append(path[at - 1])
            at += 1
        matched = len(run)
        if at < length:
            run.append(path[at - 1])
        run += after.get(at, [])
        return run[: max(0, min(K, draftable + 1 - start))], matched

    return trajectory("r", length, limit=limit), record, drafts, False


@st.composite
def heads(draw):
    length = draw(st.integers(2, 9))
    limit = length + draw(st.integers(0, 4))
    runs = {start: draw(pairs_of(K)) for start in range(1, length)}
    matched = {start: draw(st.integers(0, min(K, length - start))) for start in runs}
    record = LookupReplay(
        request="r",
        sample=0,
        candidate=SMALL,
        window=K,
        proposed=(K,) * (length - 1),
        matched=tuple(matched.values()),
        confidences=recorded(runs.values()),
    )
    response = trajectory("r", length, limit=limit)
    return response, record, lambda start: (runs[start], matched[start]), True


@st.composite
def stacks(draw):
    response, record, drafts, is_head = draw(st.one_of(models(), heads()))
    length = response.output_tokens
    found = draw(st.lists(st.integers(0, K), min_size=length - 1, max_size=length - 1))
    copied = tuple(draw(st.integers(0, min(n, length - 1 - at))) for at, n in enumerate(found))
    looked_up = lookup(tuple(found), copied, K)
    stack = StackReplay(
        request="r", sample=0, candidate=Candidate(draft="ngram+s"), lookup=looked_up, draft=record
    )
    return response, stack, drafts, is_head


@given(st.one_of(models(), heads(), stacks()), st.integers(1, K), RULES)
def test_rounds_equal_a_walk_that_watches_every_token(drawn, k, rule):
    response, record, drafts, is_head = drawn
    length, rounds, start, read = response.output_tokens, [], 1, 0
    by_draft, reads, drafted_in = np.zeros(k + 1), np.zeros(MOST_READ), []
    while start < length:
        room, watch = min(k, response.limit - start - 1), Watch(rule)
        found = record.lookup.proposed[start - 1] if isinstance(record, StackReplay) else 0
        drafted = proposed = 0
        if found:
            proposed, matched = min(found, room), record.lookup.matched[start - 1]
        else:
            run, matched = drafts(start)
            for both in run[: max(room, 0)]:
                drafted += 1
                last = watch.stops(both[watch.kind.among == "ten"])
                proposed += not last or STOP_RULES[rule.kind].proposes_last
                if last:
                    break
        inside = min(proposed, length - start)
        accepted = min(matched, inside)
        rounds.append((proposed, accepted, proposed - inside if accepted == inside else 0))
        by_draft[drafted] += 1
        drafted_in.append(drafted)
        if drafted:
            reads[start - read - 1] += 1
            read = start + (0 if is_head else min(accepted, drafted - 1))
        start += accepted + 1
    rounds_of = CandidateRounds.of(((response, record),), (k, K))
    counted = tally(rounds, k, length - 1) | {"by_draft": by_draft, "reads": reads}
    assert rounds_of.knows(k, rule)
    assert_same(rounds_of.at(k, rule), 0, counted)

    lengths = [DraftLength(k, rule), DraftLength(k)]
    every = every_rule([response], rounds_of.drafted_of, np.ones(1), np.zeros(1, int), lengths)
    often = np.bincount([proposed for proposed, *_ in rounds], minlength=k + 1)
    assert every.proposed[0, 0].tolist() == often.tolist()
    assert every.drafted[0, 0].tolist() == by_draft.tolist()
    at_k = rounds_of.at(k)
    np.testing.assert_allclose(every.proposed[1, 0], at_k.by_draft_length[0], atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "threshold", "place"),
    # .9, .72, .36: alone the third is below .6, their product at the third.
    [
        ("after", 0.6, 2),
        ("before", 0.6, 2),
        ("product", 0.6, 2),
        ("product", 0.8, 1),
        ("after", 0.1, 3),
    ],
)
def test_where_a_rule_stops_by_hand(kind, threshold, place):
    rule, run = StopRule(kind=kind, threshold=threshold), np.array([0.9, 0.8, 0.5])
    assert stops_at(rule, run, np.zeros(1, int), 3).tolist() == [place]


def test_without_recorded_confidences_no_rule_can_be_followed():
    response, record = trajectory("r", 3), replay((1.0, 0.0))
    rounds = CandidateRounds.of(((response, record),), (1, 2))
    assert not rounds.knows(2, StopRule(kind="after", threshold=0.5))


@given(st.one_of(*(st.lists(kind(), min_size=2, max_size=4) for kind in (models, heads))))
def test_responses_side_by_side_draft_what_each_drafts_alone(several):
    pairs = [(response, record) for response, record, *_ in several]
    together, alone = drafted_along(pairs, K), [drafted_from(*pair, K) for pair in pairs]
    for name in ("most", "matched"):
        each = np.concatenate([getattr(one, name) for one in alone])
        np.testing.assert_array_equal(getattr(together, name), each, err_msg=name)
    for kind in STOP_RULES:
        rule = StopRule(kind=kind, threshold=0.5)
        each = np.concatenate([np.minimum(one.stops_at(rule), one.most) for one in alone])
        stops = np.minimum(together.stops_at(rule), together.most)
        np.testing.assert_array_equal(stops, each, err_msg=kind)
