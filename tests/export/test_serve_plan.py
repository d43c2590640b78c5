"""What is exported of a run: which candidate, by which names, with which draft lengths by load."""

from pathlib import Path

import msgspec
import pytest
import scenes

from draftbench.drafts.stopping import STOP_RULES
from draftbench.engines.every import ENGINES
from draftbench.engines.llama_cpp import LLAMA_CPP
from draftbench.engines.transformers import TRANSFORMERS
from draftbench.engines.vllm import VLLM, speculative_config
from draftbench.errors import UsageError
from draftbench.export.serve_plan import (
    answer_for,
    rule_left_out,
    schedule_of,
    serve_plan,
    speculation_of_pick,
)
from draftbench.planner.options import DecisionOptions
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
    assert schedule_of(answer(*steps), steps[0][1]) == (schedule, ())


@pytest.mark.parametrize("steps", [(), ((1, 4),), ((1, 4), (8, 4))])
def test_one_length_for_all_loads_is_no_schedule(answer, steps):
    assert schedule_of(answer(*steps), 4) == ((), ())


def test_where_the_run_is_inconclusive_the_length_below_is_kept_with_a_note(answer):
    found, notes = schedule_of(answer((1, 4), (8, None), (32, 0)), 4)
    assert found == ((1, 31, 4), (32, 32, 0))
    assert notes == ("the run is inconclusive at 8 to 31 concurrent requests: k = 4 is kept",)
    assert schedule_of(answer((1, None), (8, 2)), 5)[0] == ((1, 7, 5), (8, 8, 2))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (((1, None),), "at 1 concurrent request: k = 5"),
        (((1, None), (4, None)), "at 1 to 4 concurrent requests: k = 5"),
        (((1, 2), (4, None)), "at 4 concurrent requests: k = 2"),
    ],
)
def test_loads_that_are_inconclusive_are_one_range(answer, steps, words):
    assert schedule_of(answer(*steps), 5)[1] == (f"the run is inconclusive {words} is kept",)


def test_a_plan_carries_the_schedule_of_its_run(run, answer):
    plan = serve_plan(answer((1, 6), (8, 0)), run)
    assert plan.schedule == ((1, 7, 6), (8, 8, 0))
    assert plan.longest == 6
    assert serve_plan(answer((1, 2)), run).longest == 2


@pytest.mark.parametrize(
    ("engine", "kinds"),
    [(LLAMA_CPP, {None, "before"}), (TRANSFORMERS, {None, "after"}), (VLLM, {None})],
)
def test_an_engine_is_given_the_best_of_fixed_ks_and_the_rule_that_it_follows(engine, kinds):
    run = scenes.telling_run(60)
    answer = answer_for(engine, run, DecisionOptions())
    assert {each.stop and each.stop.kind for each in answer.evaluations} == kinds
    speculation = serve_plan(answer, run).speculation
    assert (speculation.k, speculation.stop) == answer.choice.length


@pytest.mark.parametrize(("tells", "engines"), [(True, ["vLLM"]), (False, [])])
def test_the_best_rule_is_named_where_an_engine_does_not_follow_it(tells, engines):
    run = scenes.telling_run(60, tells)
    kind = recommend(run).stopping.rule.stop.kind
    follower = ENGINES[STOP_RULES[kind].engine] if STOP_RULES[kind].engine else None
    notes = [
        note
        for engine in filter(None, (VLLM, follower))
        for note in rule_left_out(engine, scenes.SMALL, run, DecisionOptions())
    ]
    assert [note.partition(" does not follow ")[0] for note in notes] == engines


def test_what_is_played_back_follows_no_rule():
    run = scenes.telling_run(20)
    answer = answer_for(LLAMA_CPP, run, DecisionOptions(), synthetic=True)
    plan = serve_plan(answer, run, synthetic=True)
    assert plan.speculation.stop is None
    assert len(plan.survival) == plan.speculation.k


def drafting(path, draft, given=None):
    """How vLLM drafts 3 tokens, by the run's record of this draft and the model that is given."""
    pick = Configuration(draft=draft, quant="none", k=3, concurrency=1)
    return speculative_config(speculation_of_pick(pick, RunFolder(Path(path)).manifest, given))


@pytest.mark.parametrize(
    ("name", "spec", "given", "exported"),
    [
        ("eagle3:head", "eagle3:~/head", None, {"method": "eagle3", "model": "~/head"}),
        ("eagle3:head", "eagle3:~/head", "org/head", {"method": "eagle3", "model": "org/head"}),
        ("eagle-head", "eagle3:org/eagle-head", None, {"model": "org/eagle-head"}),
        ("mtp", "mtp", None, {"method": "mtp"}),
    ],
)
def test_a_draft_that_only_an_engine_runs_is_exported_as_drafts_called_it(
    make_run, name, spec, given, exported
):
    path = make_run(draft=name, drafts=(spec,), specs={name: spec}, engine="vllm")
    assert drafting(path, name, given).items() >= exported.items()


def test_a_draft_that_the_run_does_not_record_is_given_as_drafts_takes_it(make_run):
    path = make_run(draft="EAGLE", drafts=(), specs={}, engine="sglang")
    with pytest.raises(UsageError, match="does not record what --drafts called `EAGLE`") as caught:
        drafting(path, "EAGLE")
    assert "--draft" in caught.value.hint
    assert drafting(path, "EAGLE", "eagle3:org/head")["model"] == "org/head"


def test_without_an_engine_every_draft_is_a_model_whatever_its_folder_is_called(make_run):
    name = "eagle3"
    path = make_run(draft=name, drafts=(name, "small"), specs={name: name, "small": "./small"})
    assert drafting(path, name)["model"] == name
    assert drafting(path, name, "org/x")["model"] == "org/x"
    assert drafting(path, "ngram")["method"] == "ngram"


def test_without_an_engine_mtp_is_the_targets_own_layers(make_run):
    path = make_run(draft="mtp", drafts=("mtp",), specs={"mtp": "mtp"})
    assert drafting(path, "mtp")["method"] == "mtp"


@pytest.mark.parametrize(("spec", "sizes"), [("org/small", (100, 90)), ("eagle3:org/small", None)])
def test_a_heads_own_vocabulary_is_no_other_size(make_run, spec, sizes):
    path = make_run(drafts=(spec,), specs={"small": spec}, sizes=(100, 90))
    run = read_run(RunFolder(Path(path)))
    assert serve_plan(recommend(run), run).vocabularies == sizes


def test_a_file_of_fields_that_the_run_did_not_record_is_named(make_run):
    specs = {"spec:s.json": "spec:s.json"}
    path = make_run(draft="spec:s.json", drafts=("spec:s.json",), specs=specs, engine="vllm")
    with pytest.raises(UsageError, match="does not record what `spec:s"):
        drafting(path, "spec:s.json")


@pytest.mark.parametrize("draft", ["mtp", "ngram"])
def test_a_draft_without_a_model_cannot_be_named_another(make_run, draft):
    path = make_run(draft=draft, drafts=(draft,), specs={draft: draft}, engine="vllm")
    with pytest.raises(UsageError, match=f"`{draft}` has no model that --draft could name"):
        drafting(path, draft, "org/head")


def test_a_file_of_the_engines_own_fields_is_exported_as_the_run_recorded_it(make_run):
    held = '{"method": "suffix", "num_speculative_tokens": "{k}"}'
    specs = {"ngram": "ngram", "spec:s.json": "spec:~/s.json"}
    path = make_run(
        draft="spec:s.json", drafts=tuple(specs.values()), specs=specs, engine="vllm",
        spec_files=(held,),
    )  # fmt: skip
    assert drafting(path, "spec:s.json") == {"method": "suffix", "num_speculative_tokens": 3}
