"""Every reason why two baselines cannot be compared."""

import msgspec
import pytest

from draftbench.errors import IncomparableError
from draftbench.gate.limits import parse_limit
from draftbench.gate.pair_requests import pair_up, refusal


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("key_id", "other", "key of the hashes"),
        ("metric_version", 2, "metric version"),
        ("mode", "sampled", "--mode"),
        ("k", 5, "--k"),
        ("responses", "log", "--responses"),
        ("samples", 2, "--samples"),
        ("max_new_tokens", None, "--max-new-tokens"),
    ],
)
def test_another_question_is_refused_with_its_name(run, field, value, name):
    with pytest.raises(IncomparableError, match=f"compared: {name} was .*, is {value}") as caught:
        pair_up(run(), run(**{field: value}), ())
    assert caught.value.exit_code == 4


TARGET = "gate a run of the target as in the baseline, or save a new baseline if it changed on"
TRAFFIC = (
    "run the same traffic and sample, or save a new baseline if the traffic changed on purpose"
)


@pytest.mark.parametrize(
    ("changed", "told", "hint"),
    [
        (
            {"max_new_tokens": 64, "mode": "sampled"},
            "--mode was greedy, is sampled; --max-new-tokens was 128, is 64",
            "run with the baseline's settings, or save a new baseline",
        ),
        (
            {"max_new_tokens": 64, "tested": {"target": "b"}},
            "target was a, is b; --max-new-tokens was 128, is 64",
            TARGET,
        ),
        (
            {"requests": 20, "candidate": "big", "max_new_tokens": 64},
            "the draft was small, is big; other traffic: only 20 of the baseline's 40 requests are "
            "among the 20 of this run; --max-new-tokens was 128, is 64",
            TRAFFIC,
        ),
        (
            {"rows": lambda at: {"sampling": "temperature=0.7"}, "tested": {"target quant": "Q4"},
             "samples": 2},
            "target quant was Q8, is Q4; the sampling of 40 of 40 requests differs (one was greedy,"
            " is temperature=0.7); --samples was 1, is 2",
            TARGET,
        ),
    ],
)  # fmt: skip
def test_all_that_differs_is_named_in_one_refusal_the_most_important_first(
    run, changed, told, hint
):
    tested = {"target": "a", "target quant": "Q8"}
    other = changed | {"tested": tested | changed.get("tested", {})}
    with pytest.raises(IncomparableError) as caught:
        pair_up(run(tested=tested), run(**other), ())
    assert caught.value.message == f"the baseline cannot be compared: {told}"
    assert caught.value.hint.startswith(hint)


def test_another_target_or_draft_alone_is_compared(run):
    old = run(tested={"target": "a"})
    assert len(pair_up(old, run(tested={"target": "b"}, candidate="big"), ())) == 40


def test_a_draft_that_was_not_measured_is_refused_beside_what_else_differs(run):
    refused = refusal(run(), run(candidate="ngram", samples=2), measured=("ngram", "big"))
    assert refused.message == (
        "the baseline cannot be compared: the draft was small, which this run did not measure; "
        "--samples was 1, is 2"
    )
    assert refused.hint.startswith("its candidates are ngram, big; name the draft that replaces it")
    assert refusal(run(), run()) is None


def test_under_another_key_nothing_is_said_of_the_requests(run):
    with pytest.raises(IncomparableError) as caught:
        pair_up(run(), run(key_id="other", rows=lambda at: {"id": f"x{at}"}), ())
    assert "traffic" not in caught.value.message
    assert "DRAFTBENCH_KEY" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "before", "now", "name"),
    [
        ("concurrency", 4, 1, "--concurrency"),
        ("arrivals", "closed", "poisson:2", "--arrivals"),
        ("max_concurrency", 16, 4, "requests answered at once"),
    ],
)
def test_another_load_of_an_engine_is_refused_and_none_is_known_of_a_replay(
    run, field, before, now, name
):
    with pytest.raises(IncomparableError, match=f"compared: {name} was {before}, is {now}"):
        pair_up(run(**{field: before}), run(**{field: now}), ())
    assert len(pair_up(run(**{field: before}), run(), ())) == 40
    assert len(pair_up(run(), run(**{field: now}), ())) == 40


def test_a_closed_loop_and_arrivals_differ_whatever_was_in_flight(run):
    """At times of arrival the number in flight counts as one."""
    closed, opened = {"arrivals": "closed", "concurrency": 4}, {"arrivals": "log", "concurrency": 1}
    with pytest.raises(IncomparableError, match="arrivals was closed, is log"):
        pair_up(run(**closed), run(**opened, time_scale=1.0), ())


def test_a_log_at_another_pace_is_another_load(run):
    with pytest.raises(IncomparableError, match=r"was 1\.0, is 2\.0"):
        pair_up(run(arrivals="log", time_scale=1.0), run(arrivals="log", time_scale=2.0), ())
    assert len(pair_up(run(arrivals="log", time_scale=1.0), run(), ())) == 40


def test_times_at_another_concurrency_are_refused(run):
    at_four = msgspec.structs.replace(run(), concurrency=4)
    with pytest.raises(IncomparableError, match="at concurrency 1, and now at 4"):
        pair_up(run(), at_four, [parse_limit("speedup:5%")])
    assert len(pair_up(run(), at_four, ())) == 40


def test_times_of_requests_that_came_at_other_moments_are_refused(run):
    """Known fault: another seed, or another log at the same pace, counted as the same load."""
    old, new = (run(arrivals="poisson:2", arrivals_digest=digest) for digest in ("a", "b"))
    with pytest.raises(IncomparableError, match="requests came at other times") as caught:
        pair_up(old, new, [parse_limit("speedup:5%")])
    assert "--seed" in caught.value.hint
    for limits, later in [([], new), ([parse_limit("speedup:5%")], old)]:
        assert len(pair_up(old, later, limits)) == 40


def test_another_definition_of_alpha_is_refused(run):
    with pytest.raises(IncomparableError, match="definition of α was"):
        pair_up(run(), run(alpha_definition="acceptance rate (overlap)"), ())


def test_another_temperature_is_refused_with_the_count(run):
    new = run(rows=lambda at: {"sampling": "temperature=0.7"} if at < 3 else {})
    with pytest.raises(IncomparableError, match=r"3 of 40 requests differs.*is temperature=0\.7"):
        pair_up(run(), new, ())


@pytest.mark.parametrize("common", [0, 7])
def test_other_traffic_is_refused_with_the_overlap(run, common):
    new = run(requests=12, rows=lambda at: {} if at < common else {"id": f"x{at}"})
    with pytest.raises(IncomparableError, match=f"only {common} of the baseline's 10 requests"):
        pair_up(run(requests=10), new, ())


def test_requests_of_one_run_alone_are_left_out(run):
    new = run(requests=60, rows=lambda at: {"id": f"x{at}"} if at < 5 else {})
    assert len(pair_up(run(), new, ())) == 35


@pytest.mark.parametrize("metric", ["speedup", "draft_cost_ratio"])
@pytest.mark.parametrize("fact", ["machine", "target runner"])
def test_times_of_different_machines_are_refused(run, metric, fact):
    there = run(tested={"draft": "small", "machine": "here", "target runner": "lean"} | {fact: "x"})
    with pytest.raises(IncomparableError, match=f"{metric} was measured elsewhere: {fact}"):
        pair_up(run(), there, [parse_limit(f"{metric}:5%")])
    assert len(pair_up(run(), there, [])) == 40


@pytest.mark.parametrize("fact", ["quant", "dtype", "quantization", "ftype"])
def test_a_target_in_another_number_type_is_refused(run, fact):
    def held(kind):
        return run(tested={f"target {fact}": kind} if kind else {})

    with pytest.raises(IncomparableError, match=f"target {fact} was Q8_0, is Q4_K"):
        pair_up(held("Q8_0"), held("Q4_K"), ())
    pair_up(held("Q8_0"), held(None), ())
