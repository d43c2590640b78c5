"""A run that was interrupted says so; one that is complete, or failed in part, does not."""

import pytest
from scenes import ALL, INT4, SELF_DRAFT, SMALL, served

from draftbench.planner.recommend import recommend
from draftbench.planner.unfinished import unfinished
from draftbench.records import Candidate, EngineFacts
from draftbench.run_folder.manifest import Effort

STEPS = {1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1}
# Nothing but the drafts, decoded on up to three responses.
EFFORT = Effort(measure="best", measure_requests=3, controls=False)
BOTH = {"quants": ("none", "int4")}


def said(scene, **manifest):
    """What is said of the scene as a run at k = 1; nothing where all is there."""
    known = {"effort": EFFORT, "specs": {"small": "./models/small"}}
    requests = len({r.request for r in scene.records if hasattr(r, "prompt_tokens")})
    return unfinished(scene.observed(1, **{"requests": requests, **known, **manifest})) or ""


def three(scene, *candidates, timed=True):
    """Three responses that every candidate was replayed on, and timed."""
    scene.requests(3, ALL, *candidates)
    for candidate in candidates if timed else ():
        scene.times(*STEPS, candidate)


def test_missing_responses_replays_and_candidates_are_named(scene):
    scene.requests(2, ALL)
    scene.replay("r0", ALL, INT4)
    specs = {"small": "./small", "big": "org/big@v1"}
    asked = {"drafts": ("./small", "org/big@v1", "ngram"), "specs": specs} | BOTH
    found = said(scene, requests=5, **asked)
    assert "2 of 5 responses" in found
    assert "small:int4 replayed on 1 of 2 responses" in found
    assert "no replay of ngram, big, big:int4" in found


def test_of_a_running_server_without_drafts_to_replay_no_control_is_missing(scene):
    scene.requests(3, ALL)
    effort = Effort(measure="best", measure_requests=3, controls=True)
    assert said(scene, effort=effort, engine="vllm", drafts=(), specs={}) == ""
    assert "ngram" in said(scene, effort=effort, engine="vllm", drafts=("small",), specs={})


def test_on_an_engine_prompt_lookup_is_the_only_control(scene):
    scene.requests(2, ALL)
    effort = Effort(measure="replay", measure_requests=3, controls=True)
    found = said(scene, effort=effort, engine="vllm")
    assert "no replay of ngram:" in found.replace(")", ":")


def test_requests_at_their_times_of_arrival_are_of_one_load_however_many_they_met(scene):
    scene.requests(3, ALL)
    scene.records += [
        served(SMALL, 1, 0.5, 0.6, request=f"r{n}", load="open", concurrency=n + 1)
        for n in range(3)
    ]  # fmt: skip
    assert said(scene, engine="vllm", arrivals="poisson:2") == ""


@pytest.mark.parametrize(("ended", "found"), [(0, "0 of 2 turns"), (1, "1 of 2 turns"), (2, "")])
def test_turns_of_starts_end_with_the_server_without_a_draft(scene, ended, found):
    scene.requests(1, ALL)
    scene.records += [served(SMALL, 1, 0.5, 0.6, request="r0")]
    scene.records += [
        served(None, 0, 0.5, 0.6, request="r0", repeat=n, server=f"plain {n}")
        for n in range(ended + 1)
    ]
    facts = EngineFacts(
        server="s",
        process="p",
        engine="vllm",
        version=None,
        model=None,
        candidate=None,
        k=0,
        started=True,
        command=None,
        settings={},
        context_length=None,
        prefix_cache=None,
        ready_seconds=None,
    )
    effort = Effort(measure="best", measure_requests=1, controls=False, processes=2)
    scene.records.append(facts)
    assert found in said(scene, engine="vllm", effort=effort)
    assert bool(said(scene, engine="vllm", effort=effort)) is bool(found)


def test_what_is_missing_is_a_caveat_of_the_answer(scene):
    three(scene, SMALL, timed=False)
    run = scene.observed(1, effort=EFFORT, specs={"small": "small"})
    assert unfinished(run) in [caveat.text for caveat in recommend(run).caveats]


def test_of_a_run_that_does_not_know_its_effort_only_replays_are_counted(scene):
    scene.requests(2, ALL)
    assert said(scene, effort=None, specs=None, drafts=("small", "big")) == ""
    scene.request("r2")
    assert "small replayed on 2 of 3 responses" in said(scene, effort=None, specs=None)


def test_a_response_of_one_token_is_not_waited_for(scene):
    scene.requests(2, ALL)
    scene.request("of one token", 1)
    assert said(scene, effort=None) == ""


def test_a_draft_that_is_stored_quantized_goes_by_its_own_level(scene):
    three(scene, SMALL, Candidate(draft="tiny", quant="gguf-q8_0"), timed=False)
    replay_only = Effort(measure="replay", measure_requests=3, controls=False)
    assert said(scene, effort=replay_only, specs={"small": "s", "tiny": "m/tiny.gguf"}) == ""


def test_a_draft_that_was_given_as_a_link_goes_by_the_name_that_it_leads_to(scene):
    three(scene, SMALL, timed=False)
    replay_only = Effort(measure="replay", measure_requests=3, controls=False)
    assert said(scene, effort=replay_only, drafts=("link",), specs={"small": "link"}) == ""


def test_what_failed_is_not_waited_for(scene):
    three(scene, SMALL, timed=False)
    scene.failure("big", "another vocabulary")
    specs = {"small": "small", "big": "big"}
    assert said(scene, effort=None, drafts=("small", "big"), specs=specs) == ""


def test_step_times_that_were_cut_off_are_named(scene):
    three(scene, SMALL)
    scene.decodes(3, 1, 4.0)
    three(scene, INT4, timed=False)
    assert "(small:int4 not timed)" in said(scene, **BOTH)


def test_decoding_that_was_cut_off_is_named_with_how_far_it_got(scene):
    three(scene, SMALL)
    scene.decodes(1, 1, 4.0)
    assert "(small decoded on 1 of 3 responses)" in said(scene)
    scene.decodes(3, 1, 4.0)
    assert said(scene) == ""


def test_each_batch_size_has_its_stages(scene):
    three(scene, SMALL)
    scene.decodes(3, 1, 4.0)
    assert "(small not timed with 2 rows)" in said(scene, batches=(1, 2))
    scene.times(*STEPS, batch=2)
    assert "(small decoded on 0 of 3 responses with 2 rows)" in said(scene, batches=(1, 2))
    for name in ("r0", "r1", "r2"):
        for k in (0, 1):
            scene.batch_run(name, k, (k,) * 4, (1.0,) * 4)
    assert said(scene, batches=(1, 2)) == ""


def test_a_level_without_a_kernel_is_neither_timed_nor_decoded(scene):
    three(scene, SMALL)
    scene.decodes(3, 1, 4.0)
    three(scene, INT4, timed=False)
    scene.facts("small", quant="int4", has_kernel=False)
    assert said(scene, **BOTH) == ""


def test_the_target_itself_is_decoded_where_it_was_asked_for_as_a_draft(scene):
    three(scene, SMALL, SELF_DRAFT)
    scene.decodes(3, 1, 4.0)
    assert said(scene) == ""
    assert "(self decoded on 0 of 3 responses)" in said(scene, drafts=("small", "self"))


def test_controls_are_waited_for_where_they_were_asked_for(scene):
    three(scene, SMALL, timed=False)
    with_controls = Effort(measure="replay", measure_requests=3, controls=True)
    assert "(no replay of ngram, self)" in said(scene, effort=with_controls)


@pytest.mark.parametrize(("measure", "requests"), [("best", 1), ("none", 3), ("replay", 3)])
def test_no_more_is_waited_for_than_the_effort_asks(scene, measure, requests):
    three(scene, SMALL, timed=measure != "replay")
    if measure == "best":
        scene.decodes(1, 1, 4.0)
    effort = Effort(measure=measure, measure_requests=requests, controls=False)
    assert said(scene, effort=effort) == ""


def test_every_process_that_was_asked_for_is_waited_for(scene):
    three(scene, SMALL)
    scene.decodes(3, 1, 4.0)
    effort = Effort(measure="best", measure_requests=3, controls=False, processes=2)
    assert "(small timed in 1 of 2 processes)" in said(scene, effort=effort)
    scene.times(*STEPS, process="second")
    for name, done in (("r0", 1), ("r1", 2)):
        for k in (0, 1):
            scene.decode(name, k, 8.0, process="second")
        assert f"decoded on {done} of 3 responses in each of 2" in said(scene, effort=effort)
    for k in (0, 1):
        scene.decode("r2", k, 8.0, process="second")
    assert said(scene, effort=effort) == ""


def test_a_draft_without_costs_has_no_k_to_be_decoded_at(scene):
    """Its context was too short for the points of the grid: the target alone was timed there."""
    three(scene, SMALL)
    three(scene, INT4, timed=False)
    scene.times(STEPS[0], None, INT4)
    scene.decodes(3, 1, 4.0)
    assert said(scene, **BOTH) == ""
    everything = Effort(measure="all", measure_requests=3, controls=False)
    assert "(small:int4 decoded on 0 of 3 responses)" in said(scene, effort=everything, **BOTH)
