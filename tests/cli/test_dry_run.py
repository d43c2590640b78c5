"""What a dry run says of models whose sizes are round numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest
from scenes import manifest, query, sheet

from draftbench.cli.dry_run import EnginePlan, built_in_dry_run, engine_dry_run
from draftbench.records import Candidate
from draftbench.report.terminal.dry_run import render
from draftbench.sweep.options import SweepOptions


def counted(name, size):
    return sheet(
        name, size, second_layout_bytes={"none": size, "int4": 0}, kv_bytes_per_token=1_000_000
    )


@pytest.fixture
def planned(tmp_path):
    """planned(candidates, **options): 2 GB and 1 GB; ten requests of 60 tokens and at most 40 to
    write, of which four decode together; three k's measured. Scored side by side they take 1600
    tokens of cache.
    """
    standard = [
        Candidate(draft="small"),
        Candidate(draft="small", quant="int4"),
        Candidate(draft="ngram"),
        Candidate(draft="self"),
    ]

    def make(candidates=standard, **options):
        asked = {"drafts": ("small",), "ks": (1, 2, 3), "batches": (1, 4)} | options
        prepared = SimpleNamespace(
            options=SweepOptions("big", traffic=query(tmp_path), **asked),
            candidates=candidates,
            prompt_tokens=[(60, 40)] * 10,
            manifest=manifest(ks=asked["ks"], batches=asked["batches"]),
        )
        sheets = {c.draft: counted(c.draft, 1_000_000_000) for c in candidates}
        sheets = {name: sheets[name] for name in sheets if name not in ("ngram", "self")}
        return built_in_dry_run(prepared, counted("big", 2_000_000_000), sheets)

    return make


@pytest.fixture
def many(planned):
    """many(name, count): a plan of drafts with numbers behind their name."""
    return lambda name, count: planned([Candidate(draft=f"{name}-{n:02}") for n in range(count)])


@pytest.mark.parametrize(
    "line",
    [
        # 4 rows of 100 tokens for 3 k's and the baseline, 1 MB a token for each of the two.
        # Weights of no level are held twice, those of int4 are not.
        "draft target draft weights held twice cache total",
        "small 2 GB 1 GB 3 GB 3.2 GB 9.2 GB",
        "small:int4 2 GB 250 MB 2 GB 3.2 GB 7.45 GB",
        # Prompt lookup takes nothing, the self draft a second cache.
        "ngram 2 GB 0 kB 2 GB 1.6 GB 5.6 GB",
        "self 2 GB 0 kB 2 GB 3.2 GB 7.2 GB",
        # A step takes .1 s: 50 of 8 rows, each 1.7 times as long, and 600 tokens at a tenth of it.
        "target writes at most 400 tokens 15 s",
        "grid k = 1–3; concurrency 1, 4; greedy drafting",
    ],
)
def test_memory_follows_from_sizes_and_work_is_listed(planned, line):
    text = render(planned(), "table", 120)
    assert line in [" ".join(shown.split()) for shown in text.splitlines()]


@pytest.mark.parametrize(
    ("measure", "tokens"), [("best", 16 * 4 * 100), ("none", 16 * 2 * 100), ("replay", 1600)]
)
def test_every_cell_of_the_largest_batch_has_its_caches(planned, measure, tokens):
    """Three k's and the baseline; where nothing is decoded, step times at two contexts."""
    plan = planned(measure=measure, batches=(1, 16))
    assert plan.cache_tokens == tokens
    assert plan.memory[0].cache == tokens * 2_000_000


def test_json_has_seconds_and_bytes_as_numbers(planned):
    data = json.loads(render(planned(), "json", 120))
    assert (data["requests"], data["prompt_tokens"], data["ks"]) == (10, 600, [1, 2, 3])
    assert data["passes"][1]["how_much"] == "at most 400 tokens"
    assert data["seconds"] == pytest.approx(sum(each["seconds"] for each in data["passes"]))
    assert data["memory"][1] == {
        "candidate": "small:int4",
        "target_weights": 2_000_000_000,
        "draft_weights": 250_000_000,
        "second_layout": 2_000_000_000,
        "cache": 3_200_000_000,
        "together": 7_450_000_000,
    }


def test_with_one_layout_no_weights_are_held_once_more(planned):
    shown = render(planned(one_layout=True), "table", 120)
    assert "Memory\ndraft       target  draft weights   cache    total" in shown
    assert "twice" not in shown


def test_markdown_has_a_table_for_each_part(planned):
    shown = render(planned(), "markdown", 120)
    assert shown.count("### ") == 3
    assert "| ngram | 2 GB | 0 kB | 2 GB | 1.6 GB | 5.6 GB |" in shown


@pytest.mark.parametrize("name", ["small", "a-very-long-name-of-an-organisation/and-a-model" * 3])
def test_it_fits_one_screen(many, name):
    lines = render(many(name, 12), "table", 200).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 88
    assert lines[0].startswith("This sweep would take about ")
    assert lines[0].endswith(" and 9.2 GB of memory")
    assert "  and 9 more that need less: --format markdown" in lines
    assert "  Held twice: for passes over several tokens; not with --one-layout." in lines
    assert not [line for line in lines if line.startswith("…")]


def test_markdown_has_every_draft(many):
    assert render(many("small", 12), "markdown", 88).count("\n| small-") == 12


def test_candidates_are_named_as_far_as_they_fit(many):
    text = render(many("a-draft", 20), "table", 88)
    assert "a-draft-04 and 15 more\n" in text


@pytest.fixture
def on_an_engine():
    """A target whose step takes .1 s on a CPU, ten requests of at most 40 tokens, four of which are
    measured in a closed loop; the plain server is started twice and the draft's once, 30.1 s each.
    """

    def make(arrivals, span, in_flight=16, **changes):
        plan = EnginePlan(
            candidates=[Candidate(draft="ngram")],
            served=[Candidate(draft="ngram")],
            least=1,
            most=8,
            grid=8,
            restarts=1,
            in_flight=in_flight,
            plain=2,
            prompts=[(60, 40)] * 10,
            measured=4,
            target=sheet("big", 2_000_000_000),
            sheets={},
            running=False,
            span=span,
        )
        return engine_dry_run(manifest(engine="vllm", arrivals=arrivals, **changes), plan)

    return make


def test_one_time_is_not_a_range(on_an_engine):
    plan = on_an_engine("closed", None)
    title = "This sweep would take about 2.7 min to 8.1 min\n"
    assert render(plan, "table", 80).startswith(title)
    same = msgspec.structs.replace(plan, least=plan.most)
    assert render(same, "table", 80).startswith("This sweep would take about 8.1 min\n")


def test_servers_are_asked_for_as_long_as_the_log_is(on_an_engine):
    """First 400 tokens one by one; then the log three times, and the answer to its last request."""
    plan = on_an_engine("log", 600.0)
    assert plan.least.seconds == pytest.approx(3 * 30.1 + 40 + 3 * (600 + 4))
    assert plan.least.tokens == 4 * 400
    shown = " ".join(render(plan, "table", 100).split())
    assert "asked for as long as the requests take to arrive" in shown


def test_a_server_that_requests_wait_for_takes_longer_than_their_arrivals(on_an_engine):
    """400 tokens, two at a time, are 20 s; they arrive in 10."""
    plan = on_an_engine("poisson:1", 10.0, in_flight=2)
    assert plan.least.seconds == pytest.approx(3 * 30.1 + 40 + 3 * 20)


def test_in_a_closed_loop_a_server_takes_what_its_answers_take(on_an_engine):
    """At one in flight the first server writes 400 tokens; the others answer 160 each. At four in
    flight all three answer 160 in a quarter of the time.
    """
    assert on_an_engine("closed", None).least.seconds == pytest.approx(3 * 30.1 + 40 + 2 * 16)
    at_four = on_an_engine("closed", None, batches=(1, 4)).least
    assert at_four.seconds == pytest.approx(3 * 30.1 + 40 + 2 * 16 + 3 * 4)
    assert at_four.tokens == 400 + 2 * 160 + 3 * 160
