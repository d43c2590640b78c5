"""Draft lengths by load: from the planner's steps to what each engine takes of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from draftbench.export import export
from draftbench.export.schedule import schedule_of
from draftbench.export.setting import setting_of
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Step
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.observed import read_run

SCHEDULE = ((1, 7, 6), (8, 31, 3), (32, 32, 0))


@pytest.fixture
def run(make_run):
    return read_run(RunFolder(Path(make_run())))


@pytest.fixture
def answer(run):
    """A recommendation with the given k from each number of requests at once on."""

    def make(*steps):
        own = tuple(Step(concurrency=at, k=k) for at, k in steps)
        return msgspec.structs.replace(recommend(run), schedule=own)

    return make


def test_a_length_holds_until_the_next_load_that_was_measured(answer):
    found, notes = schedule_of(answer((1, 6), (8, 3), (32, 0)), 6)
    assert found == ((1, 7, 6), (8, 31, 3), (32, 32, 0))
    assert notes == ("beyond 32 requests at once nothing was measured; k = 0 goes on",)


def test_loads_of_one_length_are_one_range(answer):
    assert schedule_of(answer((1, 4), (4, 4), (8, 2), (16, 2)), 4)[0] == ((1, 7, 4), (8, 16, 2))


@pytest.mark.parametrize("steps", [(), ((1, 4),), ((1, 4), (8, 4))])
def test_one_length_for_all_loads_is_no_schedule(answer, steps):
    assert schedule_of(answer(*steps), 4) == ((), ())


def test_the_smallest_load_that_was_measured_stands_for_smaller_ones(answer):
    assert schedule_of(answer((4, 4), (8, 0)), 4)[0] == ((1, 7, 4), (8, 8, 0))


def test_where_the_run_is_undecided_the_length_below_goes_on_and_that_is_said(answer):
    found, notes = schedule_of(answer((1, 4), (8, None), (32, 0)), 4)
    assert found == ((1, 31, 4), (32, 32, 0))
    assert notes[0] == "from 8 requests at once on the run is undecided: k = 4 goes on"
    assert schedule_of(answer((1, None), (8, 2)), 5)[0] == ((1, 7, 5), (8, 8, 2))


def test_a_setting_carries_the_schedule_of_its_run(run, answer):
    setting = setting_of(answer((1, 6), (8, 0)), run)
    assert setting.schedule == ((1, 7, 6), (8, 8, 0))
    assert setting.longest == 6
    assert any("nothing was measured" in note for note in setting.notes)
    assert setting_of(answer((1, 2)), run).longest == 2


def test_vllm_gets_the_lengths_by_batch_size(setting):
    found = export(setting(schedule=SCHEDULE), "vllm")
    fields = json.loads(found.text)
    assert fields["num_speculative_tokens"] == 6
    assert fields["num_speculative_tokens_per_batch_size"] == [[1, 7, 6], [8, 31, 3], [32, 32, 0]]
    assert any("data parallelism" in note for note in found.notes)
    lookup = json.loads(export(setting(schedule=SCHEDULE, draft=None), "vllm").text)
    assert lookup["num_speculative_tokens_per_batch_size"][2] == [32, 32, 0]


def test_an_older_vllm_keeps_one_length_and_says_the_rest(setting):
    found = export(setting(schedule=SCHEDULE), "vllm", "0.24")
    assert json.loads(found.text)["num_speculative_tokens"] == 4
    assert "per_batch_size" not in found.text
    assert any(
        "k = 6 from 1 to 7, k = 3 from 8 to 31, k = 0 from 32 to 32" in n for n in found.notes
    )


def test_tensorrt_llm_names_the_largest_batch_of_each_length_and_before_1_3_the_smallest(setting):
    def lengths(version=None, **changes):
        pair = setting(schedule=SCHEDULE, **changes)
        own = yaml.safe_load(export(pair, "tensorrt-llm", version).text)["speculative_config"]
        return own["max_draft_len"], own.get("draft_len_schedule")

    assert lengths() == (6, {7: 6, 31: 3, 32: 0})
    assert lengths("1.2.0") == (6, {1: 6, 8: 3, 32: 0})
    assert lengths(draft=None) == (6, {7: 6, 31: 3, 32: 0})


def test_a_schedule_that_rises_is_not_written_for_an_older_tensorrt_llm(setting):
    pair = setting(schedule=((1, 7, 3), (8, 16, 6)))
    own = yaml.safe_load(export(pair, "tensorrt-llm", "1.2.0").text)["speculative_config"]
    assert own["max_draft_len"] == 4
    assert "draft_len_schedule" not in own


def test_tensorrt_llm_is_said_to_draft_where_the_schedule_says_not_to(setting):
    def said(**changes):
        notes = export(setting(**changes), "tensorrt-llm").notes
        return any("drafts one token where the schedule says 0" in note for note in notes)

    assert said(schedule=SCHEDULE)
    assert not said(schedule=SCHEDULE[:2])
    assert not said(schedule=SCHEDULE, draft=None)


@pytest.mark.parametrize("engine", ["sglang", "llamacpp", "transformers"])
def test_engines_without_a_length_by_load_say_so(setting, engine):
    fixed = [n for n in export(setting(schedule=SCHEDULE), engine).notes if "by load" in n]
    assert len(fixed) == 1
    assert "k stays 4" in fixed[0]
    assert "k = 0 from 32 to 32 requests at once" in fixed[0]
    assert not any("by load" in n for n in export(setting(), engine).notes)
