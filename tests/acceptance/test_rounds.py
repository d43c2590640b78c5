"""Expected rounds against every accept/reject outcome, against a running sampler, and by hand."""

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rounds_by_hand import assert_same, tally
from scenes import SMALL, decode, lookup, replay, trajectory

from draftbench.acceptance.rounds import MOST_READ, counted_rounds, expected_rounds, rounds_at_each
from draftbench.drafts.laws import HazardLaw, PositionLaw, StartLaw, law_of
from draftbench.drafts.stack.replay import combined
from draftbench.records import Candidate, Replay


def outcomes(law, k, start=1):
    """Every way the response can be decoded from `start`, with its probability."""
    if start >= law.length:
        yield 1.0, []
        return
    proposed = 0
    while proposed < k and start + proposed <= law.limit - 2 and start + proposed <= law.draftable:
        proposed += 1
    so_far = 1.0
    for accepted in range(proposed + 1):
        position = start + accepted
        over = position >= law.length
        last = over or accepted == proposed
        here = so_far if last else so_far * (1 - law.accept[position - 1])
        if here > 0:
            this = (proposed, accepted, proposed - accepted if over else 0)
            for probability, rest in outcomes(law, k, position + 1):
                yield here * probability, [this, *rest]
        if last:
            return
        so_far *= law.accept[position - 1]


probabilities = st.sampled_from([0.0, 1.0]) | st.floats(0, 1, allow_subnormal=False)


@st.composite
def position_laws(draw):
    length = draw(st.integers(1, 8))
    accept = draw(st.lists(probabilities, min_size=length - 1, max_size=length - 1))
    limit = length + draw(st.integers(0, 6))
    return PositionLaw(length, limit, np.array(accept), draw(st.integers(0, limit)))


@given(laws=st.lists(position_laws(), min_size=1, max_size=4), k=st.integers(1, 6))
@example(laws=[PositionLaw(8, 8, np.ones(7), 3)], k=2)
@example(laws=[PositionLaw(4, 20, np.ones(3), 19)], k=6)
def test_expected_rounds_equal_the_sum_over_all_outcomes(laws, k):
    expected = expected_rounds(laws, k)
    for row, law in enumerate(laws):
        total = 0.0
        wanted = {}
        for probability, rounds in outcomes(law, k):
            total += probability
            for name, value in tally(rounds, k, law.length - 1).items():
                wanted[name] = wanted.get(name, 0.0) + probability * value
        assert total == pytest.approx(1)
        assert_same(expected, row, wanted)


@st.composite
def start_laws(draw):
    length = draw(st.integers(1, 12))
    counts = st.lists(st.integers(0, 6), min_size=length - 1, max_size=length - 1)
    proposed = np.array(draw(counts), dtype=np.int64)
    matched = np.minimum(proposed, np.array(draw(counts), dtype=np.int64))
    return StartLaw(length, length + draw(st.integers(0, 4)), proposed, matched, window=6)


@given(laws=st.lists(start_laws(), min_size=1, max_size=4), k=st.integers(1, 6))
def test_prompt_lookup_rounds_equal_a_walk_along_the_response(laws, k):
    expected = expected_rounds(laws, k)
    for row, law in enumerate(laws):
        rounds, start = [], 1
        while start < law.length:
            proposed = max(0, min(k, int(law.proposed[start - 1]), law.limit - start - 1))
            inside = min(proposed, law.length - start)
            accepted = min(inside, int(law.matched[start - 1]))
            rounds.append((proposed, accepted, proposed - inside if accepted == inside else 0))
            start += accepted + 1
        assert_same(expected, row, tally(rounds, k, law.length - 1))


@st.composite
def stacks(draw):
    """Length and limit of a response, with a stack of a model or of a head along it."""
    length, window = draw(st.integers(1, 12)), 6
    limit = length + draw(st.integers(0, 4))

    def counts(most):
        numbers = st.lists(st.integers(0, most), min_size=length - 1, max_size=length - 1)
        return tuple(draw(numbers))

    def by_start(draft):
        proposed = counts(window)
        matched = tuple(map(min, proposed, counts(window)))
        record = lookup(proposed, matched, window)
        return msgspec.structs.replace(record, candidate=Candidate(draft=draft))

    is_head = draw(st.booleans())
    fallback = by_start("small")
    if not is_head:
        fallback = replay(counts(1), draftable=draw(st.integers(0, limit)))
    (found,) = combined([by_start("ngram"), fallback], ["small", "ngram+small"])
    return length, limit, found, is_head


NOTHING_FOUND = lookup((0,) * 8, (0,) * 8, 6)
(OF_A_MODEL,) = combined(
    [NOTHING_FOUND, replay((1, 0, 1, 1, 0, 0, 1, 0), draftable=9)], ["small", "ngram+small"]
)


@given(stacks(), st.integers(1, 6))
@example((9, 12, OF_A_MODEL, False), 2)
def test_a_stacks_rounds_equal_a_walk_with_the_cache_of_its_draft(stack, k):
    """The draft reads what its cache lacks; then the cache holds what it drafted but the last
    token, or of a head nothing of it, and keeps what was accepted.
    """
    length, limit, record, is_head = stack
    rounds, start, cached = [], 1, 0
    by_draft, reads = np.zeros(k + 1), np.zeros(MOST_READ)
    while start < length:
        room, part = min(k, limit - start - 1), record.drafting_at(start)
        if isinstance(part, Replay):
            proposed = max(0, min(room, part.draftable - start + 1))
            accepted = [*part.accept[start - 1 :], 0.0].index(0.0)
        else:
            proposed, accepted = min(room, part.proposed[start - 1]), part.matched[start - 1]
        inside = min(proposed, length - start)
        accepted = min(accepted, inside)
        rounds.append((proposed, accepted, proposed - inside if accepted == inside else 0))
        drafts = part is record.draft and proposed > 0
        by_draft[proposed if drafts else 0] += 1
        if drafts:
            reads[start - cached - 1] += 1
            cached = start + (0 if is_head else proposed - 1)
        start += accepted + 1
        cached = min(cached, start - 1)
    expected = expected_rounds([law_of(trajectory("r", length, limit=limit), record)], k)
    parts = {"by_draft": by_draft, "reads": reads}
    assert_same(expected, 0, tally(rounds, k, length - 1) | parts)


P = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.6, 0.1, 0.2], [0.3, 0.3, 0.3, 0.1]])
Q = np.array([[0.2, 0.5, 0.0, 0.3], [0.3, 0.3, 0.2, 0.2], [0.6, 0.0, 0.2, 0.2]])
END = 3


def speculate(rng, k, limit, greedy):
    """Speculative sampling as in Leviathan et al., algorithm 1: the response and its rounds."""
    response, rounds = [int(rng.integers(3))], 0
    while len(response) < limit and response[-1] != END:
        rounds += 1
        for _ in range(min(k, limit - len(response) - 1)):
            p, q = P[response[-1]], Q[response[-1]]
            q = np.eye(4)[q.argmax()] if greedy else q
            token = int(rng.choice(4, p=q))
            if rng.random() * q[token] >= p[token]:
                left = np.maximum(p - q, 0)
                response.append(int(rng.choice(4, p=left / left.sum())))
                break
            response.append(token)
            if token == END:
                break
        else:
            response.append(int(rng.choice(4, p=P[response[-1]])))
    return response, rounds


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_a_running_sampler_takes_the_expected_rounds_given_its_own_response(k, greedy):
    rng = np.random.default_rng([k, greedy])
    limit, laws, counted = 18, [], []
    for _ in range(400):
        response, rounds = speculate(rng, k, limit, greedy)
        before, token = np.array(response[:-1], dtype=int), np.array(response[1:], dtype=int)
        likely = (Q.argmax(1)[before] == token).astype(float)
        accept = likely if greedy else np.minimum(1, Q[before, token] / P[before, token])
        laws.append(PositionLaw(len(response), limit, accept, limit - 1))
        counted.append(rounds)
    expected = expected_rounds(laws, k)
    surplus = np.array(counted) - expected.target_passes
    if greedy:  # given the response nothing is left to chance
        assert not surplus.any()
    else:  # a sound sampler fails this with a probability of 2 in 100,000
        assert abs(surplus.mean()) < 4.3 * surplus.std() / np.sqrt(len(surplus))
        assert surplus.std() > 0


def test_many_responses_give_what_each_gives_alone():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 40, 300)
    laws = [PositionLaw(int(n), int(n) + 2, rng.random(n - 1), int(n) - 1) for n in lengths]
    together = expected_rounds(laws, 4)
    for row in range(0, 300, 7):
        alone = expected_rounds([laws[row]], 4)
        assert_same(together, row, {name: counts[0] for name, counts in alone.counts.items()})


def test_draft_lengths_asked_for_together_give_what_each_gives_alone():
    rng = np.random.default_rng(2)
    laws = [PositionLaw(int(n), int(n) + 3, rng.random(n - 1), 20) for n in range(1, 40)]
    for k, together in rounds_at_each(laws, (1, 3, 8)).items():
        alone = expected_rounds(laws, k)
        for name, counts in together.counts.items():
            assert counts.tolist() == alone.counts[name].tolist()


def test_beyond_what_was_looked_up_or_served_nothing_is_known():
    start = StartLaw(2, 2, np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64), window=3)
    with pytest.raises(ValueError, match="window"):
        expected_rounds([start], 4)
    with pytest.raises(ValueError, match="exceeds the hazards"):
        expected_rounds([HazardLaw(3, 64, np.array([0.5]))], 2)


def run(k, rounds):
    proposed, accepted, cut = zip(*rounds, strict=True)
    tokens, seconds = 1 + sum(accepted) + cut.count(0), (0.1,) * len(rounds)
    counts = {"proposed": proposed, "accepted": accepted, "cut": cut, "output_tokens": tokens}
    return decode(SMALL, k, 1.0, draft_seconds=seconds, verify_seconds=seconds, **counts)


def test_observed_rounds_are_counted_like_expected_ones():
    first = [(3, 3, 0), (2, 1, 0), (0, 0, 0), (3, 2, 1)]
    second = [(3, 0, 0), (1, 1, 0)]
    counted = counted_rounds([run(3, first), run(3, second)])
    assert_same(counted, 0, tally(first, 3, 9))
    assert_same(counted, 1, tally(second, 3, 3))
    assert counted.reached.tolist() == [[3, 3, 1], [2, 0, 0]]


@given(
    hazard=st.floats(0, 1),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    spare=st.integers(0, 3),
    k=st.integers(1, 6),
)
def test_one_hazard_at_every_draft_position_is_one_acceptance_everywhere(hazard, lengths, spare, k):
    everywhere = [
        PositionLaw(n, n + spare, np.full(max(n - 1, 0), hazard), n + 64) for n in lengths
    ]
    by_position = [HazardLaw(n, n + spare, np.full(k, hazard)) for n in lengths]
    one, other = expected_rounds(everywhere, k), expected_rounds(by_position, k)
    for name, counts in one.counts.items():
        np.testing.assert_allclose(counts, getattr(other, name), atol=1e-9)


def test_a_round_ends_where_its_own_hazard_ends_it():
    """Two tokens after the first: the first is accepted half the time, the second then always."""
    rounds = expected_rounds([HazardLaw(3, 64, np.array([0.5, 1.0]))], 2)
    assert rounds.with_draft[0] == pytest.approx(1 + 0.5)
