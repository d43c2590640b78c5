"""Hand-made runs become counts that were worked out by hand."""

import pytest
import scenes
from msgspec import structs

from draftbench.errors import IncomparableError, RunFolderError, UsageError
from draftbench.gate.make_baseline import choose, make_baseline, sampling_label, successor
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, Sampling
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.run import run_of

SMALL = Candidate(draft="small", quant="int8")
MANIFEST = scenes.manifest(
    target="large",
    quants=("int8",),
    lookup_longest=3,
    lookup_shortest=1,
    max_new_tokens=5,
    key_id="cafe0123",
    packages={"torch": "2.13"},
)


def response(*accept, **changes):
    fields = {"segment": "chat", "weight": 2.0, "prompt_tokens": 3, "candidate": SMALL}
    return scenes.replayed(accept, **fields | changes)


FOUR = response(1, 1, 0, 1)


def baseline(*records, k=2, candidate=SMALL, texts=(), manifest=MANIFEST, concurrency=None):
    return make_baseline(run_of(manifest, records), candidate, k, texts, concurrency)


NGRAM = Candidate(draft="ngram")
# At 1 one of two accepted; at 3 and 4 nothing found.
LOOKUP = scenes.lookup((2, 0, 0, 0), (1, 0, 0, 0), window=2)


@pytest.mark.parametrize(
    ("records", "candidate", "counted"),
    [
        # k = 2, limit 5. The round at 1 has both tokens accepted and adds one; at 4 the limit
        # leaves nothing to draft: one plain step.
        (FOUR, SMALL, (1, 2, 2, 4, 3, 4)),
        # Several responses count as their mean. The second: rounds at 1, 2, 3 accept nothing, at 4
        # a plain step.
        ((*FOUR, *response(0, 0, 0, 0, sample=1)), SMALL, (2, 1, 3, 4, 1.5, 4)),
        # Prompt lookup has rounds but no α.
        ((FOUR[0], LOOKUP), NGRAM, (1, 1, 3, 4, None, 0)),
    ],
)
def test_counts_of_a_request_are_those_worked_out_by_hand(records, candidate, counted):
    counts = baseline(*records, candidate=candidate).requests[0]
    rounds = (counts.rounds, counts.accepted, counts.passes, counts.tokens)
    assert (*rounds, counts.alpha_sum, counts.positions) == counted
    assert (counts.weight, counts.segment, counts.sampling) == (2.0, "chat", "greedy")
    assert (counts.prompt_tokens, counts.looping) == (3, 0.0)


def test_a_response_of_one_token_counts_with_nothing_drafted_and_a_longer_one_without_replay_not():
    silent = scenes.trajectory("s", 1, segment="code", weight=3.0)
    counts = baseline(*FOUR, silent, scenes.trajectory("t", 5)).requests
    assert [c.id for c in counts] == ["r", "s"]
    nothing = (counts[1].tokens, counts[1].rounds, counts[1].accepted, counts[1].alpha_sum)
    assert nothing == (0, 0, 0, 0)
    assert (counts[1].weight, counts[1].segment) == (3.0, "code")


def test_a_target_that_moved_to_another_directory_is_the_same_target():
    question = structs.replace(MANIFEST.question, target="/srv/models/large/")
    moved = baseline(*FOUR, manifest=structs.replace(MANIFEST, question=question))
    assert moved.tested == baseline(*FOUR).tested
    assert moved.tested["target"] == "large"


def test_prompt_lookup_names_its_window_and_is_judged_within_it():
    found = baseline(FOUR[0], LOOKUP, candidate=NGRAM)
    assert (found.tested["lookup window"], found.alpha_definition) == ("3 to 1", None)
    with pytest.raises(UsageError, match="k = 3 cannot be judged"):
        baseline(FOUR[0], LOOKUP, candidate=NGRAM, k=3)


def test_times_are_those_of_the_rows_asked_for_or_of_the_fewest():
    """Known fault: of a k that is the best for four rows, times of one were saved."""
    timings = [
        scenes.step(side, *[seconds] * 4, block="small:int8", concurrency=rows)
        for rows, draft in ((1, 1.0), (4, 3.0))
        for side, seconds in ((SMALL, draft), (None, 10.0))
    ]
    decodes = [scenes.decode(SMALL, 2, 0.4, concurrency=rows) for rows in (1, 4)]
    for asked, rows, ratio in ((None, 1, 0.1), (4, 4, 0.3), (8, 1, 0.1)):
        found = baseline(*FOUR, *timings, *decodes, concurrency=asked)
        assert (found.concurrency, found.cost_ratios) == (rows, (ratio, ratio))
        assert found.question.concurrency is None


def test_the_expected_speed_up_is_the_recommendations_at_this_k_and_load(reference, answers):
    draft = reference.candidates[0]
    (figures,) = [each for each in answers["qwen2.5-coder"].evaluations
                  if (each.candidate, each.k) == (draft, 3)]  # fmt: skip
    found = make_baseline(reference, draft, 3, ())
    assert found.speedup == figures.speedup_expected
    assert found.speedup_end_to_end == figures.speedup_end_to_end_expected


def test_decisive_doubts_about_the_candidate_are_kept():
    records = (*FOUR, LOOKUP, scenes.facts(SMALL, replay_disagreement=0.5))
    kinds = {each.kind for each in baseline(*records).doubts}
    assert kinds - {each.kind for each in baseline(*records, candidate=NGRAM).doubts} == {
        "replay-disagreement"
    }


def test_zero_acceptance_is_kept_as_a_suspected_fault():
    broken = baseline(*response(*[0] * 60))
    assert "not one token in 60 positions" in broken.faults[0].message


def test_what_cannot_be_pinned_is_refused():
    with pytest.raises(RunFolderError, match="no replay of `other`; it measured small:int8"):
        baseline(*FOUR, candidate=Candidate(draft="other"))
    with pytest.raises(UsageError, match="k = 0 drafts no token"):
        baseline(*FOUR, k=0)
    assert baseline(*FOUR, k=1).question.k == 1


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


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_loops_and_a_hash_of_the_response_are_kept(temperature):
    drawn = Sampling(temperature=temperature)
    one, other = (
        baseline(*response(1, 1, 0, 1, digest=digest, looping=3, sampling=drawn)).requests[0]
        for digest in ("aa", "bb")
    )
    assert one.looping == 3.0
    assert one.output not in (None, other.output)


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
    texts = [
        PrivateText(request=str(i), sample=0, prompt=prompt, tokens=(), log_p=())
        for i, prompt in enumerate(prompts)
    ]
    found = baseline(*FOUR, texts=texts).faults
    assert len(found) == faults
    assert all("the same token twice" in fault.message for fault in found)


@pytest.mark.parametrize(("started", "speedups"), [(True, [2.0, 1.5]), (False, [3.0])])
def test_each_turn_of_starts_is_a_process_and_a_running_server_is_one(started, speedups):
    """A token takes .1, .15 and .1 s without speculation, before, between and after two turns of
    .05 and .1 s with it. A running server was visited once, in turn with the second of the plain
    ones, with which alone it is compared.
    """

    def server(k, repeat, seconds, process):
        drafted = {"by_round": ((k, 0),) * 8} if k else {}
        fields = {"request": "a", "process": process, "server": f"{k} {repeat}", "repeat": repeat}
        moments = (seconds * (n + 1) for n in range(9))
        return scenes.served(SMALL if k else None, k, *moments, **fields, **drafted)

    between = "p3" if started else "p2"
    visits = [server(0, 0, 0.1, "p1"), server(2, 0, 0.05, "p2"), server(0, 1, 0.15, between)]
    if started:
        visits += [server(2, 1, 0.1, "p4"), server(0, 2, 0.1, "p5")]
    facts = [
        scenes.engine_facts(
            row.candidate, row.k, server=row.server, process=row.process, started=started
        )
        for row in visits
    ]
    asked = scenes.manifest(engine="vllm", ks=(2,))
    found = baseline(scenes.trajectory("a", 9), *visits, *facts, manifest=asked).processes
    assert [each.speedup for each in found] == pytest.approx(speedups)


def test_a_replay_that_decoding_contradicts_cannot_be_judged():
    # Decoding rejected the token at position 1, which the replay accepts.
    fates = {"proposed": (1,) * 4, "accepted": (0,) * 4, "cut": (0,) * 4}
    seconds = {"draft_seconds": (0.1,) * 4, "verify_seconds": (0.1,) * 4}
    unquantized = Candidate(draft="small")
    row = scenes.decode(unquantized, 1, 1.0, **fates, **seconds)
    read = scenes.replay((1, 1, 0, 1), unquantized)
    with pytest.raises(RunFolderError, match="decoding accepted differently from replay at 3 of 4"):
        baseline(FOUR[0], read, row, candidate=unquantized)


# What only an engine runs.
DRAFT = Candidate(draft="small")
SETTINGS = {"dtype": "float32", "ftype": "Q8_0"}


def answer(k, repeat=0, **fields):
    told = {"by_round": ((k, 2),) * 2} if k else {}
    name = f"s{k}{repeat}{fields.get('concurrency', 1)}"
    times = (0.1 * (n + 1) for n in range(7))
    more = {"repeat": repeat, "server": name} | told | fields
    return scenes.served(DRAFT if k else None, k, *times, **{"digest": "plain"} | more)


def on_an_engine(*rows, asked=(1,), **question):
    records = [
        scenes.trajectory("r", 7, origin="engine", margins=(), argmax=(), digest="plain"),
        scenes.engine_facts(DRAFT, 2, server="s20", settings=SETTINGS),
        *rows,
    ]
    manifest = scenes.manifest(**{"engine": "vllm", "ks": (2,), "concurrency": asked} | question)
    return run_of(manifest, records)


def counted(*rows, concurrency=None, **question):
    return make_baseline(on_an_engine(*rows, **question), DRAFT, 2, concurrency=concurrency)


def test_a_baseline_keeps_what_was_written_with_speculation_and_how_it_differs():
    changed = {"digest": "else", "first_difference": 3}
    found = counted(answer(0), answer(0, 1, **changed), answer(2, **changed, tie=True))
    counts = found.requests[0]
    assert (counts.text, counts.plain_text) == ("near tie", "unknown")
    assert counts.drafted not in (None, counts.output)
    same = counted(answer(0), answer(2)).requests[0]
    assert (same.text, same.plain_text, same.drafted) == ("same", None, same.output)


def test_responses_of_the_only_server_are_what_it_wrote_with_speculation():
    counts = counted(answer(2)).requests[0]
    both = counted(answer(0), answer(2)).requests[0]
    assert (counts.output, counts.drafted, counts.text) == (None, both.output, None)


def test_the_engine_is_a_thing_tested_and_its_alpha_that_of_the_tokens_it_tried():
    found = counted(answer(0), answer(2))
    assert (found.alpha_definition, found.alpha) == ("acceptance rate (tried tokens)", 1.0)
    tested = found.tested
    assert (tested["engine"], tested["engine version"]) == ("vllm", "0.1")
    assert (tested["served model"], tested["target dtype"]) == ("big", "float32")
    assert tested["target ftype"] == "Q8_0"


def test_sums_alone_tell_no_positions_and_no_alpha():
    """As llama-server's with several requests in flight."""
    sums = {"rounds": 2, "drafted": 4, "accepted": 4, "by_round": None}
    found = counted(answer(0), answer(2, **sums))
    assert (found.alpha_definition, found.alpha, found.survival) == (None, None, ())
    assert found.requests[0].rounds == 2.0
    assert counted(answer(0), answer(2)).survival == (1.0, 1.0)


def test_a_baseline_of_an_engine_is_of_its_smallest_load_or_of_the_one_asked_for():
    loads = (1, 4)
    rows = [answer(k, concurrency=load) for k in (0, 2) for load in loads]
    found = counted(*rows, asked=loads)
    assert (found.question.concurrency, found.question.arrivals) == (1, "closed")
    four = counted(*rows, asked=loads, concurrency=4)
    assert four.question.concurrency == 4
    assert four.requests[0].speed is not None
    assert counted(*rows, asked=loads, concurrency=8).question.concurrency == 1
    paced = {"arrivals": "log", "time_scale": 2.0}
    opened = counted(answer(0, load="open"), answer(2, load="open"), **paced).question
    assert (opened.arrivals, opened.time_scale) == ("log", 2.0)


def test_above_temperature_0_a_servers_texts_are_draws_and_not_kept():
    warm = scenes.trajectory(
        "r", 7, origin="engine", margins=(), argmax=(), sampling=Sampling(temperature=0.7)
    )
    counts = counted(answer(0), answer(2), warm).requests[0]
    assert (counts.output, counts.drafted, counts.text) == (None, None, None)


def unanswered(k, **fields):
    return answer(k, output_tokens=0, error="HTTP 500", **fields)


def test_a_baseline_holds_which_requests_were_not_answered_at_its_load_or_by_the_writer():
    """Of s, answered with two in flight, the baseline at one in flight says nothing."""
    rows = [
        answer(0),
        answer(2),
        *(unanswered(k, request="lost") for k in (0, 2)),
        unanswered(0, request="unwritten"),
        unanswered(2, concurrency=2),
        answer(2, concurrency=2),
        unanswered(2, concurrency=2, repeat=1),
    ]
    assert counted(*rows).unanswered == {"lost": "HTTP 500", "unwritten": "HTTP 500"}
    assert counted(*rows, concurrency=2).unanswered.keys() == {"lost", "unwritten", "r"}


def test_a_server_that_answered_nothing_is_not_judged_by_replay():
    with pytest.raises(UsageError, match="answered no request: HTTP 500"):
        counted(answer(0), unanswered(2))


def test_a_successor_is_at_the_baselines_k_or_at_the_largest_that_was_served():
    rows = [answer(k) for k in (0, 2)]
    larger = answer(3, by_round=((3, 2),) * 2)
    old = counted(*rows)
    assert successor(on_an_engine(*rows, larger), None, old).question.k == 2
    assert successor(on_an_engine(answer(0), larger), DRAFT, old).question.k == 3
    gone = structs.replace(old, candidate="big")
    with pytest.raises(IncomparableError, match="the draft was big, which this run did not") as why:
        successor(on_an_engine(*rows), None, gone)
    assert why.value.hint.endswith("--candidate: this run has small")


def test_a_load_that_the_engine_was_not_asked_at_is_refused_with_those_that_it_was():
    run = on_an_engine(*(answer(k, concurrency=load) for k in (0, 2) for load in (1, 4)))
    assert choose(run, DRAFT, 2)[0].concurrency == 1
    assert choose(run, None, None, DecisionOptions(concurrency=(4,)))[0].concurrency == 4
    with pytest.raises(UsageError, match="at k = 2 was not measured at concurrency 3") as refused:
        choose(run, DRAFT, 2, DecisionOptions(concurrency=(3,)))
    assert refused.value.hint.startswith("it was at 1, 4: ")
    with pytest.raises(UsageError, match="of one concurrency, and --concurrency names several"):
        choose(run, DRAFT, 2, DecisionOptions(concurrency=(4, 1)))


@pytest.mark.parametrize(
    ("run", "draft", "chosen", "said"),
    [
        (
            "tinyllama-stories-40",
            None,
            "stories15M",
            "; ngram may be as fast: if you serve another",
        ),
        ("qwen2.5-coder", None, "qwen0.5:int4", "qwen0.5:int4 is the run's best draft: if you"),
        ("qwen2.5-coder", NGRAM, "ngram at k = 7", None),
        ("tinyllama-gsm8k", None, "", "is provisional: only 10 requests; only 6 requests were"),
        ("tinyllama-stories", None, "stories15M", None),  # its only draft
    ],
)
def test_what_nobody_named_is_as_recommended_and_said(kept, run, draft, chosen, said):
    """The next sweep may recommend another one, and need not even measure this one."""
    configuration, remarks = choose(kept[run], draft, None)
    assert str(configuration).startswith(chosen)
    assert said in " ".join(remarks) if said else not any("best draft" in each for each in remarks)


def test_a_baseline_of_an_unsure_answer_says_so(kept, monkeypatch):
    def undecided(*asked):
        return structs.replace(recommend(*asked), decision="inconclusive")

    monkeypatch.setattr("draftbench.gate.make_baseline.recommend", undecided)
    _, (remark, *_) = choose(kept["tinyllama-stories"], None, None)
    assert remark.endswith("is inconclusive: another draft may be better")
