"""`draftbench estimate`: the closed form in every format, and what goes wrong with it."""

import json

import pytest

FORMULA = ["--alpha", "0.75", "--draft-cost", "0.05"]


@pytest.mark.parametrize(
    ("alpha", "cost", "ks", "best", "faster"),
    [
        # 2.73 tokens for 1.15 steps; 3.60 for 1.35 at k = 7, where it is fastest.
        ("0.75", "0.05", "1-3", "Best k = 3: 2.38×", "k = 7 would be faster: 2.67×."),
        # 3.70 tokens for 1.4 steps.
        ("0.75", "0.05", "8-10", "Best k = 8: 2.64×", "k = 7 would be faster: 2.67×."),
        # 1.43 tokens for 2 steps; 1.3 for 1.2 at k = 1.
        ("0.3", "0.2", "5", "None of these k is faster than", "k = 1 would be faster: 1.08×."),
        ("0.75", "0.05", "6,7", "Best k = 7: 2.67×", None),
        ("0.75", "0.05", "6", "Best k = 6: 2.67×", None),  # 2.666 against 2.667
    ],
)
def test_the_best_k_is_one_that_was_asked_for_and_a_faster_one_is_named(
    command, alpha, cost, ks, best, faster
):
    words = ["--alpha", alpha, "--draft-cost", cost, "--k", ks]
    out = command("estimate", *words).out
    assert out.startswith(best)
    assert faster in out if faster else "would be faster" not in out


def test_the_verify_ratio_reaches_the_formula(command):
    words = ["--alpha", "0.5", "--draft-cost", "0.1", "--verify-ratio", "1.55"]
    found = json.loads(command("estimate", *words, "--k", "2", "--format", "json").out)
    # 1.75 tokens for 2 · 0.1 + 1.55 steps.
    assert found["verify_ratio"] == 1.55
    assert found["rows"][0]["speedup"] == pytest.approx(1)
    words[1] = "0.3"
    assert command("estimate", *words).out.startswith("Do not speculate: no k is faster")


def test_verify_ratios_that_are_one_for_every_k_or_fall_with_it_are_remarked_on(command):
    words = ["estimate", *FORMULA, "--k", "1-3", "--verify-ratio"]
    one, by_k, falls = (command(*words, v).out for v in ("1", "1.1,1.3,1.6", "1.1,1.4,1.2"))
    assert "v = 1 for every k. In fact it grows with k" in one
    assert "for every k" not in by_k
    # (1 + 0.75 + 0.5625) / (0.1 + 1.3)
    assert "→  2     1.3       2.31        1.65" in by_k
    assert ["v falls as k grows" in out for out in (one, by_k, falls)] == [False, False, True]


def test_every_format_says_that_nothing_was_measured(command):
    """Whole tables are in docs/method.md and docs/faq.md."""
    for style in ("table", "json", "markdown"):
        outcome = command("estimate", *FORMULA, "--format", style)
        assert (outcome.code, outcome.err) == (0, "")
        assert "not measured" in outcome.out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--alpha", "0.7"], "--draft-cost"),
        (["--alpha", "nan", "--draft-cost", "0.1"], "expected a number"),
        ([*FORMULA, "--verify-ratio", ".2"], "takes less time than one over a single token"),
        ([*FORMULA, "--verify-ratio", "1.1,x"], "not numbers between commas"),
        ([*FORMULA, "--verify-ratio", "1.1,1.2"], "`--k 1-2`"),
        ([*FORMULA, "--k", "0-4"], "--k"),
    ],
)
def test_numbers_and_values_that_cannot_be(failing, words, meant):
    assert meant in failing(2, "estimate", *words)
