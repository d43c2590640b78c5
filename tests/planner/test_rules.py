"""Each rule of thumb speaks where a run supports it and is silent where the run contradicts it.

An answer is a real one with a few figures replaced, so that a test states what its rule looks at.
"""

import msgspec
import pytest
from scenes import ALL

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.rules import rules_of_thumb
from draftbench.records import Candidate


def near(value, half=0.01):
    return Estimate(value, value - half, value + half)


PAYS = {"speedup_expected": near(1.5)}


@pytest.fixture
def rules(scene):
    """The rules that fit a draft of 1.2 B for a target of 70 B, which does not pay."""

    def fitting(
        names=("t", "small"),
        sizes=(70e9, 1.2e9),
        decision="do_not_speculate",
        more=(),
        concurrency=(1,),
        asked=None,
        **figures,
    ):
        draft = Candidate(draft=names[1])
        scene.requests(2, ALL, draft)
        scene.facts(None, parameters=int(sizes[0]))
        scene.facts(draft.draft, parameters=int(sizes[1]))
        for concurrency in concurrency:
            scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1}, draft, concurrency=concurrency)
        run = scene.observed(1, concurrency=concurrency, target=names[0])
        base = recommend(run, DecisionOptions(concurrency=asked or concurrency))
        usual = {
            "alpha": near(0.78),
            "draft_cost_ratio": near(0.05, 0.0),
            "verify_ratio": near(1.0, 0.0),
            "speedup_expected": near(0.9),
        }
        one = base.evaluations[0]
        changed = tuple(msgspec.structs.replace(one, **usual | each) for each in (figures, *more))
        answer = msgspec.structs.replace(base, decision=decision, evaluations=changed)
        return {one.rule: one.sentence for one in rules_of_thumb(answer, run)}

    return fitting


@pytest.mark.parametrize(
    ("rule", "changes", "words"),
    [
        ("size-ratio", {"sizes": (70e9, 35e9)}, "50.0% of the target's parameters"),
        ("low-alpha", {"alpha": near(0.4)}, "below 65%"),
        (
            "same-family",
            {"names": ("qwen2.5-7b", "qwen2.5-0.5b"), "alpha": near(0.5)},
            "suspect its template or its files",
        ),
        (
            "same-family",
            {"names": ("qwen2.5-7b", "llama-3.2-1b"), "alpha": near(0.5)},
            "40% to 60% is usual for another family",
        ),
    ],
)
def test_a_warning_is_given_unless_the_draft_pays(rules, scene, rule, changes, words):
    assert words in rules(**changes)[rule]
    scene.records.clear()
    assert rule not in rules(**changes | PAYS)


def test_kin_that_agrees_as_expected_is_not_suspected(rules):
    assert "same-family" not in rules(names=("qwen2.5-7b", "qwen2.5-0.5b"), alpha=near(0.8))


def test_a_name_that_tells_no_family_says_nothing_of_kinship(rules):
    assert "same-family" not in rules(alpha=near(0.3))


@pytest.mark.parametrize(("alpha", "fits"), [(0.95, True), (0.85, False)])
def test_much_acceptance_without_speed_is_said(rules, alpha, fits):
    assert ("high-alpha-without-speed" in rules(alpha=near(alpha))) == fits


def test_much_acceptance_without_speed_is_said_of_any_draft_shown(rules, scene):
    slow = {"draft": "big", "alpha": near(0.95), "speedup_expected": near(0.8)}
    assert "big is 95% and its speed-up 0.80×" in rules(more=(slow,))["high-alpha-without-speed"]
    scene.records.clear()
    assert "high-alpha-without-speed" not in rules(more=(slow,), **PAYS)


def test_a_draft_that_pays_is_not_called_too_slow_beside_a_faster_one_that_may_not(rules):
    sure = {"draft": "big", "alpha": near(0.95), "speedup_expected": near(1.2)}
    unsure = {"alpha": near(0.85), "speedup_expected": near(1.3, 0.4)}
    assert "high-alpha-without-speed" not in rules(more=(sure,), **unsure)


def test_nothing_is_said_of_a_speed_that_is_unknown(rules):
    """Known fault: "its speed-up nan×"."""
    assert "high-alpha-without-speed" not in rules(alpha=near(0.95), speedup_expected=None)


def test_quantizing_is_advised_by_what_the_closed_form_says_it_would_give(rules):
    # At k = 1: 1.78 / 1.5 = 1.187 now, 1.75 / 1.3 = 1.346 with 0.6 of c and 3 points less α.
    text = rules(draft_cost_ratio=near(0.5, 0.0))["quantize-the-draft"]
    assert f"about {0.9 * (1.75 / 1.3) / (1.78 / 1.5):.2f}× instead of 0.90×" in text


def test_quantizing_is_not_advised_where_it_was_measured_or_gives_nothing(rules, scene):
    assert "quantize-the-draft" not in rules(draft_cost_ratio=near(0.0, 0.0))
    scene.records.clear()
    measured = ({"quant": "int4", "draft_cost_ratio": near(0.25, 0.0)},)
    assert "quantize-the-draft" not in rules(draft_cost_ratio=near(0.5, 0.0), more=measured)


def test_many_requests_at_once_are_warned_of_until_they_were_measured(rules, scene):
    words = rules(decision="speculate", **PAYS)["many-requests-at-once"]
    assert "measured up to concurrency 1;" in words
    scene.records.clear()
    asked = rules(decision="speculate", asked=(1, 16), **PAYS)["many-requests-at-once"]
    assert "measured up to concurrency 1;" in asked
    scene.records.clear()
    assert "many-requests-at-once" not in rules(decision="speculate", concurrency=(1, 32), **PAYS)


def test_prompt_lookup_gets_no_advice_on_drafts(rules):
    assert rules(draft="ngram", alpha=near(0.3)) == {}


def test_at_most_three_rules_are_shown(rules):
    changes = {"names": ("qwen2.5-7b", "llama-3.2-1b"), "sizes": (70e9, 35e9)}
    found = rules(**changes, alpha=near(0.3), draft_cost_ratio=near(0.5, 0.0))
    assert list(found) == ["same-family", "low-alpha", "size-ratio"]
