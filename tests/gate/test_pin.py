"""Hand-made runs become counts that were worked out by hand."""

import pytest
import scenes
from msgspec import structs

from draftbench.errors import RunFolderError, UsageError
from draftbench.gate.pin import make_baseline, sampling_label
from draftbench.records import (
    Candidate,
    LookupReplay,
    Sampling,
)
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.run import run_of

SMALL = Candidate(draft="small", quant="int8")
MANIFEST = scenes.manifest(
    target="large",
    quants=("int8",),
    lookup_longest=3,
    lookup_shortest=1,
    traffic_digest="d1",
    max_new_tokens=5,
    key_id="cafe0123",
    packages={"torch": "2.13"},
)


def trajectory(request="r", length=5, **changes):
    fields = {"segment": "chat", "weight": 2.0, "prompt_tokens": 3}
    return scenes.trajectory(request, length, **fields | changes)


def replay(*accept, **changes):
    return scenes.replay(accept, SMALL, **changes)


def decode(k, seconds, **changes):
    return scenes.decode(SMALL, k, seconds, **changes)


def step(candidate, *seconds, **changes):
    return scenes.step(candidate, *seconds, **{"block": "small:int8"} | changes)


def run(*records):
    return run_of(MANIFEST, records)


def test_expected_rounds_of_a_response_are_those_worked_out_by_hand():
    # k = 2, limit 5. The round at 1 has both tokens accepted and adds one; at 4 the limit leaves
    # nothing to draft: one plain step.
    counts = make_baseline(run(trajectory(), replay(1, 1, 0, 1)), SMALL, 2).requests[0]
    assert (counts.rounds, counts.accepted, counts.passes, counts.tokens) == (1, 2, 2, 4)
    assert (counts.alpha_sum, counts.positions) == (3, 4)
    assert (counts.weight, counts.segment, counts.sampling) == (2.0, "chat", "greedy")


def test_several_responses_of_a_request_count_as_their_mean():
    baseline = make_baseline(
        run(
            trajectory(sample=0),
            trajectory(sample=1),
            replay(1, 1, 0, 1, sample=0),
            replay(0, 0, 0, 0, sample=1),
        ),
        SMALL,
        2,
    )
    counts = baseline.requests[0]
    # The second response: rounds at 1, 2, 3 accept nothing, at 4 a plain step.
    assert (counts.rounds, counts.accepted, counts.passes) == (2, 1, 3)
    assert (counts.alpha_sum, counts.positions) == (1.5, 4)


def test_survival_is_pooled_over_requests_by_weight_of_one():
    baseline = make_baseline(run(trajectory(), replay(1, 0, 1, 1)), SMALL, 2)
    # Rounds at 1 (one of two accepted) and at 3 (one of one).
    assert baseline.survival == (1.0, 0.0)


def test_the_question_and_the_thing_tested_are_told_apart():
    baseline = make_baseline(
        run(
            trajectory(),
            replay(1, 1, 0, 1),
            scenes.facts(None, fingerprint="t1"),
            scenes.facts(SMALL, fingerprint="d1"),
        ),
        SMALL,
        2,
    )
    question = baseline.question
    assert (question.key_id, question.mode, question.k) == ("cafe0123", "greedy", 2)
    assert (question.responses, question.max_new_tokens) == ("target", 5)
    tested = baseline.tested
    assert (tested["target fingerprint"], tested["draft fingerprint"]) == ("t1", "d1")
    assert (tested["draft"], tested["draft quant"], tested["torch"]) == ("small", "int8", "2.13")
    assert tested["machine"] == "Linux, cpu, 2 cores, 1 threads, no accelerator"


def test_a_target_that_moved_to_another_directory_is_the_same_target():
    question = structs.replace(MANIFEST.question, target="/srv/models/large/")
    moved = run_of(structs.replace(MANIFEST, question=question), (trajectory(), replay(1, 1, 0, 1)))
    here = run(trajectory(), replay(1, 1, 0, 1))
    assert make_baseline(moved, SMALL, 2).tested == make_baseline(here, SMALL, 2).tested
    assert make_baseline(moved, SMALL, 2).tested["target"] == "large"


def test_prompt_lookup_has_rounds_but_no_alpha():
    lookup = LookupReplay(
        request="r",
        sample=0,
        candidate=Candidate(draft="ngram"),
        window=2,
        proposed=(2, 0, 0, 0),
        matched=(1, 0, 0, 0),
    )
    observations = run(trajectory(), lookup)
    baseline = make_baseline(observations, Candidate(draft="ngram"), 2)
    # At 1 one of two accepted; at 3 and 4 nothing found.
    counts = baseline.requests[0]
    assert (counts.rounds, counts.accepted, counts.passes) == (1, 1, 3)
    assert counts.alpha_sum is None
    assert baseline.alpha_definition is None
    assert baseline.tested["lookup window"] == "3 to 1"
    with pytest.raises(UsageError, match="k = 3 cannot be judged"):
        make_baseline(observations, Candidate(draft="ngram"), 3)


def test_speed_sums_repeats_of_the_block_and_process_that_also_ran_the_baseline():
    baseline = make_baseline(
        run(
            trajectory(),
            replay(1, 1, 0, 1),
            decode(2, 0.2),
            decode(2, 0.3, repeat=1),
            decode(0, 0.8),
            decode(0, 0.7, repeat=1),
            decode(1, 9.0),
            decode(0, 9.0, block="other"),
            decode(2, 9.0, process="p2"),
            decode(2, 9.0, batch=4),
        ),
        SMALL,
        2,
    )
    speed = baseline.requests[0].speed
    assert speed is not None
    assert (speed.tokens, speed.seconds) == (8, 0.5)
    assert (speed.plain_tokens, speed.plain_seconds) == (8, 1.5)


def test_the_cost_ratio_is_taken_turn_by_turn_over_all_contexts():
    baseline = make_baseline(
        run(
            trajectory(),
            replay(1, 1, 0, 1),
            step(SMALL, 1.0, 2.0),
            step(SMALL, 2.0, 4.0, context=128),
            step(None, 10.0, 10.0),
            step(None, 20.0, 20.0, context=128),
            step(None, 99.0, 99.0, new_tokens=2),
            step(None, 99.0, 99.0, context=256),
            step(None, 99.0, 99.0, block="other"),
        ),
        SMALL,
        2,
    )
    assert baseline.cost_ratios == (0.1, 0.2)


def test_zero_acceptance_is_kept_as_a_suspected_fault():
    broken = make_baseline(run(trajectory(length=61), replay(*[0] * 60)), SMALL, 2)
    assert "not one token in 60 positions" in broken.faults[0].message


def test_a_candidate_that_was_not_measured_is_refused_with_those_that_were():
    with pytest.raises(RunFolderError, match="no replay of `other`; it measured small:int8"):
        make_baseline(run(trajectory(), replay(1, 1, 0, 1)), Candidate(draft="other"), 2)


def test_a_draft_length_of_zero_is_refused():
    with pytest.raises(UsageError, match="k = 0 drafts no token"):
        make_baseline(run(trajectory(), replay(1, 1, 0, 1)), SMALL, 0)


@pytest.mark.parametrize(
    ("sampling", "label"),
    [
        (Sampling(temperature=0, top_k=40, seed=1), "greedy"),
        (Sampling(temperature=0.7, top_p=0.95, seed=1), "temperature=0.7 top_p=0.95"),
        (Sampling(temperature=1, top_k=40, min_p=0.05), "temperature=1 top_k=40 min_p=0.05"),
    ],
)
def test_the_sampling_label_names_the_distribution_and_not_the_seed(sampling, label):
    assert sampling_label(sampling) == label


def test_a_response_of_one_token_counts_with_nothing_drafted():
    silent = trajectory("s", length=1, segment="code", weight=3.0)
    counts = make_baseline(run(trajectory(), silent, replay(1, 1, 0, 1)), SMALL, 2).requests
    assert [c.id for c in counts] == ["r", "s"]
    nothing = (counts[1].tokens, counts[1].rounds, counts[1].accepted, counts[1].alpha_sum)
    assert nothing == (0, 0, 0, 0)
    assert (counts[1].weight, counts[1].segment) == (3.0, "code")


def test_a_longer_response_without_a_replay_is_left_out():
    observations = run(trajectory(), trajectory("s"), replay(1, 1, 0, 1))
    assert [c.id for c in make_baseline(observations, SMALL, 2).requests] == ["r"]


def test_prompt_length_loops_and_a_hash_of_the_response_are_kept():
    one, other = (
        make_baseline(run(trajectory(digest=d, looping=3), replay(1, 1, 0, 1)), SMALL, 2)
        for d in ("aa", "bb")
    )
    counts = one.requests[0]
    assert (counts.prompt_tokens, counts.looping) == (3, 3.0)
    assert counts.output is not None
    assert counts.output != other.requests[0].output


def texts(*prompts):
    return [
        PrivateText(request=str(i), sample=0, prompt=prompt, tokens=(), log_p=())
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("prompts", "faults"),
    [
        ([(1, 1, i) for i in range(5)], 1),
        ([(1, 1, i) for i in range(4)], 0),
        ([(1, 2, i) for i in range(5)], 0),
        ([(i, i, 0) for i in range(5)], 0),
        ([(1, 1, 7)] * 9, 0),
        ([(1,)] * 5, 0),
        ([], 0),
    ],
    ids=["doubled", "too few", "not doubled", "of the text", "one prompt", "short", "redacted"],
)
def test_a_first_token_that_all_prompts_have_twice_is_a_fault(prompts, faults):
    observations = run(trajectory(), replay(1, 1, 0, 1))
    found = make_baseline(observations, SMALL, 2, texts(*prompts)).faults
    assert len(found) == faults
    assert all("the same token twice" in fault.message for fault in found)
