"""Every reason why two baselines cannot be compared."""

import pytest
from msgspec.structs import replace

from draftbench.errors import IncomparableError
from draftbench.gate.metrics import parse_limit
from draftbench.gate.pair import Pairing

TARGET = "gate a run of the target as in the baseline, or save a new baseline if it changed on"
CLOSED = {"arrivals": "closed", "concurrency": 4}
# At times of arrival the number in flight counts as one.
OPEN = {"arrivals": "log", "concurrency": 1, "time_scale": 1.0}


def pair_up(old, new, limits=()):
    pairing = Pairing(old, new)
    pairing.refuse_incomparable(limits)
    return pairing.pairs


def held(fact, kind):
    return {"tested": {f"target {fact}": kind}}


def warm(count):
    return {"rows": lambda at: {"sampling": "temperature=0.7"} if at < count else {}}


def others(count):
    """Requests of which the first `count` are other ones."""
    return {"rows": lambda at: {"id": f"x{at}"} if at < count else {}}


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ({}, {"key_id": "other"}, "key of the hashes was cafe0123, is other", "DRAFTBENCH_KEY"),
        ({}, {"metric_version": 2}, "metric version was 1, is 2", "save the baseline again"),
        ({}, {"mode": "sampled"}, "--mode was greedy, is sampled", "baseline's setting, or save a"),
        ({}, {"k": 5}, "--k was 4, is 5", "setting,"),
        ({}, {"responses": "log"}, "--responses was target, is log", "setting,"),
        ({}, {"samples": 2}, "--samples was 1, is 2", "setting,"),
        ({}, {"max_new_tokens": None}, "--max-new-tokens was 128, is none", "setting,"),
        ({}, {"alpha_definition": "overlap"}, "definition of α was acceptance", "setting,"),
        (
            {},
            warm(3),
            "the sampling of 3 of 40 requests differs (one was greedy, is temp",
            "temper",
        ),
        (
            {},
            {"requests": 12},
            "other traffic: only 12 of the baseline's 40 requests",
            "the same traffic",
        ),
        (
            {"requests": 10},
            others(3),
            "other traffic: only 7 of the baseline's 10 requests",
            "the same traffic",
        ),
        *[
            (held(fact, "Q8_0"), held(fact, "Q4_K"), f"target {fact} was `Q8_0`, is `Q4_K`", TARGET)
            for fact in ("quant", "dtype", "quantization", "ftype")
        ],
        # Another load of an engine.
        (CLOSED, CLOSED | {"concurrency": 1}, "--concurrency was 4, is 1", "setting,"),
        (CLOSED, OPEN, "--arrivals was closed, is log; --concurrency", "settings,"),
        (OPEN, OPEN | {"time_scale": 2.0}, "--time-scale was 1.0, is 2.0", "setting,"),
        (
            {"max_concurrency": 16},
            {"max_concurrency": 4},
            "requests answered at once was 16, is 4",
            "setting,",
        ),
        # All that differs is named, the most important first.
        (
            {},
            {"max_new_tokens": 64, "mode": "sampled"},
            "--mode was greedy, is sampled; --max-new-tokens was 128, is 64",
            "run with the baseline's settings, or save a new baseline",
        ),
        (
            {"tested": {"target": "a"}},
            {"tested": {"target": "b"}, "max_new_tokens": 64},
            "target was `a`, is `b`; --max-new-tokens was 128, is 64",
            TARGET,
        ),
        (
            {},
            {"requests": 20, "candidate": "big", "max_new_tokens": 64},
            "the draft was small, is big; other traffic: only 20 of the baseline's 40 requests are "
            "among the 20 of this run; --max-new-tokens was 128, is 64",
            "run the same traffic and sample, or save a new baseline if the traffic changed",
        ),
        (
            held("quant", "Q8"),
            held("quant", "Q4") | warm(40) | {"samples": 2},
            "target quant was `Q8`, is `Q4`; the sampling of 40 of 40 requests differs (one was "
            "greedy, is temperature=0.7); --samples was 1, is 2",
            TARGET,
        ),
    ],
)
def test_another_question_is_refused_with_all_that_differs(run, old, new, message, hint):
    with pytest.raises(IncomparableError) as caught:
        pair_up(run(**old), run(**new), ())
    assert caught.value.exit_code == 4
    assert caught.value.message.startswith(f"the baseline cannot be compared: {message}")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "pairs"),
    [
        # Another target or draft alone.
        ({"tested": {"target": "a"}}, {"tested": {"target": "b"}, "candidate": "big"}, 40),
        # What one of the two does not know; a replay has no load.
        (held("quant", "Q8_0"), {}, 40),
        *[(one, two, 40) for each in (CLOSED, OPEN) for one, two in ((each, {}), ({}, each))],
        ({"max_concurrency": 16}, {}, 40),
        # Without limits on times: at another load or machine, or at other times of arrival.
        ({}, {"timed_at": 4}, 40),
        ({}, {"tested": {"draft": "small", "machine": "x", "target runner": "y"}}, 40),
        (OPEN | {"arrivals_digest": "a"}, OPEN | {"arrivals_digest": "b"}, 40),
        # Requests of one run alone are left out.
        ({}, {"requests": 60} | others(5), 35),
    ],
)
def test_what_may_differ_is_paired(timed_run, old, new, pairs):
    assert len(pair_up(timed_run(**old), timed_run(**new), ())) == pairs


@pytest.fixture
def timed_run(run):
    """timed_run(concurrency of its times, **fields)"""
    return lambda timed_at=1, **fields: replace(run(**fields), concurrency=timed_at)


@pytest.mark.parametrize("limit", ["speedup:5%", "draft_cost_ratio:5%"])
@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        *[
            (
                {},
                {"tested": {"machine": "here", "target runner": "lean"} | {fact: "x"}},
                f"was measured elsewhere: {fact} was ",
                "compare times on one machine",
            )
            for fact in ("machine", "target runner")
        ],
        ({}, {"timed_at": 4}, "was measured at concurrency 1, and now at 4", "--concurrency"),
        # Known fault: another seed, or another log at the same pace, counted as the same load.
        (
            OPEN | {"arrivals_digest": "a"},
            OPEN | {"arrivals_digest": "b"},
            "while requests came at other times",
            "--seed",
        ),
    ],
)
def test_times_are_of_one_machine_and_load(timed_run, limit, old, new, message, hint):
    with pytest.raises(IncomparableError, match=f"{limit[:-3]} was measured") as caught:
        pair_up(timed_run(**old), timed_run(**new), [parse_limit(limit)])
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert len(pair_up(timed_run(**old), timed_run(**old), [parse_limit(limit)])) == 40


def test_under_another_key_nothing_is_said_of_the_requests(run):
    with pytest.raises(IncomparableError) as refused:
        pair_up(run(), run(key_id="other", **others(40)))
    assert "traffic" not in refused.value.message
