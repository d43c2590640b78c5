"""What a dry run says of models whose sizes are round numbers."""

from __future__ import annotations

import json

import pytest

from draftbench.models.check_result import ModelSheet
from draftbench.records import Candidate
from draftbench.report.terminal.dry_run import Plan, dry_run, render


def sheet(name: str, size: int) -> ModelSheet:
    return ModelSheet(
        name=name,
        family="llama",
        layers=2,
        width=64,
        dtype="bfloat16",
        parameters=size // 2,
        weight_bytes={"none": size, "int4": size // 4},
        kv_bytes_per_token=1_000_000,
        context=4096,
    )


@pytest.fixture
def planned(hand):
    """planned(**changes): 2 GB and 1 GB; ten requests of 60 tokens and at most 40 to write; three
    k's measured.
    """

    def make(**changes):
        fields = {
            "candidates": [
                Candidate(draft="small"),
                Candidate(draft="small", quant="int4"),
                Candidate(draft="ngram"),
                Candidate(draft="self"),
            ],
            "prompts": [(60, 40)] * 10,
            "target": sheet("big", 2_000_000_000),
            "sheets": {"small": sheet("small", 1_000_000_000)},
            "decoded": 5,
            "cells": 3,
        }
        return dry_run(hand.manifest(batches=(1, 4)), Plan(**fields | changes))

    return make


@pytest.fixture
def found(planned):
    return planned()


@pytest.fixture
def text(found):
    """The same as a table."""
    return render(found, "table", 120)


def line(text: str, start: str) -> str:
    return " ".join(next(ln for ln in text.splitlines() if ln.startswith(start)).split())


def test_memory_is_weights_and_the_cache_of_the_largest_batch(text):
    # 4 rows of 100 tokens for 3 k's and the baseline, 1 MB a token for each of the two.
    assert line(text, "small  ") == "small 2 GB 1 GB 3.2 GB 6.2 GB"
    assert line(text, "small:int4") == "small:int4 2 GB 250 MB 3.2 GB 5.45 GB"


@pytest.mark.parametrize(
    ("changes", "caches"),
    [
        # Without a draft, and at three k's.
        ({}, 4),
        # Step times of a batch at its shortest context and its longest.
        ({"decoded": 0, "cells": 0}, 2),
    ],
)
def test_every_cell_of_the_largest_batch_has_a_cache_of_its_own(planned, changes, caches):
    found = planned(**changes)
    assert found.cache_tokens == 4 * 100 * caches
    assert found.memory[0].cache == 4 * 100 * caches * 2_000_000


def test_replay_alone_times_nothing_and_opens_no_batch(planned):
    found = planned(timed=False, decoded=0, cells=0)
    assert found.cache_tokens == 100
    assert [each.seconds for each in found.passes if each.what == "step times"] == [0]


def test_prompt_lookup_takes_nothing_and_the_self_draft_a_second_cache(text):
    assert line(text, "ngram") == "ngram 2 GB 0 kB 1.6 GB 3.6 GB"
    assert line(text, "self") == "self 2 GB 0 kB 3.2 GB 5.2 GB"


def test_time_follows_from_the_stated_rate(text):
    # 400 tokens, each a step of 2 GB at 20 GB/s.
    assert line(text, "target writes") == "target writes at most 400 tokens 40 s"
    # 1000 tokens at a sixth of a step.
    assert line(text, "target scores") == "target scores 1000 tokens in long passes 17 s"
    # 5 requests, plainly and at 3 k's, for 4 candidates at 2 batch sizes, 40 tokens each.
    assert line(text, "decoding").startswith("decoding 160 responses: 5 requests")
    assert line(text, "decoding").endswith(" 11 min")


def test_json_has_seconds_and_bytes_as_numbers(found):
    data = json.loads(render(found, "json", 120))
    assert (data["requests"], data["prompt_tokens"], data["ks"]) == (10, 600, [1, 2])
    assert data["passes"][0] == {
        "what": "target writes",
        "how_much": "at most 400 tokens",
        "seconds": pytest.approx(40.0),
    }
    assert data["memory"][1] == {
        "candidate": "small:int4",
        "target_weights": 2_000_000_000,
        "draft_weights": 250_000_000,
        "second_layout": 2_000_000_000,
        "cache": 3_200_000_000,
        "together": 5_450_000_000,
    }


def test_markdown_has_a_table_for_each_part(found):
    shown = render(found, "markdown", 120)
    assert shown.count("### ") == 3
    assert "| ngram | 2 GB | 0 kB | 1.6 GB | 3.6 GB |" in shown


def test_the_estimate_is_labelled_one(text):
    assert "Estimated without running anything: weights are read at 20 GB/s" in text


@pytest.mark.parametrize("name", ["small", "a-very-long-name-of-an-organisation/and-a-model" * 3])
def test_it_fits_one_screen(planned, name):
    candidates = [Candidate(draft=f"{name}-{n}", quant="int4") for n in range(12)]
    sheets = {c.draft: sheet(c.draft, 1_000_000_000) for c in candidates}
    lines = render(planned(candidates=candidates, sheets=sheets), "table", 200).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 88
    assert "  and 8 more that need less: --format json" in lines


def test_candidates_are_named_as_far_as_they_fit(planned):
    candidates = [Candidate(draft=f"a-draft-{n:02}") for n in range(20)]
    sheets = {c.draft: sheet(c.draft, 1_000_000_000) for c in candidates}
    text = render(planned(candidates=candidates, sheets=sheets), "table", 88)
    assert line(text, "drafts").endswith("a-draft-04 and 15 more")
