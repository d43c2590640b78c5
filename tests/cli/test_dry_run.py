"""What a dry run says of models whose sizes are round numbers."""

import json
from types import SimpleNamespace

import msgspec
import pytest
from scenes import manifest, query, sheet

from draftbench.cli import dry_run
from draftbench.cli.dry_run import of_decoder, of_engine, sections
from draftbench.cli.output import rendered
from draftbench.records import Candidate
from draftbench.run_folder import run
from draftbench.sweep import estimates
from draftbench.sweep.engine_servers import Servers
from draftbench.sweep.estimates import DeviceSpeed
from draftbench.sweep.options import ServingOptions, SweepOptions

SMALL, NGRAM, SELF = Candidate("small"), Candidate("ngram"), Candidate("self")
INT4 = Candidate("small", "int4")
EVERY = [SMALL, INT4, NGRAM, SELF]
CORES = DeviceSpeed(reading=20e9, layer=1e-4, token=1 / 10, in_layer=0.0, loading=45e6)


def render(plan, style="table"):
    return rendered(plan, sections(plan), style, 88)


def counted(name, size):
    return sheet(name, size, kv_bytes_per_token=1_000_000)


@pytest.fixture
def planned(tmp_path):
    """planned(candidates, **options): 2 GB and 1 GB; ten requests of 60 tokens and at most 40 to
    write, of which four decode together; three k's measured. Scored side by side they take 1600
    tokens of cache.
    """

    def make(candidates=EVERY, **options):
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


@pytest.mark.parametrize(
    ("drafts", "more", "size"),
    [
        # 2 and 1 GB of no level, and 16 rows of 100 tokens that the target scores, 1 MB a token for
        # each of the two.
        (EVERY, {}, "6.2 GB"),
        # A quarter of the draft.
        ([INT4], {}, "5.45 GB"),
        # Prompt lookup takes nothing, the self draft a second cache.
        ([NGRAM], {}, "3.6 GB"),
        ([SELF], {}, "5.2 GB"),
        # Two k's and the baseline, each 16 requests of 100 tokens; where nothing is decoded, step
        # times at two contexts.
        ([NGRAM], {"concurrency": (1, 16)}, "6.8 GB"),
        ([NGRAM], {"concurrency": (1, 16), "measure": "none"}, "5.2 GB"),
        ([NGRAM], {"concurrency": (1, 16), "measure": "replay"}, "3.6 GB"),
    ],
)
def test_memory_is_that_of_the_candidate_that_needs_most(planned, drafts, more, size):
    plan = planned(drafts, **more)
    title = render(plan).splitlines()[0]
    assert title.endswith(f" and {size} of memory")


def test_json_has_seconds_and_bytes_as_numbers(planned):
    data = json.loads(render(planned(), "json"))
    assert (data["prompt_tokens"], data["manifest"]["question"]["ks"]) == (600, [1, 2, 3])
    assert data["memory"] == 6_200_000_000
    assert data["least_seconds"] == data["most_seconds"] > 15  # the target writes 400 tokens


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a-draft", "a-draft-04, a-draft-05, …"),
        (
            "a-very-long-name-of-an-organisation/and-a-model" * 3,
            "ion/and-a-model-00, …",
        ),
    ],
)
def test_candidates_are_named_as_far_as_they_fit_one_screen(planned, name, shown):
    lines = render(planned([Candidate(draft=f"{name}-{n:02}") for n in range(20)])).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 88
    assert lines[0].startswith("This sweep would take about ")
    assert lines[0].endswith(" and 6.2 GB of memory")
    (drafts,) = [line for line in lines if line.startswith("drafts")]
    assert drafts.endswith(shown)


@pytest.fixture
def on_an_engine(tmp_path, monkeypatch):
    """A target whose step takes .1 s on a CPU, ten requests of at most 40 tokens, four of which are
    measured in a closed loop; the plain server is started twice and the draft's once at least and
    at eight k's at most, 30.1 s each.
    """

    def make(arrivals, span, **changes):
        monkeypatch.setattr(estimates, "arriving_seconds", lambda prepared: span)
        monkeypatch.setattr(dry_run, "arriving_seconds", lambda prepared: span)
        options = ServingOptions(
            engine="vllm", arrivals=arrivals, max_concurrency=changes.pop("max_concurrency", None)
        )
        ngram = Candidate(draft="ngram")
        swept = SweepOptions(
            "big",
            ("ngram",),
            query(tmp_path),
            measure_requests=4,
            serving=options,
            **{"ks": (2,), **changes},
        )
        prepared = SimpleNamespace(
            options=swept,
            servers=Servers("vllm", swept, options, None, {}, {ngram: "none"}, ()),
            ks=lambda candidate: swept.ks,
            candidates=[ngram],
            prompt_tokens=[(60, 40)] * 10,
            manifest=manifest(engine="vllm", arrivals=arrivals, requests=10),
        )
        return of_engine(prepared, prepared.servers, sheet("big", 2_000_000_000), {}, CORES)

    return make


def test_one_time_is_not_a_range(on_an_engine):
    many = on_an_engine("closed", 0.0, ks=tuple(range(2, 10)))
    title = render(many).splitlines()[0]
    assert title == "This sweep would take about 3.7 min to 8.5 min"
    assert "servers 4 to 10 started" in " ".join(render(many).split())
    one = render(on_an_engine("closed", 0.0)).splitlines()[0]
    assert one == "This sweep would take about 2.9 min"


def test_servers_are_asked_for_as_long_as_the_log_is(on_an_engine):
    """First 400 tokens one by one; then the log three times, and the answer to its last request.
    Reading a prompt takes .6 s.
    """
    plan = on_an_engine("log", 600.0)
    assert plan.least_seconds == pytest.approx(3 * 30.1 + 46 + 3 * (600 + 4.6))
    shown = " ".join(render(plan).split())
    assert "servers 3 started" in shown
    assert "sent requests for as long as they take to arrive" in shown


def test_a_server_that_requests_wait_for_takes_longer_than_their_arrivals(on_an_engine):
    """Ten prompts, and 400 tokens in passes of two (.11 s), are 28 s; they arrive in 10."""
    plan = on_an_engine("poisson:1", 10.0, max_concurrency=2)
    assert plan.least_seconds == pytest.approx(3 * 30.1 + 46 + 3 * 28)


def test_of_a_server_of_unknown_speed_the_time_of_the_arrivals_is_the_least(on_an_engine):
    plan = msgspec.structs.replace(
        on_an_engine("log", 600.0), least_seconds=600.0, most_seconds=None
    )
    assert render(plan).startswith("This sweep would take 10 min or more")


def test_in_a_closed_loop_a_server_takes_what_its_answers_take(on_an_engine):
    """At one in flight the first server reads ten prompts (.6 s each) and writes 400 tokens; the
    others read four and write 160. At four in flight all three write these in 40 passes of .13 s.
    """
    assert on_an_engine("closed", 0.0).least_seconds == pytest.approx(3 * 30.1 + 46 + 2 * 18.4)
    at_four = on_an_engine("closed", 0.0, concurrency=(1, 4))
    assert at_four.least_seconds == pytest.approx(3 * 30.1 + 46 + 2 * 18.4 + 3 * 7.6)


def test_a_sweep_until_settled_takes_between_the_first_wave_and_all(planned, monkeypatch):
    """Ten requests come as four, four and two."""
    monkeypatch.setattr(run, "WAVE", 4)
    waves = planned([SMALL], until="settled", concurrency=(1,))
    all_at_once = planned([SMALL], concurrency=(1,)).most_seconds
    assert waves.looks == (4, 8)
    assert waves.least_seconds < all_at_once < waves.most_seconds
    # Two more loads of the draft.
    assert waves.most_seconds == pytest.approx(all_at_once + 2 * 1_000_000_000 / 2 / 45e6)
    shown = " ".join(render(waves).split())
    assert " ends where the answer is settled, looked at after 4, 8 requests " in shown + " "


def test_cards_are_counted_with_their_hours(planned):
    """Four share what is not timed, as one card would have done it; one times and decodes."""
    one, four = (planned([SMALL], cards=cards) for cards in ((0,), (0, 1, 2, 5)))
    assert (one.cards, four.cards, four.workers) == (1, 4, 4)
    # The target is loaded by each of three more, the draft by one more than without sharing.
    loads = 3 * (5 + 1_000_000_000 / 45e6) + 500_000_000 / 45e6
    assert four.card_seconds == pytest.approx(one.card_seconds + loads)
    shown = " ".join(render(four).split())
    assert f" cards 4, for {four.card_seconds / 3600:.2g} hours of a card in all" in shown
    assert planned([SMALL], workers=4).card_seconds is None
