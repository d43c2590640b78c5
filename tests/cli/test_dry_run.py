"""What a dry run says of models whose sizes are round numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from scenes import manifest, query, sheet

from draftbench.cli import dry_run
from draftbench.cli.dry_run import of_decoder, of_engine
from draftbench.records import Candidate
from draftbench.report.terminal.dry_run import render
from draftbench.sweep.engine_arms import Serving
from draftbench.sweep.options import ServingOptions, SweepOptions
from draftbench.sweep.work import DeviceSpeed

CORES = DeviceSpeed(reading=20e9, layer=1e-4, token=1 / 10, loading=45e6)


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
        asked = {"drafts": ("small",), "ks": (1, 2, 3), "concurrency": (1, 4)} | options
        prepared = SimpleNamespace(
            options=SweepOptions("big", traffic=query(tmp_path), **asked),
            candidates=candidates,
            prompt_tokens=[(60, 40)] * 10,
            manifest=manifest(ks=asked["ks"], concurrency=asked["concurrency"], requests=10),
        )
        sheets = {c.draft: counted(c.draft, 1_000_000_000) for c in candidates}
        sheets = {name: sheets[name] for name in sheets if name not in ("ngram", "self")}
        return of_decoder(prepared, counted("big", 2_000_000_000), sheets, CORES)

    return make


@pytest.fixture
def many(planned):
    """many(name, count): a plan of drafts with numbers behind their name."""
    return lambda name, count: planned([Candidate(draft=f"{name}-{n:02}") for n in range(count)])


@pytest.mark.parametrize(
    "line",
    [
        # 16 rows of 100 tokens that the target scores, 1 MB a token for each of the two.
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
    ("measure", "tokens"), [("best", 16 * 3 * 100), ("none", 16 * 2 * 100), ("replay", 1600)]
)
def test_every_cell_of_the_largest_batch_has_its_caches(planned, measure, tokens):
    """Two k's and the baseline; where nothing is decoded, step times at two contexts."""
    plan = planned(measure=measure, concurrency=(1, 16))
    assert plan.memory[0].cache == tokens * 2_000_000


def test_json_has_seconds_and_bytes_as_numbers(planned):
    data = json.loads(render(planned(), "json", 120))
    assert (data["prompt_tokens"], data["manifest"]["question"]["ks"]) == (600, [1, 2, 3])
    assert data["work"][1]["how_much"] == "at most 400 tokens"
    assert data["most_seconds"] == pytest.approx(sum(each["seconds"] for each in data["work"]))
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
    assert lines[0].startswith("This sweep would take up to about ")
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
def on_an_engine(tmp_path, monkeypatch):
    """A target whose step takes .1 s on a CPU, ten requests of at most 40 tokens, four of which are
    measured in a closed loop; the plain server is started twice and the draft's once at least and
    at eight k's at most, 30.1 s each.
    """

    def make(arrivals, span, **changes):
        monkeypatch.setattr(dry_run, "_span", lambda prepared: span)
        options = ServingOptions(engine="vllm", arrivals=arrivals, slots=changes.pop("slots", None))
        ngram = Candidate(draft="ngram")
        prepared = SimpleNamespace(
            options=SweepOptions(
                "big",
                ("ngram",),
                query(tmp_path),
                measure_requests=4,
                serving=options,
                **{"ks": (2,), **changes},
            ),
            serving=Serving("vllm", options, None, {}, {ngram: "none"}, ()),
            candidates=[ngram],
            prompt_tokens=[(60, 40)] * 10,
            manifest=manifest(engine="vllm", arrivals=arrivals, requests=10),
        )
        return of_engine(prepared, sheet("big", 2_000_000_000), {}, CORES)

    return make


def test_one_time_is_not_a_range(on_an_engine):
    many = on_an_engine("closed", None, ks=tuple(range(2, 10)))
    title = render(many, "table", 80).splitlines()[0]
    assert title == "This sweep would take about 3.5 min to 8.1 min"
    one = render(on_an_engine("closed", None), "table", 80).splitlines()[0]
    assert one == "This sweep would take about 2.7 min"


def test_servers_are_asked_for_as_long_as_the_log_is(on_an_engine):
    """First 400 tokens one by one; then the log three times, and the answer to its last request."""
    plan = on_an_engine("log", 600.0)
    assert plan.least_seconds == pytest.approx(3 * 30.1 + 40 + 3 * (600 + 4))
    assert plan.work[0].how_much == "3 servers started, 1600 tokens written"
    shown = " ".join(render(plan, "table", 100).split())
    assert "asked for as long as the requests take to arrive" in shown


def test_a_server_that_requests_wait_for_takes_longer_than_their_arrivals(on_an_engine):
    """400 tokens, two at a time, are 20 s; they arrive in 10."""
    plan = on_an_engine("poisson:1", 10.0, slots=2)
    assert plan.least_seconds == pytest.approx(3 * 30.1 + 40 + 3 * 20)


def test_in_a_closed_loop_a_server_takes_what_its_answers_take(on_an_engine):
    """At one in flight the first server writes 400 tokens; the others answer 160 each. At four in
    flight all three answer 160 in a quarter of the time.
    """
    assert on_an_engine("closed", None).least_seconds == pytest.approx(3 * 30.1 + 40 + 2 * 16)
    at_four = on_an_engine("closed", None, concurrency=(1, 4))
    assert at_four.least_seconds == pytest.approx(3 * 30.1 + 40 + 2 * 16 + 3 * 4)
    assert at_four.work[0].how_much.endswith(f" {400 + 2 * 160 + 3 * 160} tokens written")
