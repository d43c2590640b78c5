"""Caveats of a run on a serving engine."""

from dataclasses import replace

import pytest
from msgspec import structs
from planner.engine_run import answers, run
from scenes import BIG, SMALL

from draftbench.planner.cost_sources import read_engine_costs
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend


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
    assert "plain decoding became 13% slower" in found.text
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
            "25% of the log's load: 5 answers of its 20 rows, 1 times as fast; --time-scale 4",
        ),
        (
            20,
            2.0,
            "50% of the log's load: 5 answers of its 20 rows, 2 times as fast; --time-scale 4",
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


def test_replay_speaks_for_the_requests_without_structured_output():
    made = run(*answers(0), *answers(1))
    traffic = structs.replace(made.manifest.traffic, requests=5, constrained=1)
    made = replace(made, manifest=structs.replace(made.manifest, traffic=traffic))
    said = caveat_of(made, "structured-output").text
    assert said.startswith("1 of 5 requests have structured output")
    assert said.endswith("replay speaks for the other 80%")
    assert caveat_of(run(*answers(0), *answers(1)), "structured-output") is None
