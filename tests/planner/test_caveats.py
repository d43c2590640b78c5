"""What a reader is warned of, and that a clean run warns of nothing.

At k = 2 a draft that is always right takes 4.1 s by its passes, plain decoding 8.
"""

import dataclasses
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs
from planner.engine_run import answers, run
from scenes import ALL, BIG, CHEAP, INT4, SELF_DRAFT, SMALL, TARGET, evaluation, replay, says

from draftbench.cli.recommend import render
from draftbench.planner.caveats import checks, predictions_off, unfinished
from draftbench.planner.cost_sources import costs_in, read_engine_costs
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Audit, PredictionError
from draftbench.records import MachineState, WorkerFacts


def decisive(found):
    return [caveat.kind for caveat in found.caveats if caveat.decisive]


def decoded(scene, requests=30, decoded=30, slower=1.0):
    """A draft that halves the time, decoded in three processes, each slower than the last."""
    scene.requests(requests, ALL)
    scene.times(TARGET, CHEAP)
    for number in range(3):
        pace = slower ** (number / 2)
        scene.decodes(decoded, 2, 4.1 * pace, plain=8.0 * pace, process=f"p{number}")
    return scene.observed(2)


def test_a_long_and_quiet_run_raises_no_doubt_but_of_a_draft_that_is_always_right(scene):
    found = recommend(decoded(scene))
    assert (found.decision, found.provisional, found.near_tie_share) == ("speculate", "", 0.0)
    (caveat,) = [each for each in found.caveats if each.kind != "interval"]
    assert caveat.text.startswith("small: suspected fault: 100.0% of 150 drafted tokens were acc")


@pytest.mark.parametrize(
    ("steps", "asked", "told"),
    [
        ({1: 0.1, 2: 0.1, 3: 0.1}, 1.0, None),
        ({1: 0.104, 2: 0.1, 3: 0.1}, 1.0, None),  # as much as timings are off
        ({1: 0.1, 2: 0.09, 3: 0.08}, 1.0, False),  # 8 / 4.1 / 1.25 is 1.56
        ({1: 0.1, 2: 0.09, 3: 0.08}, 1.7, True),
    ],
)
def test_a_plain_step_that_is_slower_than_a_longer_pass_is_said(scene, steps, asked, told):
    scene.requests(30, ALL)
    scene.times(steps, {1: 0.01, 2: 0.01})
    for number in range(3):
        scene.decodes(30, 2, 0.41, plain=0.8, process=f"p{number}")
    found = recommend(scene.observed(2), DecisionOptions(min_speedup=asked))
    slow = [caveat for caveat in found.caveats if caveat.kind == "slow-step"]
    assert [caveat.decisive for caveat in slow] == ([] if told is None else [told])
    for caveat in slow:
        assert caveat.text == (
            "a pass over 3 tokens takes 80 ms, one over 1 token 100 ms: this library's "
            "one-token step is slow, so the speed-up is up to 1.25 times too high"
        )


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ((0.1, 0.1, 0.1, 0.1, 9.0, 9.0), False),  # one visit stalled
        ((0.1, 0.1, 9.0, 9.0, 9.0, 9.0), True),
        ((0.001, 0.001, 0.01, 0.01, 0.01, 0.01), False),  # a hundredth of a step, at most
    ],
)
def test_a_cost_that_could_be_anything_is_said(scene, step, told):
    scene.requests(30, ALL)
    scene.times(TARGET, {1: step, 2: step})
    found = recommend(scene.observed(2))
    assert says(found, "small: c could be anything from") is told


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ((0.2,) * 6, True),
        ((0.1, 0.12, 0.09, 0.11, 0.1, 0.12), False),  # about the same: noise decides the order
        ((0.05,) * 6, False),
    ],
)
def test_a_level_is_called_slower_than_unquantized_only_beyond_the_noise_of_its_timings(
    scene, steps, told
):
    scene.requests(30, ALL, SMALL, INT4)
    scene.times(TARGET, dict.fromkeys((1, 2), (0.1, 0.11, 0.09, 0.1, 0.1, 0.1)))
    scene.times(TARGET, dict.fromkeys((1, 2), steps), INT4)
    found = recommend(scene.observed(2))
    slower = "small:int4 is slower than the unquantized draft (c 0.20 instead of 0.10)"
    assert says(found, slower) is told
    assert says(found, "slower than the unquantized draft") is told


def test_doubts_are_listed_where_they_apply_and_not_elsewhere(scene):
    scene.requests(2, ALL)
    scene.requests(1, ALL, BIG)
    scene.facts("small", replay_disagreement=0.1, caveats=("the head was not quantized",))
    scene.facts("big", replay_disagreement=0.05)
    scene.times(TARGET, CHEAP, contexts=(0, 12))
    scene.times(TARGET, {1: 0.4, 2: 0.5}, BIG)
    scene.failure("other", "another vocabulary")
    scene.decode("r0", 0, 8.0)
    scene.decode("r0", 1, 8.0, first_difference=2, tie=False)
    found = recommend(scene.observed(1))
    assert says(found, "only 2 requests", "under 30")
    assert says(found, "only one request was decoded", "under 5, they do not correct")
    assert says(found, "1 of 1 requests", "suspect the decoder")
    assert says(found, "small: the head was not quantized")
    assert says(found, "small: stepping chose another token than replay at 10% of positions")
    assert "replay-disagreement" in decisive(found)
    assert says(found, "small: target passes were not timed", "2 of 2")
    assert says(found, "big: replayed on only 1 of 2 responses")
    assert says(found, "other was not fully measured: another vocabulary")
    assert not says(found, "big: stepping")
    assert not says(found, "big: target passes")


def test_one_request_decides_nothing(scene):
    scene.requests(1, ALL)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(2))
    assert (found.decision, found.larger_sweep) == ("inconclusive", None)
    assert says(found, "small at k = 2: too few requests to decide by")


def test_a_run_that_stood_still_is_said(scene):
    # Eight steps of 1 s, one of them 21 s: over twenty times the median.
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    scene.decode("r0", 0, 28.0, verify_seconds=(1.0,) * 7 + (21.0,))
    scene.decode("r1", 0, 8.0)
    assert says(
        recommend(scene.observed(1, 2)),
        "1 decoding run stalled: a round took over 20 times as long",
    )


def test_a_target_that_repeats_itself_is_said(scene):
    scene.request("r0", looping=6)
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    # 6 of 18 tokens.
    assert says(recommend(scene.observed(1)), "in 33% of the output the target repeats itself")


def test_what_holds_of_several_candidates_is_said_once_naming_all(scene):
    scene.requests(2, ALL, SMALL, BIG)
    for candidate in (SMALL, BIG):
        scene.times(TARGET, CHEAP, candidate)
        scene.facts(candidate.draft, caveats=("the chat templates differ",))
    found = recommend(scene.observed(1))
    told = [caveat.text for caveat in found.caveats if "templates" in caveat.text]
    assert told == ["small, big: the chat templates differ"]


def test_what_adds_to_the_interval_between_two_timed_loads_is_said(scene):
    scene.requests(5, ALL)
    for concurrency in (1, 4):
        scene.times(TARGET, CHEAP, concurrency=concurrency)
    found = recommend(scene.observed(1), DecisionOptions(concurrency=(2,)))
    assert says(found, "since concurrency 2 was not timed")
    assert not says(recommend(scene.observed(1)), "was not timed")


def test_what_speeds_of_a_batch_leave_out_is_said(scene):
    scene.requests(2, ALL)
    for concurrency in (1, 2):
        scene.times(TARGET, CHEAP, concurrency=concurrency)
    scene.batch_run("r0", 0, (0,) * 8, (1.0,) * 8)
    scene.batch_run("r0", 1, (1,) * 4, (1.2,) * 4)
    found = recommend(scene.observed(1), DecisionOptions(concurrency=(2,)))
    assert says(found, "at concurrency 2, prefill of other requests", "share rounds")
    assert not says(recommend(scene.observed(1)), "prefill of other requests")


def state(seconds, others=0.1, throttled=0):
    return MachineState(at=0.0, seconds=seconds, others=others, throttled=throttled, process="p")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"requests": 29, "decoded": 29}, ["few-requests"]),
        ({"requests": 29, "decoded": 28}, ["few-requests", "few-decoded"]),
        ({"decoded": 29}, ["few-decoded"]),
        ({"slower": 1.1}, ["drift"]),
        ({"slower": 1.04}, []),
    ],
)
def test_what_could_change_the_decision_is_decisive(scene, changes, kind):
    # 60 baseline runs, 30 between the two of a request: 1.1 ** (59 / 30) is 21% in all.
    assert decisive(recommend(decoded(scene, **changes))) == kind


@pytest.mark.parametrize(
    # 90 baseline runs, 60 from the first of a request to its last: to the power of 89 / 60.
    ("slower", "words"),
    [(1.1, "slowed down by 15%"), (2.0, "slowed down 2.8 times"), (0.9, "sped up by 14%")],
)
def test_a_drift_is_a_percentage_up_to_twice_as_slow(scene, slower, words):
    assert says(recommend(decoded(scene, slower=slower)), f"plain decoding {words} during the run")


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (Audit(8, 8, 0, 0), "all 8 answers identical to the target's."),
        (Audit(1, 1, 0, 0), "the one answer identical to the target's."),
        (
            Audit(9, 5, 3, 1),
            "5 of 9 answers identical to the target's, 3 differ only at near ties, 1 differs with "
            "no near tie to explain it.",
        ),
    ],
)
def test_only_differences_that_were_found_are_named(scene, outputs, said):
    answer = msgspec.structs.replace(
        recommend(decoded(scene)), audit=outputs, near_tie_share=None, evaluations=()
    )
    opening = "Output check at temperature 0, over every decoded draft and k"
    assert f"{opening}: {said}" in checks(answer)


@pytest.mark.parametrize(
    ("luck", "said"),
    [
        ((-0.014, 0.008), "gave 1.4% fewer to 0.8% more tokens than"),
        ((-0.024, -0.012), "gave 1.2 to 2.4% fewer tokens than"),
        ((0.012, 0.024), "gave 1.2 to 2.4% more tokens than"),
        ((0.0, 0.08), "gave up to 8.0% more tokens than"),
        ((0.05,), "gave 5.0% more tokens than"),
        ((0.0004, 0.0), "gave as many tokens as"),
    ],
)
def test_luck_is_fewer_or_more_tokens(scene, luck, said):
    answer = recommend(decoded(scene))
    every = [msgspec.structs.replace(answer.evaluations[0], acceptance_luck=each) for each in luck]
    answer = msgspec.structs.replace(answer, evaluations=tuple(every))
    assert any(f"Decoded rounds {said} replay expects" in each for each in checks(answer))


def test_other_processes_are_named_where_they_ran_for_over_a_tenth_of_the_time(scene):
    clean = decoded(scene)
    for busy, kinds in ((9.0, []), (12.0, ["busy-machine"])):
        states = state(100.0 - busy), state(busy, 0.5), state(0.0, None, None)
        assert decisive(recommend(dataclasses.replace(clean, states=states))) == kinds
    hot = recommend(dataclasses.replace(clean, states=(state(10.0, throttled=4),)))
    assert says(hot, "overheated and were slowed 4 times")


def test_machines_that_differ_from_the_one_that_timed_are_named(scene):
    clean = decoded(scene)
    here = clean.manifest.environment
    other = msgspec.structs.replace(here, processor="another", load=9.0)
    alike, unlike = (WorkerFacts(process="p", node="n", environment=e) for e in (here, other))
    assert not says(recommend(dataclasses.replace(clean, workers=(alike,))), "machines")
    mixed = recommend(dataclasses.replace(clean, workers=(alike, unlike)))
    assert says(mixed, "machines that differ in processor shared")
    assert decisive(mixed) == []


@pytest.mark.parametrize(("load", "kinds"), [(0.7, []), (0.8, ["busy-machine"])])
def test_a_load_at_the_start_is_a_busy_machine(scene, load, kinds):
    decoded(scene)
    assert decisive(recommend(scene.observed(2, load=load))) == kinds


def test_a_load_at_the_start_does_not_count_where_other_processes_were_watched(scene):
    decoded(scene)
    loaded = scene.observed(2, load=3.0)
    quiet = dataclasses.replace(loaded, states=(state(100.0, others=0.01),))
    unwatched = dataclasses.replace(loaded, states=(state(100.0, others=None),))
    assert decisive(recommend(quiet)) == []
    assert decisive(recommend(unwatched)) == ["busy-machine"]


def test_costs_from_elsewhere_do_not_depend_on_this_machine(scene):
    decoded(scene)
    loaded = scene.observed(2, load=3.0)
    other = dataclasses.replace(loaded, manifest=scene.observed(2).manifest)
    costs = DecisionOptions(costs=costs_in(other))
    assert decisive(recommend(loaded, costs)) == []
    costs = DecisionOptions(costs=costs_in(loaded))
    assert decisive(recommend(other, costs)) == ["busy-machine"]


def test_one_sentence_says_where_the_interval_comes_from(scene):
    # Two cells, and a draft of which nothing was decoded.
    scene.requests(6, ALL, SMALL, BIG)
    scene.replay("r5", [0.0] * 8)
    scene.times(TARGET, CHEAP)
    scene.times(TARGET, {1: 1.0, 2: 1.0}, BIG)
    scene.decodes(5, 2, 4.1)
    text = said_of(recommend(scene.observed(2)))
    assert text.startswith("the interval of small at k = 2 is ±")
    assert text.endswith("% from the noise of 1 decoded configuration")


def test_a_leader_that_was_not_decoded_says_how_much_of_its_interval_that_is(scene):
    scene.requests(6, ALL)
    scene.times(TARGET, CHEAP)
    text = said_of(recommend(scene.observed(2)))
    assert "±0% from the requests" in text
    assert text.endswith("% since small at k = 2 was not decoded")


def said_of(found):
    return next(caveat.text for caveat in found.caveats if caveat.kind == "interval")


def test_the_short_form_of_a_caveat_is_a_sentence_with_its_advice(scene):
    scene.requests(5, ALL)
    step = (0.1, 0.1, 9.0, 9.0, 9.0, 9.0)
    scene.times(TARGET, {1: step, 2: step})
    scene.decodes(5, 2, 2 * 4.1)
    short = {caveat.kind: caveat.short for caveat in recommend(scene.observed(2)).caveats}
    assert short["uncertain-cost"].startswith("small: c could be anything from ")
    assert short["uncertain-cost"].endswith(
        ": repeat the sweep on a quiet machine, in another --out"
    )


def test_a_replay_that_decoding_contradicts_makes_the_answer_that_of_decoding(scene):
    """By its replay the draft is always right, 8 s against 4.1 s; decoded, it was never, in eight
    rounds of 1.4 s at most.
    """
    scene.requests(30, ALL, SMALL, BIG)
    for candidate in (SMALL, BIG):
        scene.times(TARGET, CHEAP, candidate)
        never = {"proposed": (2,) * 6 + (1, 0), "accepted": (0,) * 8, "cut": (0,) * 8}
        never |= {"verify_seconds": (1.4,) * 8, "draft_seconds": (0.0,) * 8}
        scene.decodes(30, 2, 11.2, candidate, **never)
    found = recommend(scene.observed(2))
    assert found.decision == "do_not_speculate"
    assert evaluation(found).speedup_expected.value == pytest.approx(8 / 11.2, rel=0.02)
    assert evaluation(found).alpha is None
    assert found.provisional == (
        "decoding contradicts the replay of small, big, so only what was decoded counts"
    )
    screen = " ".join(render(found, "table", 80).split())
    assert f"Provisional: {found.provisional}" in screen


def test_a_control_that_failed_makes_every_answer_provisional(scene):
    scene.requests(30, ALL)
    scene.requests(30, [1.0] * 7 + [0.0], SELF_DRAFT)
    scene.times(TARGET, CHEAP)
    scene.decodes(30, 2, 4.1)
    found = recommend(scene.observed(2))
    said = "self: the target rejects its greedy draft of itself at 30 of 240 positions, near ties"
    assert found.provisional == f"{said} not counted"
    assert f"Provisional: {said}" in " ".join(render(found, "table", 100).split())


@pytest.mark.parametrize(("disturbed", "impossible"), [(1.0, False), (2.0, True)])
def test_a_control_that_saves_time_is_impossible(scene, disturbed, impossible):
    """A draft step of the target is a target step: 8 tokens take 8 of them, with a draft or
    without.
    """
    scene.requests(30, ALL, SMALL, SELF_DRAFT)
    scene.times(TARGET, CHEAP)
    scene.times(TARGET, TARGET, SELF_DRAFT)
    for number in range(30):
        scene.decode(f"r{number}", 0, 8 * disturbed, SELF_DRAFT)
        scene.decode(f"r{number}", 1, 8.0, SELF_DRAFT)
    found = caveat_of(scene.observed(1), "impossible")
    assert (found is not None) is impossible
    if found:
        assert found.decisive
        assert "is impossible for the target as its own draft" in found.text


def test_what_puts_acceptance_in_doubt_is_said_first(scene):
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    scene.facts("small", replay_disagreement=0.41)
    said = "small: stepping chose another token than replay at 41% of positions; only 2 requests"
    assert recommend(scene.observed(2)).provisional.startswith(said)


def caveat_of(made, kind="cached-prompts", **options):
    answer = recommend(made, DecisionOptions(**options))
    found = [caveat for caveat in answer.caveats if caveat.kind == kind]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("load", "options", "decisive"),
    [
        ({}, {}, False),
        ({}, {"objective": "latency"}, True),
        ({"concurrency": 4}, {}, True),
        ({"load": "open", "concurrency": 2}, {}, True),
    ],
)
def test_prompts_that_the_server_had_read_are_decisive_where_prefills_count(
    load, options, decisive
):
    """Prompts have 8 tokens: of five, three had four cached with speculation, one without."""
    plain, drafting = answers(0, **load), answers(1, **load)
    for rows, count in ((plain, 1), (drafting, 3)):
        rows[:count] = [structs.replace(row, cached_tokens=4) for row in rows[:count]]
    question = {"concurrency": (load.get("concurrency", 1),)}
    if "load" in load:
        question = {"arrivals": "log"}
    found = caveat_of(run(*answers(0), *plain, *drafting, **question), **options)
    assert "(10% without speculation, 30% with speculation)" in found.text
    assert found.decisive is decisive


@pytest.mark.parametrize("cached", [0, None])
def test_nothing_is_said_of_a_cache_that_was_empty_or_is_unknown(cached):
    rows = [*answers(0, cached_tokens=cached), *answers(1, cached_tokens=cached)]
    assert caveat_of(run(*rows)) is None


def started(candidate, k, place, repeat):
    """A start by a hundredth slower for each that came before it."""
    seconds = 0.1 * 1.01**place
    return [
        structs.replace(
            row,
            candidate=candidate,
            arrivals=tuple(seconds * (n + 1) for n in range(9)),
            repeat=repeat,
            server=f"s{place}",
            process=f"p{place}",
        )
        for row in answers(k)
    ]


@pytest.mark.parametrize(("turns", "decisive"), [((1, 1), True), ((2, 2), False), ((2, 1), True)])
def test_a_machine_that_became_slower_decides_where_a_server_was_started_once(turns, decisive):
    """Twelve more starts between two of the plain server, in all 12 % slower; one baseline for two
    drafts counts once.
    """
    rows, place = started(None, 0, 0, 0), 0
    for turn in range(max(turns)):
        for candidate, its in zip((SMALL, BIG), turns, strict=True):
            if turn < its:
                rows += started(candidate, 1, place + 3, turn)
        place += 12 // max(turns)
        rows += started(None, 0, place, turn + 1)
    found = caveat_of(run(*rows), "drift")
    assert "plain decoding slowed down by 13%" in found.text
    assert found.decisive is decisive
    assert ("taken out" in found.text) is not decisive


@pytest.mark.parametrize(("seconds", "said"), [(7.9, False), (8.1, True)])
def test_an_answer_stalled_whose_rounds_took_ten_times_those_of_the_others(seconds, said):
    """All others take .8 s for eight tokens, by the server's clock."""
    plain = answers(0, decode_seconds=0.8)
    plain[0] = structs.replace(
        plain[0], decode_seconds=seconds, arrivals=(*plain[0].arrivals[:-1], 9.0)
    )
    found = caveat_of(run(*plain, *answers(1, decode_seconds=0.8)), kind="stalled")
    assert (found is not None and "1 answer stalled" in found.text) is said


def test_pieces_that_a_client_saw_late_are_no_stall():
    """One piece after 8 s, of rounds of .1 s by the server's clock."""
    plain = [
        structs.replace(row, arrivals=(0.1, *(8.1 + n / 1e4 for n in range(8))), decode_seconds=0.8)
        for row in answers(0)
    ]
    assert caveat_of(run(*plain, *answers(1, decode_seconds=0.8)), kind="stalled") is None


@pytest.mark.parametrize("k", [0, 1])
def test_a_server_that_sends_answers_whole_cannot_be_timed_and_it_is_said(k):
    """As behind a proxy that holds a stream back until it ends."""
    rows = {n: answers(n) for n in (0, 1)}
    rows[k] = [structs.replace(row, arrivals=(0.9,) * 9, decode_seconds=0.0) for row in rows[k]]
    found = caveat_of(run(*rows[0], *rows[1]), kind="no-speed")
    assert "sends its answers whole" in found.text


@pytest.mark.parametrize(
    ("rows", "scale", "said"),
    [
        (
            20,
            1.0,
            "25% of the log's load: 5 answers for its 20 rows, 1 times as fast; --time-scale 4",
        ),
        (
            20,
            2.0,
            "50% of the log's load: 5 answers for its 20 rows, 2 times as fast; --time-scale 4",
        ),
        (20, 4.0, None),
        (5, 1.0, None),
    ],
)
def test_a_part_of_a_log_at_its_times_is_a_lighter_load(rows, scale, said):
    load = {"load": "open", "concurrency": 2}
    made = run(*answers(0), *answers(0, **load), *answers(1, **load), arrivals="log")
    question = structs.replace(made.manifest.question, time_scale=scale)
    traffic = structs.replace(made.manifest.traffic, rows=rows)
    manifest = structs.replace(made.manifest, question=question, traffic=traffic)
    found = caveat_of(replace(made, manifest=manifest), "thinned-log")
    assert (found and said in found.text) if said else found is None


def test_with_costs_from_elsewhere_nothing_is_said_of_this_runs_load_and_times(tmp_path):
    """Requests came at a quarter of the log's load, from a warm cache, and one answer stalled."""
    file = tmp_path / "costs.yaml"
    passes = "{target_step_s: 0.1, verify: {2: 0.12, 3: 0.13}, drafts: {small: {step_s: 0.01}}}"
    file.write_text(f"engine: elsewhere 1.0\nconcurrency: {{1: {passes}}}")
    rows = [
        structs.replace(row, cached_tokens=4)
        for row in (*answers(0, load="open"), *answers(1, load="open"))
    ]
    rows[-1] = structs.replace(rows[-1], arrivals=tuple(9.0 * (n + 1) for n in range(9)))
    made = run(*answers(0), *rows, arrivals="log", time_scale=1.0)
    rest = structs.replace(made.manifest.traffic, rows=20)
    made = replace(made, manifest=structs.replace(made.manifest, traffic=rest))
    own = {caveat.kind for caveat in recommend(made).caveats}
    assert {"thinned-log", "cached-prompts"} <= own
    answer = recommend(made, DecisionOptions(costs=read_engine_costs(file, (SMALL,))))
    kinds = {caveat.kind for caveat in answer.caveats}
    assert not {"thinned-log", "cached-prompts", "stalled", "not-timed"} & kinds
    assert "borrowed-costs" in kinds
    assert (answer.costs_from, answer.arrivals) == ("elsewhere 1.0", None)
    # At k = 1 four rounds of .12 and .01 s against eight steps of .1.
    (one,) = [each for each in answer.evaluations if each.k == 1]
    assert one.speedup_predicted.value == pytest.approx(0.8 / 0.52, rel=0.02)
    assert one.speedup_measured is None


@pytest.mark.parametrize(
    ("configurations", "without_decoding", "said"),
    [
        (1, None, "Prediction error for the one measured configuration: 3.0%."),
        (
            1,
            (0.05, 0.05),
            "Prediction error for the one measured configuration: 3.0% (from pass timings alone: "
            "5.0%).",
        ),
        (
            2,
            (0.05, 0.06),
            "Prediction error over 2 measured configurations: median 3.0%, max 4.0% (from pass "
            "timings alone: 5.0%, 6.0%).",
        ),
    ],
)
def test_the_prediction_of_one_configuration_has_no_median(configurations, without_decoding, said):
    median, worst = without_decoding or (None, None)
    error = PredictionError(
        configurations=configurations,
        median=0.03,
        worst=0.04,
        passes_only_median=median,
        passes_only_worst=worst,
        by_configuration=(),
    )
    assert predictions_off(error) == said


def test_alpha_holds_for_the_requests_without_structured_output():
    replays = [replay([1.0] * 8, request=request) for request in "abcde"]
    served, replayed = run(*answers(0), *answers(1)), run(*replays, *answers(0), *answers(1))

    def constrained(made, count):
        traffic = structs.replace(made.manifest.traffic, requests=5, constrained=count)
        return replace(made, manifest=structs.replace(made.manifest, traffic=traffic))

    said = caveat_of(constrained(replayed, 1), "structured-output").text
    assert said.startswith("1 of 5 requests have structured output")
    assert said.endswith("so α, which counts all requests, holds only for the other 80%")
    assert caveat_of(constrained(replayed, 0), "structured-output") is None
    assert caveat_of(constrained(served, 1), "structured-output") is None  # its grammar was counted


@pytest.mark.parametrize(
    ("under_way", "said"),
    [
        ((SMALL, INT4, SELF_DRAFT), "cut off at candidate 2 of 3, with 2 of 5 responses"),
        ((BIG,), "cut off at candidate 1 of 1, with"),  # it failed, and is not waited for
        ((SELF_DRAFT,), "cut off before the first candidate, with"),
    ],
)
def test_responses_and_candidates_under_way_are_counted(scene, under_way, said):
    scene.requests(2, ALL)
    scene.replay("r0", ALL, INT4)
    scene.failure("big", "another vocabulary")
    run = scene.observed(1, requests=5, under_way=under_way)
    assert f"not finished ({said}" in unfinished(run)


def test_it_is_a_caveat_of_the_answer(scene):
    scene.requests(3, ALL, SMALL)
    run = scene.observed(1, under_way=(SMALL,))
    assert unfinished(run) in [caveat.text for caveat in recommend(run).caveats]


def test_a_sweep_that_ended_without_some_responses_is_not_finished(scene):
    scene.requests(2, ALL)
    assert "not finished (2 of 9 responses):" in unfinished(scene.observed(1, requests=9))
    assert unfinished(scene.observed(1, requests=2)) is None
