"""Suffix decoding along responses: what it remembers before each, and what its replay records."""

import pytest

from draftbench.drafts.laws import law_of
from draftbench.drafts.suffix.draft import SuffixDraft
from draftbench.drafts.suffix.memory import Memory, Remembered
from draftbench.drafts.suffix.rule import BUILT_IN_SUFFIX
from draftbench.drafts.suffix.tree import Place, best_of
from draftbench.records import Candidate

SUFFIX = Candidate(draft="suffix")


def follows(memory, key, token):
    """What the memory before a response says of what follows a token."""
    place = Place(memory.before(key))
    place.follow([0, token])
    return list(best_of([place], [4])[0])


LOG = [
    Remembered(("a", 0), 0, (1, 10)),
    Remembered(("a", 1), 0, (1, 11)),
    Remembered(("b", 0), 1, (2, 12)),
    Remembered(("b", 1), 1, (2, 13)),
    Remembered(("c", 0), 0, (3, 14)),
    Remembered(("c", 1), 0, (3, 15)),
    Remembered(("d", 0), 1, (4, 16)),
]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("a", 0), {1: [], 2: [], 3: []}),
        (("b", 0), {1: [10], 2: [], 3: []}),
        # It is of the first wave, and b of the second.
        (("c", 0), {1: [10], 2: [], 3: []}),
        (("c", 1), {1: [11], 2: [], 3: []}),
        (("d", 0), {1: [10], 2: [12], 3: [14]}),
    ],
)
@pytest.mark.parametrize("first", [("a", 0), ("d", 0)])  # before or after it in the log
def test_before_a_response_come_those_to_earlier_requests_of_its_sample_and_no_later_wave(
    key, expected, first
):
    memory = Memory(BUILT_IN_SUFFIX, LOG)
    memory.before(first)
    assert {token: follows(memory, key, token) for token in expected} == expected


def test_a_replay_records_what_each_start_proposes_and_matches(make):
    """Prompt 1 2 3 4, response 1 2 3 9: after 1 follows 2, after `1 2` follow 3 and 4, after
    `1 2 3` follow 4, 1 and 2. Each of these scores 1/2 a token, and the text's end is the other
    half.
    """
    response = make.unscored((1, 2, 3, 9), prompt=(1, 2, 3, 4))
    (record,) = SuffixDraft("cpu", None).replay(SUFFIX, [response], 4)
    assert record.proposed == (1, 2, 3)
    assert record.matched == (1, 1, 0)
    assert record.window == 4
    assert record.blocks == ()


def test_a_replay_records_rounds_of_each_length_where_they_propose_something_else(make):
    """As in `test_fewer_tokens_may_be_other_tokens`: after `1 2` one token is 5, two are 3 4."""
    prompt = (*(0, 2, 5) * 8, 1, 2, 3, 4, 1, 2, 3, 4)
    response = make.unscored((1, 2, 3, 4), prompt=prompt)
    (record,) = SuffixDraft("cpu", None).replay(SUFFIX, [response], 4)
    assert (record.proposed[1], record.matched[1], len(record.blocks)) == (4, 2, 1)
    short, long = record.of_length(1), record.of_length(2)
    assert (short.proposed[1], short.matched[1]) == (1, 0)
    assert (long.proposed[1], long.matched[1]) == (4, 2)
    law = law_of(response.trajectory, record)
    assert [tuple(each[1] for each in law.at(k)) for k in (1, 2, 3)] == [(1, 0), (4, 2), (4, 2)]


def test_memory_proposes_what_the_prompt_does_not_have(make):
    """An earlier response wrote 5 6 7 8 9. After 5 6, which the response has now too, 7 and 8
    follow in one of two cases.
    """
    response = make.unscored((5, 6, 7), prompt=(1, 2))
    log = [Remembered(("first", 0), 0, (5, 6, 7, 8, 9))]
    log.append(Remembered(response.key, 0, response.tokens))
    (record,) = SuffixDraft("cpu", log).replay(SUFFIX, [response], 4)
    assert (record.proposed, record.matched) == ((1, 2), (1, 1))
    (alone,) = SuffixDraft("cpu", None).replay(SUFFIX, [response], 4)
    assert alone.proposed == (0, 0)
