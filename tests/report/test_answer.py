"""An answer in words and tables, on hand-made records.

Without a draft 8 tokens take 8 s. Three passes of 1 s and five draft steps of 0.1 s are 3.5 s;
decoding took 4 s.
"""

import hand
import msgspec
import pytest
from msgspec.structs import replace
from planner.engine_run import PLAIN, in_rounds, served_run
from scenes import SMALL, failure, manifest, replay, served, trajectory

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import (
    Caveat,
    Distribution,
    LargerSweep,
    Latency,
    Side,
    Slo,
    SloKept,
)
from draftbench.planner.settle import next_sweep as sweep_after
from draftbench.report.answer import (
    candidates,
    every_section,
    headline,
    latency,
    lead,
    loads,
    next_sweep,
    reasons,
    speed_up,
)
from draftbench.report.text import shown
from draftbench.run_folder.run import run_of


def section(answer, title):
    (found,) = [each for each in every_section(answer) if each.title == title]
    return found


def one_decoded():
    every = hand.perfect()
    return [r for r in every if getattr(r, "request", "r0") == "r0" or not hasattr(r, "k")]


@pytest.mark.parametrize(
    ("records", "asked", "begins", "ends"),
    [
        # Five requests are few.
        (
            hand.perfect(requests=5),
            {"min_speedup": 3.0},
            "Best: small, k = 2, 2.04× (95% interval 1.94–2.28), prefill excluded; 5 requests, all",
            "3× is asked for",
        ),
        (
            hand.undecoded(),
            {},
            "Speed-up 2.29× (95% interval 1.97–2.65), prefill excluded; ",
            "predicted for 10 requests",
        ),
        (
            one_decoded(),
            {},
            "Speed-up ",
            "predicted for 10 requests (1 decoded: too few to correct it)",
        ),
        # 9 s without speculation, 6 s with it as decoded, 5.5 s by passes alone.
        (
            [*hand.perfect(requests=5), *hand.prefills()],
            {"objective": "latency"},
            "Speed-up 1.52× (95% interval 1.47–1.66), prefill included",
            "all decoded",
        ),
    ],
)
def test_a_speed_up_is_said_with_what_it_rests_on(records, asked, begins, ends):
    said = speed_up(hand.answer(records, asked=asked))
    assert said.startswith(begins)
    assert said.endswith(ends)


def test_where_no_draft_pays_that_is_the_headline():
    answer = hand.answer(hand.perfect(requests=5), asked={"min_speedup": 3.0})
    assert headline(answer) == "Do not speculate (provisional)"


def test_costs_from_elsewhere_are_not_those_of_the_engine_that_served_the_run():
    answer = replace(hand.answer(hand.undecoded()), engine="vllm 0.32.0", costs_from="SGLang 9.9")
    assert speed_up(answer).endswith("predicted for 10 requests with costs of SGLang 9.9")


@pytest.mark.parametrize(
    ("question", "load"),
    [
        ({"arrivals": "poisson:6", "concurrency": (1, 4)}, "poisson:6/s"),
        ({"arrivals": "log", "time_scale": 2.0, "concurrency": (4,)}, "the log's pace ×2"),
        ({"arrivals": "log", "time_scale": 1.0}, "the log's pace"),
    ],
)
def test_requests_at_their_times_are_one_load_named_by_their_arrivals(question, load):
    rows = [
        served(
            SMALL if k else None,
            k,
            *(seconds * (n + 1) for n in range(9)),
            **({"by_round": ((2, 2), (2, 2), (2, 1))} if k else {}),
            request=request,
            load="open",
            concurrency=3,
        )
        for request in "abcdef"
        for k, seconds in ((0, 0.1), (2, 0.05))
    ]
    responses = [
        trajectory(request, 9, origin="engine", margins=(), argmax=()) for request in "abcdef"
    ]
    replays = [replay((1.0, 1.0) * 4, request=request) for request in "abcdef"]
    asked = manifest(engine="vllm", ks=(2,), **question)
    answer = recommend(run_of(asked, [*responses, *replays, *rows]))
    assert headline(answer).partition(": ")[0].endswith(f" at {load} (provisional)")
    assert [level.tokens_per_second_plain for level in answer.by_concurrency] == [None]
    waits = section(answer, "Latency, measured").notes[0]
    assert f"at {load}. A chunk" in waits


@pytest.mark.parametrize(
    ("speculative", "costs", "said"),
    [
        (
            Estimate(1.0, 0.75, 1.0),
            None,
            "Requests with ttft ≤ 200 ms, e2e ≤ 1500 ms: 50% (25%–75%) without speculation, 100% "
            "(75%–100%) with speculation.",
        ),
        # What costs given from elsewhere say nothing of.
        (
            None,
            "an engine 1.0",
            "Requests in vllm 0.1 with ttft ≤ 200 ms, e2e ≤ 1500 ms: 50% (25%–75%) without "
            "speculation.",
        ),
    ],
)
def test_the_share_of_requests_within_the_limits_is_said_with_its_interval(
    speculative, costs, said
):
    kept = SloKept(Slo(ttft=0.2, e2e=1.5), Estimate(0.5, 0.25, 0.75), speculative)
    answer = replace(hand.answer(hand.perfect()), slo_kept=kept, engine="vllm 0.1")
    assert said in lead(replace(answer, costs_from=costs))


def test_beneath_alpha_it_is_said_that_replay_knew_no_grammar():
    answer = hand.answer(hand.perfect())
    caveat = Caveat("structured-output", "1 of 5 requests have structured output")
    told = replace(answer, caveats=(*answer.caveats, caveat))
    for each, said in ((answer, False), (told, True)):
        (legend,) = candidates(each).notes
        assert ("α acceptance rate, replayed without grammars;" in legend) is said


def test_the_legend_explains_what_is_shown_and_nothing_else():
    decoded, undecoded, single = (
        candidates(hand.answer(records)).notes[0]
        for records in (hand.perfect(), hand.undecoded(), hand.one_request())
    )
    assert ["* not decoded" in words for words in (decoded, undecoded)] == [False, True]
    assert ["no interval" in words for words in (decoded, single)] == [False, True]


def test_an_alpha_that_a_draft_cannot_have_is_explained(answers):
    """Prompt lookup has none; the only draft of the other run has one."""
    for run, said in (("tinyllama-stories-40", True), ("tinyllama-stories", False)):
        (legend,) = candidates(answers[run]).notes
        assert ("α acceptance rate (draft models only)" in legend) is said


def test_what_was_not_decoded_is_marked_and_the_control_explained(answers):
    answer = answers["qwen2.5-coder"]
    table = candidates(answer)
    assert [row[3][1] for row in table.rows] == [" ", "*", " ", " ", "*"]
    assert "; self: the target drafts" in table.notes[0]
    without_it = candidates(answer, most=4)
    assert len(without_it.rows) == 4
    assert "self" not in without_it.notes[0]


@pytest.mark.parametrize(
    ("alpha", "ceiling", "why"),
    [
        (0.95, 0.95, ", α < 1 at temperature > 0"),
        (0.99, None, ", α < 1 at near ties"),
        (1.0, None, ""),
        (0.9, None, ""),  # near ties alone do not explain it: a caveat does
    ],
)
def test_the_control_says_why_its_acceptance_is_below_one(answers, alpha, ceiling, why):
    answer, of_self = answers["qwen2.5-coder"], Estimate(alpha, alpha, alpha)
    evaluations = tuple(
        replace(e, alpha=of_self) if e.draft == "self" else e for e in answer.evaluations
    )
    (legend,) = candidates(replace(answer, evaluations=evaluations, ceiling_alpha=ceiling)).notes
    assert legend.endswith(f"; self: the target drafts{why}")


def test_each_speed_up_has_its_name_and_what_it_covers():
    records = [*hand.perfect(requests=8), *hand.prefills()]
    records += [trajectory("r8"), hand.replay("r8", (1.0,) * 8)]
    # 8 / 3.5 predicted, and 8 / 4 on those that were measured: with one cell most of the difference
    # is taken for the draft's, the rest for luck.
    found = section(hand.answer(records), "Every speed-up of the best").rows
    assert [row[0] for row in found] == [
        "deciding",
        "expected",
        "predicted",
        "measured",
        "expected, end to end",
        "predicted, end to end",
    ]
    assert found[0][1:] == ["2.04× (1.94–2.28)", "used for the decision"]
    assert found[1][1:] == ["2.04× (1.94–2.28)", "the prediction, corrected by measured times"]
    assert found[2][1:] == ["2.29× (2.29–2.29)", "9 requests, from replay and pass timings"]
    assert found[3][1] == "2.00× (2.00–2.00)"
    assert found[3][2] == "8 requests decoded; the prediction for them is 14.3% higher"
    assert found[5][1:] == ["1.64× (1.64–1.64)", "prefills included"]


@pytest.mark.parametrize(
    ("accept", "source"),
    [((), "the rounds of other starts"), ((1.0,) * 8, "replay and the rounds of other starts")],
    ids=["counted", "replayed"],
)
def test_a_k_between_those_that_an_engine_started_is_predicted_from_replay_only_if_there_is_one(
    accept, source
):
    # All is accepted: two rounds at k = 3 as at k = 4, and shorter ones.
    rows = [*PLAIN, *in_rounds(1, 0.12), *in_rounds(4, 0.18)]
    answer = recommend(served_run(*rows, ks=(1, 3, 4), accept=accept))
    assert answer.leader.k == 3
    predicted = {row[0]: row[2] for row in section(answer, "Every speed-up of the best").rows}
    assert predicted["predicted"] == f"5 requests, from {source}"


def test_the_candidates_have_every_figure_of_their_best_k():
    found = section(hand.answer(hand.perfect(requests=5)), "Candidates at their best k")
    assert dict(zip(found.head, map(shown, found.rows[0]), strict=True)) == {
        "": "→",
        "draft": "small",
        "k": "2",
        "α": "1.00 ±0.00",
        "τ": "2.67 ±0.00",  # 8 tokens in 3 rounds
        "tok/round": "2.67 ±0.00",  # each of which drafted
        "c": "0.10 ±0.00",
        "v(k+1)": "1.00 ±0.00",
        "predicted ×": "2.29 ±0.00",
        "measured ×": "2.00 ±0.00",
        "expected ×": "2.04 ±0.17",
        "memory": "0.059 kB",  # 40 bytes, and 19 tokens of a byte each
    }


def test_every_caveat_and_failure_is_named():
    answer = hand.answer([*hand.perfect(), failure("other", "out of memory")])
    *caveats, more = section(answer, "Caveats").notes
    assert caveats == [f"{caveat.kind}: {caveat.text}" for caveat in answer.caveats]
    assert "draftbench explain" in more
    assert section(answer, "Not measured").notes == ["other: out of memory"]


def test_loads_are_shown_where_several_were_asked_with_their_units():
    records = hand.loaded()
    assert loads(hand.answer(records)).rows == ()
    (untimed,) = loads(hand.answer(records, asked={"concurrency": (8,)})).rows
    assert untimed == ["8", "costs unknown", None, None, None]
    found = loads(hand.answer(records, concurrency=(1, 2)))
    # At one row 8 tokens in 8 s, or in 4, after a second of prefill and with the draft two.
    assert found.rows[0][:2] == ["1", "small, k = 2"]
    assert found.rows[1][:2] == ["2", "do not speculate (best: small, k = 1)"]
    assert found.rows[0][3:] == ["0.99 → 2.02", "1009 → 662"]
    assert found.head[3:] == ["tokens/s without → with", "ms/token"]
    assert found.notes[0].startswith(
        "Without → with speculation, by the expected speed-up. tokens/s: of all requests"
    )
    asked = {"objective": "cost", "price_per_hour": 3.6}
    assert "tokens/$" in loads(hand.answer(records, concurrency=(1, 2), asked=asked)).head[3]


def side(p99: float | None, largest: float) -> Side:
    waits = Distribution(values=100, p50=0.1, p90=0.1, p99=p99, largest=largest)
    return Side(time_per_output_token=waits, chunk_gap=waits, time_to_first_token=waits)


def waits_of(speculative: Side) -> Latency:
    """Beside a p99 of 0.3 s and a largest value of 0.5 s without speculation."""
    return Latency(
        draft="d",
        quant="none",
        k=2,
        concurrency=1,
        plain=side(0.3, 0.5),
        speculative=speculative,
        p99_ratio=1.0,
        p99_ratio_of="p99",
    )


def test_gaps_that_an_engine_does_not_report_are_called_unknown_once():
    speculative = msgspec.structs.replace(side(0.3, 0.5), chunk_gap=None)
    found = latency(waits_of(speculative), "SGLang 0.5.23")
    assert [row[0] for row in found.rows if row[0]] == [
        "time per output token",
        "time to first token",
    ]
    unknown = "Gaps between chunks are unknown: SGLang 0.5.23 does not report its rounds."
    assert " ".join(found.notes).count(unknown) == 1


@pytest.mark.parametrize(
    ("speculative", "words"),
    [
        (side(0.4, 0.5), "gap between chunks, p99 400 instead of 300 ms"),
        (side(None, 0.9), "time to first token, largest value 900 instead of 500 ms"),
        (side(0.3, 0.9), None),
        # By 2%, which timing alone may differ by.
        (side(0.306, 0.9), None),
    ],
)
def test_a_worse_tail_is_named_with_its_percentile(speculative, words):
    worse = [
        note
        for note in latency(waits_of(speculative)).notes
        if note.startswith("Worse with speculation")
    ]
    assert [words in note for note in worse] == ([] if words is None else [True])


@pytest.mark.parametrize(
    ("processes", "said"), [(1, "about 60 requests"), (3, "about 60 requests in 3 processes")]
)
def test_the_headline_names_a_sweep_that_settles_it(processes, said):
    larger = LargerSweep(requests=60, processes=processes, chance=0.9)
    bare = replace(hand.answer(hand.perfect()), decision="inconclusive", choice=None)
    assert headline(replace(bare, larger_sweep=larger)) == f"Inconclusive: {said} would settle it"
    assert headline(replace(bare, larger_sweep=replace(larger, chance=0.8))) == "Inconclusive"


@pytest.mark.parametrize(
    ("requests", "few"),
    [
        (1, "one request is"),
        (4, "4 requests are"),
        (5, "5 requests of such unequal length are"),
    ],
)
def test_the_headline_says_why_requests_are_too_few(requests, few):
    alone = {"speedup_without_interval": 1.5, "requests": requests}
    bare = replace(hand.answer(hand.perfect()), decision="inconclusive", choice=None, **alone)
    assert headline(bare) == f"Inconclusive: {few} too few to decide by"


@pytest.mark.parametrize(
    ("settled_by", "larger", "rows", "engine", "said", "words"),
    [
        ("sample", (60, 3, 0.9), 60, None,
         "To settle it: a sweep with --sample 60 --processes 3, in another --out.",
         "--target ./big --sample 60 --processes 3"),
        ("sample", (60, 3, 0.9), 59, None,  # the traffic has no 60
         "To settle it: a sweep with --sample 60 --processes 3, in another --out.", None),
        ("sample", (60, 3, 0.9), 60, "vllm 0.32",
         "To settle it: a sweep with --sample 60 --measure-requests 60 --restarts 3, in another "
         "--out.",
         "--target ./big --sample 60 --measure-requests 60 --restarts 3"),
        ("sample", (120, 1, 0.93), 120, None,
         "To settle it: a sweep with --sample 120, in another --out.",
         "--target ./big --sample 120"),
        # More requests than the traffic has are not asked for without a word.
        ("sample", (100, 1, 0.66, 42), 42, None,
         "Perhaps 100 requests settle it (--sample 100, in another --out; it needs more traffic "
         "than these 42 distinct requests): 66% of such sweeps would; no realistic sample size "
         "reaches 90%.",
         None),
        ("sample", (100, 1, 0.91, 42), 42, None,
         "To settle it: a sweep with --sample 100, in another --out; it needs more traffic than "
         "these 42 distinct requests.", None),
        ("sample", (100, 1, 0.897), 100, None,  # not 90%, which no size reaches
         "Perhaps 100 requests settle it (--sample 100, in another --out): 89% of such sweeps "
         "would; no realistic sample size reaches 90%.", None),
        ("sample", (100, 3, 0.66), 100, None,
         "Perhaps 100 requests in 3 processes settle it (--sample 100 --processes 3, in another "
         "--out): 66% of such sweeps would; no realistic sample size reaches 90%.", None),
        ("sample", None, 42, None, "Next: the same sweep with --sample 30, in another --out.",
         "--target ./big --sample 30"),
        ("sample", None, 29, None,  # the traffic has no 30
         "Next: the same sweep with --sample 30, in another --out.", None),
        ("load", None, 42, None, "Next: a sweep that measures concurrency 1.",
         "--target ./big --sample=9 --concurrency 1"),
        ("decoding", None, 42, None,
         "Next: decode it, by the same sweep with --measure best --measure-requests 10.",
         "--target ./big --sample=9 --out 'a run' --measure best --measure-requests 10"),
        ("timing", None, 42, None,
         "Next: time and decode the drafts, by the same sweep with --measure best.",
         "--target ./big --sample=9 --out 'a run' --measure best"),
        ("resuming", (60, 3, 0.9), 60, None,
         "Next: repeat the sweep's own command, which resumes it.",
         "--target ./big --sample=9 --out 'a run'"),
        ("quiet", (60, 3, 0.9), 60, None,
         "Next: the same sweep on a quiet machine, in another --out.",
         "--target ./big --sample=9"),
        ("baseline", None, 42, None,  # a server that only its user knows
         "Next: the same sweep with --baseline-server URL, in another --out.", None),
    ],
)  # fmt: skip
def test_an_open_decision_says_what_would_settle_it_and_gives_the_command(
    settled_by, larger, rows, engine, said, words
):
    answer = replace(
        hand.answer(hand.perfect()),
        decision="inconclusive",
        settled_by=settled_by,
        larger_sweep=larger and LargerSweep(*larger),
        engine=engine,
    )
    following = sweep_after(
        settled_by,
        answer.larger_sweep,
        concurrency=1,
        requests=answer.requests,
        distinct=rows,
        engine=engine,
    )
    answer = replace(answer, next_sweep=following)
    assert reasons(answer)[-1] == said
    command = "draftbench sweep --target ./big --sample=9 --out 'a run'"
    found = next_sweep(answer, hand.manifest(command=command, rows=rows, merged=0), "a run")
    assert found == (words and f"sweep {words}")
