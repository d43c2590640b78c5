"""`NAME:VALUE[%]` as people write it, and as they get it wrong."""

import pytest

from draftbench.errors import UsageError
from draftbench.gate.metrics import Limit, default_limits, limits_of, parse_limit


@pytest.mark.parametrize(
    ("text", "metric", "value", "relative"),
    [
        ("mean_accepted_length:2%", "mean_accepted_length", 0.02, True),
        ("alpha:0.02", "alpha", 0.02, False),
        ("alpha: 3.5 %", "alpha", 0.035, True),
        ("speedup:.1", "speedup", 0.1, False),
        ("draft_cost_ratio:150%", "draft_cost_ratio", 1.5, True),
    ],
)
def test_percent_is_relative_and_a_plain_number_absolute(text, metric, value, relative):
    limit = parse_limit(text)
    assert (limit.metric, limit.relative) == (metric, relative)
    assert limit.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("alpha", "is not a limit", "write NAME:VALUE"),
        ("alpha:", "is not a limit", "write NAME:VALUE"),
        ("aplha:2%", "not a metric", "did you mean `alpha`"),
        ("latency:2%", "not a metric", "the metrics are alpha, mean_accepted_length"),
        ("alpha:two", "not a number", "alpha:0.02"),
        ("alpha:0", "above 0", "allow a small drop"),
        ("alpha:-1%", "above 0", "allow a small drop"),
        ("alpha:nan", "above 0", "allow a small drop"),
        ("alpha:2", "no % and would be a drop of 2", "two points of alpha are alpha:0.02"),
        ("mean_accepted_length:2", "no % and", "2 percent is written mean_accepted_length:2%"),
        ("draft_cost_ratio:1", "no % and", "1 percent is written draft_cost_ratio:1%"),
        ("speedup:100%", "never be exceeded", "2%"),
    ],
)
def test_a_wrong_limit_says_what_is_wrong_and_how_to_write_it(text, message, hint):
    with pytest.raises(UsageError, match=message) as caught:
        parse_limit(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize("written", ["12.5%", "7%", "0.55%", "99.95%"])
def test_a_limit_is_printed_as_it_was_written(written):
    limit = parse_limit(f"mean_accepted_length:{written}")
    # 12.4% is within a limit of 12.5%, and would not be within 12%.
    assert limit.amount(limit.value) == written
    of_alpha = parse_limit("alpha:0.0125")
    assert of_alpha.amount(of_alpha.value) == "0.0125"


def test_given_limits_replace_the_defaults_of_their_name_and_join_the_others():
    assert limits_of(["alpha:0.05", "speedup:10%", "alpha:0.25"], default_limits(0.8, 4)) == (
        Limit(metric="mean_accepted_length", value=0.02, relative=True),
        Limit(metric="tokens_per_round", value=0.02, relative=True),
        Limit(metric="alpha", value=0.25, relative=False),
        Limit(metric="speedup", value=0.1, relative=True),
    )


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_drop_of_alpha_by_its_default_limit_lowers_the_length_by_two_percent(k):
    *lengths, alpha = default_limits(0.85, k)
    names = ("mean_accepted_length", "tokens_per_round")
    assert lengths == [Limit(metric=name, value=0.02, relative=True) for name in names]
    assert list(default_limits(None, k)) == lengths
    before, after = ((1 - a ** (k + 1)) / (1 - a) for a in (0.85, 0.85 - alpha.value))
    assert after / before == pytest.approx(0.98, abs=2e-4)
