"""What is exported of a run: which candidate, by which names, with which draft lengths by load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from draftbench.errors import UsageError
from draftbench.export.setting import drafting_of, schedule_of, setting_of
from draftbench.models.drafting import vllm_fields
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, ScheduleEntry
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run


@pytest.fixture
def run(make_run):
    return read_run(RunFolder(Path(make_run())))


@pytest.fixture
def answer(run):
    """A recommendation with the given k from each number of requests at once on."""

    def make(*steps):
        own = tuple(ScheduleEntry(concurrency=at, k=k) for at, k in steps)
        return msgspec.structs.replace(recommend(run), schedule=own)

    return make


@pytest.mark.parametrize(
    ("steps", "schedule"),
    [
        # A length holds until the next load that was measured.
        (((1, 6), (8, 3), (32, 0)), ((1, 7, 6), (8, 31, 3), (32, 32, 0))),
        # Loads of one length are one range.
        (((1, 4), (4, 4), (8, 2), (16, 2)), ((1, 7, 4), (8, 16, 2))),
        # The smallest load that was measured stands for smaller ones.
        (((4, 4), (8, 0)), ((1, 7, 4), (8, 8, 0))),
    ],
)
def test_the_schedule_has_a_length_for_every_load(answer, steps, schedule):
    kept = f"nothing was measured beyond {schedule[-1][1]} concurrent requests"
    assert schedule_of(answer(*steps), steps[0][1]) == (schedule, (kept,))


@pytest.mark.parametrize("steps", [(), ((1, 4),), ((1, 4), (8, 4))])
def test_one_length_for_all_loads_is_no_schedule(answer, steps):
    assert schedule_of(answer(*steps), 4) == ((), ())


def test_where_the_run_is_undecided_the_length_below_is_kept_with_a_note(answer):
    found, notes = schedule_of(answer((1, 4), (8, None), (32, 0)), 4)
    assert found == ((1, 31, 4), (32, 32, 0))
    assert notes[0] == "the run is undecided with 8 to 31 concurrent requests: k = 4 is kept"
    assert schedule_of(answer((1, None), (8, 2)), 5)[0] == ((1, 7, 5), (8, 8, 2))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (((1, None),), "with 1 concurrent request: k = 5"),
        (((1, None), (4, None)), "with 1 to 4 concurrent requests: k = 5"),
        (((1, 2), (4, None)), "with 4 concurrent requests: k = 2"),
    ],
)
def test_loads_that_are_undecided_are_one_range(answer, steps, words):
    notes = schedule_of(answer(*steps), 5)[1]
    assert [note for note in notes if "undecided" in note] == [
        f"the run is undecided {words} is kept"
    ]


def test_a_setting_carries_the_schedule_of_its_run(run, answer):
    setting = setting_of(answer((1, 6), (8, 0)), run)
    assert setting.schedule == ((1, 7, 6), (8, 8, 0))
    assert setting.longest == 6
    assert any("nothing was measured" in note for note in setting.notes)
    assert setting_of(answer((1, 2)), run).longest == 2


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_head_without_its_model_is_refused_until_it_is_given(make_run, kind):
    """Known fault: its kind was exported as the name of a draft model."""
    path = make_run(draft=kind, drafts=("ngram", kind), specs={kind: kind}, engine="vllm")
    pick = Configuration(draft=kind, quant="none", k=3, concurrency=1)
    manifest = RunFolder(Path(path)).manifest
    with pytest.raises(UsageError, match=f"`{kind}` names no model") as caught:
        drafting_of(pick, manifest, None)
    assert "--draft" in caught.value.hint
    assert vllm_fields(drafting_of(pick, manifest, "org/head"))["model"] == "org/head"


@pytest.mark.parametrize(
    ("measured", "first"),
    [
        ({"engine": "vllm", "servers": "started", "device": "cpu"}, True),
        ({"engine": "vllm", "servers": "started", "device": "cuda"}, False),
        # Nothing is known of the machine that a given server runs on.
        ({"engine": "vllm", "servers": "given", "device": "cpu"}, False),
        ({"engine": "llama.cpp", "servers": "started", "device": "cpu"}, False),
        ({}, False),
    ],
)
def test_vllm_started_on_a_cpu_measured_the_first_match(run, answer, measured, first):
    question = msgspec.structs.replace(run.manifest.question, **measured)
    manifest = msgspec.structs.replace(run.manifest, question=question)
    assert setting_of(answer((1, 2)), replace(run, manifest=manifest)).first_match == first


def test_a_file_of_the_engines_own_fields_is_exported_as_the_run_recorded_it(make_run):
    held = '{"method": "suffix", "num_speculative_tokens": "{k}"}'
    path = make_run(
        draft="spec:s.json", drafts=("ngram", "spec:~/s.json"), specs={}, engine="vllm",
        spec_files=(held,),
    )  # fmt: skip
    pick = Configuration(draft="spec:s.json", quant="none", k=3, concurrency=1)
    drafting = drafting_of(pick, RunFolder(Path(path)).manifest, None)
    assert vllm_fields(drafting) == {"method": "suffix", "num_speculative_tokens": 3}
