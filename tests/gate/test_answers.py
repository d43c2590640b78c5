"""The answers of runs on several runners, each with the load that it is of."""

import dataclasses

import pytest
from scenes import SMALL, facts, manifest, replay, served, trajectory

from draftbench.cli.compare import answers as answers_of
from draftbench.gate.compare import compare_runs, side_by_side, why_unpaired
from draftbench.planner.recommend import recommend
from draftbench.report.answer import speed_ups
from draftbench.report.text import render_sections, with_ends
from draftbench.run_folder.run import run_of

NAMES = [f"r{n}" for n in range(6)]


def engine_run(names=NAMES, loads=(1,), **question):
    """Plain: 8 tokens in 0.8 s. With k = 1, where all is accepted: 4 rounds of 0.1 s, so 2×; the
    same at every load.
    """
    load = {} if question.get("arrivals", "closed") == "closed" else {"load": "open"}
    rows = [
        served(candidate, k, *(0.5 + 0.1 * at for at in range(len(pieces))), chunks=pieces,
               request=name, concurrency=concurrency, **told, **load)
        for name in names
        for concurrency in loads
        for candidate, k, pieces, told in (
            (None, 0, (1,) * 9, {}),
            (SMALL, 1, (1, 2, 2, 2, 2), {"by_round": ((1, 1),) * 4}),
        )
    ]  # fmt: skip
    along = [trajectory(name, 9, origin="engine", margins=(), argmax=()) for name in names]
    replays = [replay((1.0,) * 8, request=name) for name in names]
    asked = {"engine": "vllm", "ks": (1,), "concurrency": loads, **question}
    return run_of(manifest(**asked), [*along, *replays, *rows])


def decoder_run():
    """The same without costs: its speed is unknown."""
    along = [trajectory(name, 9) for name in NAMES]
    replays = [replay((1.0,) * 8, request=name) for name in NAMES]
    return run_of(manifest(ks=(1,)), [*along, *replays])


def test_runs_of_two_targets_or_of_other_requests_cannot_be_paired():
    def run(names=NAMES, parameters=10, **changes):
        along = [trajectory(name, 9) for name in names]
        return run_of(manifest(ks=(1,), **changes), [facts(None, parameters=parameters), *along])

    assert why_unpaired(run(), run(names=[*NAMES[:1], "new"])) is None
    assert why_unpaired(run(), run(names=["new"])).startswith("no request is in both runs: only ")
    other = "the targets are different models (target and target): only their answers"
    assert why_unpaired(run(), run(parameters=11)).startswith(other)


def test_every_answer_names_its_runner_and_its_load():
    runs = [decoder_run(), engine_run(loads=(1, 4)), engine_run(arrivals="poisson:2")]
    found = side_by_side(["a", "b", "c"], runs)
    assert [(each.run, each.runner, each.load) for each in found.answers] == [
        ("a", "built-in decoder", "concurrency 1"),
        ("b", "vllm", "concurrency 1"),
        ("b", "vllm", "concurrency 4"),
        ("c", "vllm", "poisson:2"),
    ]
    assert found.answers[0].speedup_deciding is None
    assert [each.speedup_deciding.value for each in found.answers[1:]] == pytest.approx([2.0] * 3)
    assert {each.decision for each in found.answers[1:]} == {"speculate"}
    assert {(each.draft, each.k, each.alpha.value) for each in found.answers[1:]} == {
        ("small", 1, 1.0)
    }
    (told,) = [caveat for caveat in found.caveats if "different loads" in caveat]
    assert "active rows" in told


@pytest.mark.parametrize(
    ("a", "b", "comparable"),
    [
        ({}, {"arrivals": "poisson:2"}, False),
        ({"arrivals": "poisson:2"}, {"arrivals": "poisson:3"}, False),
        ({"arrivals": "log", "time_scale": 1.0}, {"arrivals": "log", "time_scale": 2.0}, False),
        ({"arrivals": "log", "time_scale": 2.0}, {"arrivals": "log", "time_scale": 2.0}, True),
        (
            {"arrivals": "poisson:2", "max_concurrency": 4},
            {"arrivals": "poisson:2", "max_concurrency": 16},
            False,
        ),
        ({"arrivals": "poisson:2", "max_concurrency": 4}, {"arrivals": "poisson:2"}, True),
    ],
)
def test_rounds_and_speed_ups_at_other_arrivals_are_not_subtracted(a, b, comparable):
    runs = [dataclasses.replace(engine_run(**asked), replays=()) for asked in (a, b)]
    (changed,) = compare_runs(("a", "b"), *runs).candidates
    figures = [figure for figure in changed.figures if figure.figure != "α"]
    assert [figure.figure for figure in figures] == ["tokens per round", "S measured"]
    for figure in figures:
        assert (figure.difference is not None) is comparable
        assert ("not comparable" in (figure.obstacle or "")) is not comparable


def test_a_log_is_named_with_its_pace():
    runs = [engine_run(arrivals="log", time_scale=pace) for pace in (2.0, 1.0)]
    assert [each.load for each in side_by_side(["a", "b"], runs).answers] == ["log ×2", "log ×1"]


def test_the_speed_up_is_the_one_that_the_answer_of_a_run_goes_by():
    runs = [decoder_run(), engine_run(), engine_run(NAMES[:5])]
    answer = recommend(runs[1])
    answers = side_by_side(["a", "b", "c"], runs)
    assert answers.answers[1].speedup_deciding == answer.speedup_deciding
    assert "speed-up ×" in render_sections(answers_of(answers), "table", 100)
    rows = {row[0]: row[1] for row in speed_ups(answer).rows}
    assert rows["deciding"] == with_ends(answer.speedup_deciding, "×")


def test_settings_are_listed_for_every_run():
    runs = [engine_run(), engine_run(ks=(1, 2)), engine_run(engine_args="--x")]
    found = side_by_side(["a", "b", "c"], runs)
    assert {each.fact: each.values for each in found.question} == {
        "ks": ("1", "1, 2", "1"),
        "engine_args": (None, None, "--x"),
    }
    assert not any("different loads" in caveat for caveat in found.caveats)


def test_runs_of_other_requests_are_said_to_be():
    found = side_by_side(["a", "b"], [engine_run(), engine_run(NAMES[:5])])
    assert found.common_requests == 5
    assert "the runs did not measure the same requests" in found.caveats
    assert side_by_side(["a", "b"], [engine_run(), engine_run()]).caveats == ()


def test_the_table_has_a_letter_for_every_run():
    found = side_by_side(["one", "two"], [decoder_run(), engine_run()])
    text = render_sections(answers_of(found), "table", 100)
    assert text.startswith(
        "A: one (6 requests, built-in decoder)\nB: two (6 requests, vllm)\n6 requests in common\n"
    )
    rows = [line.split()[:7] for line in text.splitlines()]
    assert ["B", "concurrency", "1", "speculate", "small", "1", "2.00"] in rows
