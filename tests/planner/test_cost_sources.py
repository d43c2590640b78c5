"""Costs of a run between its batch sizes, and of an engine's own step times; files that cannot be
used.
"""

import pytest
from scenes import ALL, BIG, CHEAP, NGRAM, SMALL, TARGET, evaluation, says

from draftbench.errors import UsageError
from draftbench.planner.cost_sources import costs_in, costs_of_run, read_engine_costs
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import between
from draftbench.planner.recommend import recommend

GOOD = """
engine: llama.cpp
concurrency:
  1:
    tokens_per_second: 20
    verify: {2: 0.06, 3: 0.08}
    drafts: {small: {step_s: 0.01}}
  4:
    target_step_s: 0.1
    verify: {2: 0.12}
    drafts: {small: {step_s: 0.02}, ngram: {step_s: 0.001}}
"""


def read(folder, text):
    path = folder / "costs.yaml"
    path.write_text(text)
    return read_engine_costs(path, (SMALL, NGRAM))


def test_between_two_batch_sizes_costs_follow_the_tokens_of_a_pass_and_it_is_said(scene):
    # Two rows of one token are two tokens, as timed at one row: 1.1 s of the target, .15 of the
    # draft. Two rows of three are six: from 2.0 s at five on to 2.2 s at ten.
    scene.timed(5)
    scene.times({1: 2.0, 2: 2.2, 3: 2.4}, {1: 0.2, 2: 0.3}, concurrency=5)
    scene.decode("r0", 0, 8.8)
    source = costs_in(scene.observed(1, 2))
    assert source.note(SMALL, 2) == "interpolated between 1 and 5"
    found = between(source.blocks[SMALL], 2)
    assert found.target.at(3, 0)[0] == pytest.approx(2.04)
    assert found.draft_cost_ratio(0.0).value == pytest.approx(0.15 / 1.1)


@pytest.mark.parametrize("concurrency", [1, 9])
def test_beyond_the_timed_concurrencies_costs_are_unknown(scene, concurrency):
    scene.requests(5, ALL)
    for rows in (2, 4):
        scene.times(TARGET, CHEAP, concurrency=rows)
    source = costs_in(scene.observed(1))
    assert between(source.blocks[SMALL], concurrency) is None
    assert source.note(SMALL, concurrency) == f"concurrency {concurrency} was not timed, only 2, 4"


def test_step_times_become_costs_by_concurrency(tmp_path):
    source = read(tmp_path, GOOD)
    assert source.runner == "llama.cpp"
    assert (source.concurrencies(SMALL), source.concurrencies(NGRAM)) == ((1, 4), (4,))
    one, four = source.blocks[SMALL].values()
    # One row at 20 tokens a second; contexts make no difference.
    assert one.target.at([1, 2, 3], 12345)[0] == pytest.approx([0.05, 0.06, 0.08])
    assert one.draft_cost_ratio(100.0).value == pytest.approx(0.2)
    assert (four.target.at(1, 0)[0], four.prefill) == (pytest.approx([0.1]), None)
    assert source.blocks[NGRAM][4].draft is None
    assert source.run is None
    # Tokens per second are those of all rows.
    by_rate = read(tmp_path, GOOD.replace("target_step_s: 0.1", "tokens_per_second: 40"))
    assert by_rate.blocks[SMALL][4].target.at(1, 0)[0] == pytest.approx(4 / 40)


def test_costs_of_another_run_stand_beside_this_ones_acceptance(scene):
    scene.requests(5, ALL)
    scene.times({1: 9.0, 2: 9.0, 3: 9.0}, {1: 9.0, 2: 9.0})
    scene.facts("small", fingerprint="a")
    own = scene.observed(1, 2)
    scene.records.clear()
    scene.times(TARGET, CHEAP, runner="elsewhere")
    scene.facts("small", fingerprint="b")
    source = costs_of_run(scene.observed(1, 2), own, "`other`")
    found = recommend(own, DecisionOptions(costs=source))
    assert evaluation(found, "small", 2).speedup_predicted.value == pytest.approx(8 / 4.1)
    assert source.runner == "elsewhere"
    assert "costs come from elsewhere, in `other`" in source.caveats[0]
    assert "small is not the same model in `other`" in source.caveats


@pytest.mark.parametrize(
    ("changes", "meant"),
    [({"target": "u"}, "another target"), ({"target_quant": "int8"}, "at int8"), ({}, "no times")],
)
def test_costs_of_something_else_are_refused(scene, changes, meant):
    scene.requests(5, ALL)
    own = scene.observed(1)
    with pytest.raises(UsageError, match=meant):
        costs_of_run(scene.observed(1, **changes), own, "`other`")


def test_the_rounds_of_an_engine_are_not_borrowed(scene):
    scene.requests(5, ALL)
    own, engines = scene.observed(1), scene.observed(1, engine="vllm")
    with pytest.raises(UsageError, match="`other` was measured on vllm, which times whole rounds"):
        costs_of_run(engines, own, "`other`")


def test_an_answer_names_the_engine_and_counts_no_run_of_another_runner(scene, tmp_path):
    # At k = 2: passes of 0.08, 0.08 and 0.06 and five draft steps, against 8 steps of 0.05. `big`
    # is not in the file.
    scene.requests(5, ALL, SMALL, BIG)
    scene.times({1: 9.0}, {1: 9.0})
    scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1}, BIG)
    scene.decode("r0", 0, 8.0)
    scene.decode("r0", 2, 99.0)
    scene.facts("small", has_kernel=False)
    found = recommend(scene.observed(2), DecisionOptions(costs=read(tmp_path, GOOD)))
    assert found.runner == "llama.cpp"
    small = evaluation(found, "small", 2)
    assert small.speedup_predicted.value == pytest.approx(0.4 / 0.27)
    assert (small.speedup_measured, found.prediction_error) == (None, None)
    assert found.latency is None
    assert says(found, "costs come from llama.cpp")
    big = evaluation(found, "big")
    assert big.speedup_predicted is None
    assert "costs.yaml` has no times for it" in big.reason


def test_a_k_whose_pass_is_longer_than_those_given_has_no_speed(scene, tmp_path):
    """At one row passes over 2 and 3 tokens are given: k = 1 and 2. At k = 4 all 8 tokens would be
    two rounds, the fastest by far if a pass over 5 took no longer than one over 3.
    """
    scene.requests(5, ALL)
    found = recommend(scene.observed(1, 2, 4), DecisionOptions(costs=read(tmp_path, GOOD)))
    speeds = {each.k: each.speedup_predicted for each in found.evaluations}
    assert [k for k, speed in speeds.items() if speed] == [1, 2]
    assert found.leader.k == 2
    longer = "passes over more than 3 tokens were not timed, so the speed of k ≥ 3 is unknown"
    assert says(found, longer)
    assert not says(found, "the nearest timed ones are used")
    asked = DecisionOptions(costs=read(tmp_path, GOOD), concurrency=(9,))
    assert says(recommend(scene.observed(1), asked), "/costs.yaml`, only 1, 4")


@pytest.mark.parametrize(
    ("old", "new", "meant", "hint"),
    [
        ("engine:", "engin:", "unknown field `engin`", "did you mean `engine`?"),
        ("tokens_per_second", "tokens_per_secnd", "`tokens_per_secnd`", "`tokens_per_second`?"),
        ("{step_s: 0.01}", "{step: 0.01}", "unknown field `step`", "did you mean `step_s`?"),
        ("target_step_s: 0.1", "", "one of target_step_s and tokens_per_second", "docs/formats.md"),
        ("0.01}", "-1}", "> 0", "docs/formats.md"),
        ("0.01}", ".nan}", "costs.yaml", "docs/formats.md"),
        ("0.01}", ".inf}", "costs.yaml", "docs/formats.md"),
        ("verify: {2: 0.12}", "verify: {1: 0.12}", ">= 2", "docs/formats.md"),
        ("verify: {2: 0.12}", "verify: {}", "length >= 1", "docs/formats.md"),
        ("verify: {2: 0.12}", "verify: {2: 0.09}", "takes less time", "average over more"),
        ("  1:", "  0:", ">= 1", "docs/formats.md"),
        ("engine: llama.cpp", "engine: [", "not YAML", "docs/formats.md"),
        ("small:", "smal:", "none of which this run measured", "small, ngram"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_what_would_do(tmp_path, old, new, meant, hint):
    text = GOOD.replace(", ngram: {step_s: 0.001}", "").replace(old, new)
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert meant in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "3", "engine: x", "engine: x\nbatches: {1: 3}", None])
def test_no_file_and_a_file_of_another_shape_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "costs.yaml").write_text(text)
    with pytest.raises(UsageError):
        read_engine_costs(tmp_path / "costs.yaml", (SMALL,))
