"""How long a dry run says that a sweep takes, of models whose sizes are round numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from scenes import query, sheet

from draftbench.records import Candidate
from draftbench.sweep.options import SweepOptions
from draftbench.sweep.work import DeviceSpeed, work_of

SMALL, NGRAM, SELF = Candidate(draft="small"), Candidate(draft="ngram"), Candidate(draft="self")

CORES = DeviceSpeed(reading=20e9, layer=1e-4, token=1 / 10, loading=45e6)


@pytest.fixture
def work(tmp_path):
    """work(**options): ten requests of 60 tokens and at most 40 to write. The target's step takes
    1 ms of 10 layers and 99 ms of 1.98 GB at 20 GB/s, the draft's a tenth of it; 90 million
    weights are loaded in two seconds.
    """
    target = sheet("big", 1_980_000_000, layers=10, parameters=450_000_000)
    draft = sheet("small", 198_000_000, layers=1, parameters=45_000_000)

    def planned(candidates=(SMALL, NGRAM, SELF), **options):
        asked = {"drafts": ("small",), "ks": (1, 2, 3), "measure_requests": 5} | options
        prepared = SimpleNamespace(
            options=SweepOptions("big", traffic=query(tmp_path), **asked),
            candidates=candidates,
            prompt_tokens=[(60, 40)] * 10,
        )
        return {
            what: SimpleNamespace(how_much=how_much, seconds=seconds)
            for what, how_much, seconds in work_of(prepared, target, {"small": draft}, CORES)
        }

    return planned


@pytest.mark.parametrize(
    ("what", "seconds"),
    [
        # 5 s of libraries, 45 million weights a second.
        ("loading", 5 + 10 + 1),
        # 8 rows side by side, of which each after the first takes a tenth: 50 passes of 1.7 steps;
        # and 600 tokens of prompts at a tenth of a step.
        ("target writes", 0.1 * (50 * 1.7 + 60)),
        ("target scores", 0.1 * 100),
        # Draft, and the target as its own; prompt lookup takes nothing.
        ("drafts replay", 0.01 * 100 + 0.1 * 100),
        # 3 turns of 3 passes at 3 lengths of text, over 1, 2, 3 and 4 tokens, by each candidate,
        # and over 1 and 2 by the draft; 3 prompts of 60 tokens, 3 times twice.
        ("step times", 3 * 0.1 * (27 * 4.6 + 18 * 6) + 0.01 * (27 * 2.1 + 18 * 6)),
        # Draft and prompt lookup: 3 cells, each of 5 requests of 40 tokens, and once 14 tokens to
        # warm up, beside 6 prompts.
        ("decoding", 2 * 3 * 0.1 * (5 * 40 + 14 + 6 * 6) + 3 * 0.01 * 6 * 6),
    ],
)
def test_time_follows_from_sizes_layers_and_tokens(work, what, seconds):
    assert work()[what].seconds == pytest.approx(seconds)


def test_the_target_as_its_own_draft_is_counted_as_decoded_only_where_it_is(work):
    responses = {
        "best": work()["decoding"].how_much,
        "asked for": work(drafts=("small", "self"))["decoding"].how_much,
        "all": work(measure="all")["decoding"].how_much,
    }
    assert {how: text.split(":")[0] for how, text in responses.items()} == {
        "best": "30 responses",
        "asked for": "45 responses",
        "all": "60 responses",
    }


def test_processes_of_their_own_each_start_and_load_the_target(work):
    once, apart, three = work(), work(isolate=True), work(processes=3)
    # One writes the responses, then one for each of three candidates: in every turn.
    assert apart["loading"].seconds == pytest.approx(5 * 5 + 4 * 10 + 1)
    assert three["loading"].seconds == pytest.approx(11 * 5 + 10 * 10 + 3 * 1)
    for what, factor in (("drafts replay", 1), ("step times", 3), ("decoding", 3)):
        assert three[what].seconds == pytest.approx(factor * once[what].seconds), what


def test_rows_that_step_together_take_longer_and_write_more(work):
    rows = work(concurrency=(4,), candidates=(NGRAM,))
    # At two lengths over 4, 8, 12 and 16 tokens, and no prompts.
    assert rows["step times"].seconds == pytest.approx(0.1 * 18 * (1.3 + 1.7 + 2.1 + 2.5))
    # 5 requests are decoded 3 times, so that 4 rows are filled 3 times.
    assert rows["decoding"].how_much.startswith("45 responses")


@pytest.mark.parametrize(
    ("measure", "missing"), [("replay", {"step times", "decoding"}), ("none", {"decoding"})]
)
def test_what_is_not_measured_takes_no_time(work, measure, missing):
    assert work().keys() - work(measure=measure).keys() == missing


def test_a_log_is_not_written(work):
    assert work(responses="log")["target writes"].seconds == 0
