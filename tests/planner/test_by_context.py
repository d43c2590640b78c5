"""What a draft brings by the length of the context, by hand."""

import pytest
from scenes import ALL, NONE, SMALL, says

from draftbench.planner.recommend import recommend
from draftbench.records import LongerPrompts
from draftbench.report.answer import by_context, contexts

# A target step takes a second, with a context of 16,000 tokens two; a draft step a tenth.
SHORT, LONG = (0, 1000), (16_000, 20_000)


@pytest.fixture
def two_ranges(scene):
    """Five short prompts, whose every token is accepted, and five long ones without a hit."""
    for at in range(10):
        accept, tokens = (ALL, 100) if at < 5 else (NONE, 16_000)
        scene.request(f"r{at}", prompt_tokens=tokens)
        scene.replay(f"r{at}", accept)
    for where, step in ((SHORT, 1.0), (LONG, 2.0)):
        scene.cost(None, SMALL, 1, step, where)
        scene.cost(None, SMALL, 2, step * step, where)
        for tokens in (1, 2):
            scene.cost(SMALL.draft, SMALL, tokens, 0.1, where)
    return scene


def test_each_range_of_contexts_has_its_own_acceptance_costs_and_speed_up(two_ranges):
    found = recommend(two_ranges.observed(1))
    short, long = found.by_context
    assert (short.contexts, short.requests, short.mean) == ("up to 1k", 5, 104.5)
    assert (long.contexts, long.requests, long.mean) == ("8k to 32k", 5, 16_004.5)
    # Eight tokens after the first in four rounds of two, or in eight of one.
    assert (short.tokens_per_round, long.tokens_per_round) == (2.0, 1.0)
    assert short.draft_cost_ratio.value == pytest.approx(0.1)
    assert long.draft_cost_ratio.value == pytest.approx(0.05)
    assert (short.verify_ratio.value, long.verify_ratio.value) == pytest.approx((1.0, 2.0))
    # 8 s of steps against 4 rounds of 1.1 s; 16 s against 7 rounds of 4.1 s and, since the limit
    # leaves no room to draft for the last token, a step of 2 s.
    assert short.speedup_predicted.value == pytest.approx(8 / 4.4)
    assert long.speedup_predicted.value == pytest.approx(16 / (7 * 4.1 + 2))
    assert contexts(found) == (
        "By tokens of context, predicted: 1.82× (up to 1k), 0.52× (8k to 32k)."
    )
    assert [row[0] for row in by_context(found).rows] == ["up to 1k", "8k to 32k"]


def test_an_answer_says_for_which_contexts_it_holds(scene):
    scene.timed(5)
    found = recommend(scene.observed(1))
    assert (contexts(found), [*by_context(found).rows]) == (None, [])
    # Ten tokens of prompt and nine of response.
    assert any("longest request has 19 tokens" in check for check in found.checks)


@pytest.mark.parametrize(("share", "said"), [(0.01, True), (0.009, False)])
def test_prompts_that_are_far_longer_than_those_drawn_are_a_caveat(scene, share, said):
    scene.timed(5)
    longer = LongerPrompts(drawn=4000, longest=90_000, share=share)
    found = recommend(scene.observed(1, longer=longer))
    assert says(found, "1% of the traffic", "90,000 characters against 4,000") is said
