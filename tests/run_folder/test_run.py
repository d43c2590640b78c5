"""What holds when a run was interrupted, tried again, or measured something twice."""

from pathlib import Path

import pytest
import scenes
from msgspec.structs import replace
from scenes import failure, manifest, replay, trajectory

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.definitions import alpha
from draftbench.errors import RunFolderError
from draftbench.planner.doubts import about_acceptance
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, DraftingMode, LookupReplay, Sampling
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import part_of, read_run, run_of, to_decode, waves

SAMPLES = Path(__file__).parent / "samples"
DRAFT = Candidate(draft="d")


@pytest.mark.parametrize(
    ("failures", "standing"),
    [
        ([failure("a", "slow"), failure("a", "broken")], ["broken"]),
        (
            [failure("a", "one"), failure("b", "two"), failure("a", "three", quant="int4")],
            ["one", "two", "three"],
        ),
        (
            [
                failure("a", "one", stage="load"),
                failure("a", "two"),
                failure("b", "three"),
                failure("a", "", resolved=True),
            ],
            ["three"],
        ),
        ([failure("a", "one"), failure("a", "", resolved=True), failure("a", "two")], ["two"]),
    ],
)
def test_the_last_failure_of_a_candidate_holds_unless_a_later_attempt_went_through(
    failures, standing
):
    assert [found.reason for found in run_of(manifest(), failures).failures] == standing


def test_the_last_of_two_trajectories_of_a_request_holds():
    both = [trajectory(digest="old"), trajectory(digest="new")]
    assert [t.digest for t in run_of(manifest(), both).trajectories] == ["new"]


def test_answers_to_single_requests_are_not_those_of_the_same_server_at_times_of_arrival():
    alone = scenes.served(None, 0, 0.5, 1.0)
    together = scenes.served(None, 0, 0.9, 2.0, load="open", concurrency=3)
    writes = trajectory("r", 2, origin="engine", margins=(), argmax=())
    assert run_of(manifest(engine="vllm"), [writes, alone, together]).served == (alone, together)


def decode(process, k, **changes):
    return scenes.decode(DRAFT, k, 1.0, **{"process": process, "concurrency": 4} | changes)


def alone(process, k, **changes):
    return decode(process, k, concurrency=1, **changes)


@pytest.mark.parametrize(
    ("earlier", "kept"),
    [
        # Of a batch other cells are not compared with an earlier process's baseline, nor with one
        # over fewer responses.
        (
            [decode("p", 0), decode("p", 0, repeat=1), decode("p", 2)],
            [decode("q", k) for k in (0, 3)],
        ),
        ([decode("p", k) for k in (0, 2)], [decode("q", k) for k in (0, 2, 3)]),
        (
            [decode("p", k) for k in (0, 2)],
            [decode("q", k, request=name) for k in (0, 2) for name in ("r", "other")],
        ),
        # Processes that decoded the same all count; other batches and blocks stand for themselves.
        ([], [decode(process, k) for process in "pqs" for k in (0, 2)]),
        (
            [],
            [
                *(decode("p", 0, concurrency=8), decode("p", 0, block="e"), alone("p", 2)),
                *(decode("q", 0), alone("q", 2)),
            ],
        ),
        # So it is of a row alone: the second process was asked for another k too and decoded all
        # again, or some of it.
        ([alone("p", k) for k in (0, 2)], [alone("q", k) for k in (0, 2, 3)]),
        ([alone("p", k) for k in (0, 2)], [alone("q", k) for k in (0, 3)]),
        # Request by request: only the second process decoded the other one.
        (
            [],
            [
                *(alone(process, k) for process in "pq" for k in (0, 2)),
                *(alone("q", k, request="other") for k in (0, 2, 3)),
            ],
        ),
    ],
)
def test_processes_that_decoded_the_same_count_together_or_the_last_alone(earlier, kept):
    assert set(run_of(manifest(), [*earlier, *kept]).decodes) == set(kept)


def test_the_longer_responses_are_decoded_in_an_order_that_no_length_decides():
    """Of two samples of three requests those with eight tokens or more; the short one only where
    there is no longer one.
    """
    lengths = {("b", 0): 9, ("a", 0): 2, ("c", 0): 8, ("a", 1): 30, ("d", 0): 1}
    rows = [
        trajectory(request, length, sample=sample) for (request, sample), length in lengths.items()
    ]
    chosen = [t.key for t in to_decode(rows, 9)]
    assert chosen == [("b", 0), ("c", 0), ("a", 1)]
    assert [t.key for t in to_decode(rows, 1)] == [("b", 0)]
    assert [t.request for t in to_decode(rows[1:2], 9)] == ["a"]
    assert to_decode(rows[-1:], 9) == []


# Two rounds that make the five tokens of its output.
DECODED = alone(
    "p", 2, proposed=(2, 1), accepted=(2, 0), cut=(0, 0), draft_seconds=(0.1, 0.1),
    verify_seconds=(0.4, 0.4),
)  # fmt: skip


def lookup(window):
    return LookupReplay(
        request="r", sample=0, candidate=Candidate(draft="ngram"), window=window, proposed=(1,),
        matched=(0,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([trajectory(length=2), replay((1.0,), DRAFT), DECODED], None),
        ([trajectory(length=3), replay((1.0,), DRAFT)], "replay of request `r` does not fit the"),
        ([trajectory(length=2), lookup(2)], None),
        # The run's largest k is 2: prompt lookup must have looked as far.
        ([trajectory(length=2), lookup(1)], "`r` looked up fewer tokens than the largest k"),
        (
            [trajectory(length=2, sampling=Sampling(temperature=0.7)), replay((0.5,), DRAFT)],
            "replay.jsonl`: the replay of request `r` is of sampled drafting, and the run of greed",
        ),
        ([trajectory(length=2), alone("p", 2)], "decode of request `r` has no rounds, or they"),
        ([trajectory(length=2), replace(DECODED, decode_seconds=0.0)], "or they took no time"),
        ([trajectory(length=5, digest="x"), replace(DECODED, digest="x")], None),
        ([trajectory(length=5, digest="x"), replace(DECODED, digest="y")], "another digest than"),
        (
            [trajectory(length=5, digest="x"), replace(DECODED, digest="x", first_difference=3)],
            "another digest than its response and no first difference, or the same",
        ),
        ([trajectory(origin="log")], "trajectory of request `r` is of the log, and the run's are"),
        ([trajectory(origin="engine", margins=(), argmax=())], "is of the engine, and the run's"),
    ],
)
def test_a_measurement_must_fit_the_response_and_what_the_run_asked(folder, records, wrong):
    assert folder.manifest.question.ks == (1, 2)
    with folder.writer() as writer:
        writer.append(records)
    if wrong is None:
        run = read_run(folder)
        assert set(records) == {*run.trajectories, *run.replays, *run.decodes}
    else:
        with pytest.raises(RunFolderError, match=wrong):
            read_run(folder)


def test_at_temperature_0_no_draft_is_accepted_in_part(tmp_path):
    folder = RunFolder.create(tmp_path / "run", manifest(mode=DraftingMode.SAMPLED))
    warm, half = Sampling(temperature=0.7), replay((0.5,), DRAFT)
    with folder.writer() as writer:
        writer.append([trajectory(length=2, sampling=warm), half])
        assert read_run(folder).replays == (half,)
        writer.append([trajectory(length=2)])
    with pytest.raises(RunFolderError, match="in part, and its response is at temperature 0"):
        read_run(folder)


@pytest.mark.parametrize("record", [replay((1.0,), DRAFT), alone("p", 2)])
def test_a_run_without_its_responses_names_the_file_that_is_missing(folder, record):
    with folder.writer() as writer:
        writer.append([record])
    with pytest.raises(RunFolderError, match=r"trajectory\.jsonl is missing") as caught:
        read_run(folder)
    assert "copy the whole run folder" in caught.value.hint


def test_of_an_answer_without_a_response_only_what_went_wrong_is_read(tmp_path):
    folder = RunFolder.create(tmp_path / "run", manifest(engine="vllm"))
    lost = scenes.served(None, 0, error="HTTP 500")
    with folder.writer() as writer:
        writer.append([lost])
        assert read_run(folder).served == (lost,)
        writer.append([scenes.served(None, 0, 0.1, request="other")])
    with pytest.raises(RunFolderError, match=r"trajectory\.jsonl is missing"):
        read_run(folder)


@pytest.mark.parametrize("turned", [False, True])
def test_whichever_worker_came_first_a_run_is_read_in_one_order(folder, turned):
    """The longest prompt first; the control after the drafts, and prompt lookup last."""
    records = [
        made
        for name, size in (("a", 5), ("b", 9))
        for made in (
            trajectory(name, 2, prompt_tokens=size),
            *(replay((1.0,), Candidate(draft=draft), request=name) for draft in ("self", "small")),
            scenes.lookup((1,), (0,), 2, name),
        )
    ]
    with folder.writer() as writer:
        for record in records[::-1] if turned else records:
            writer.append([record])
    run = read_run(folder)
    assert [row.request for row in run.trajectories] == ["b", "a"]
    drafts = ("small", "self", "ngram")
    assert [(r.candidate.draft, r.request) for r in run.replays] == [
        (draft, name) for draft in drafts for name in "ba"
    ]


def test_a_run_from_before_there_were_seals_is_read_and_in_doubt():
    """So is one whose seals were taken out: half a file would be read as a whole one."""
    found = read_run(RunFolder(SAMPLES / "alone"))
    assert (found.manifest.sealed, found.manifest.under_way) == (None, None)
    (doubt,) = (each for each in about_acceptance(found) if each.kind == "unfinished")
    assert doubt.decisive
    assert "nothing tells whether this run's files are whole" in doubt.text


def test_a_run_of_one_request_at_a_time_is_read():
    found = read_run(RunFolder(SAMPLES / "alone"))
    assert (len(found.trajectories), len(found.replays), len(found.costs)) == (2, 6, 12)
    assert len(found.decodes) == 18
    rates = {
        candidate.draft: rate.value
        for candidate in found.candidates
        if (rate := alpha(candidate_rounds(found, candidate).replays))
    }
    # Four of the draft's 18 tokens and 16 of the target's own are in the files as accepted.
    assert rates == pytest.approx({"draft": 4 / 18, "self": 16 / 18})


def test_a_run_with_batches_is_read():
    found = read_run(RunFolder(SAMPLES / "together"))
    assert found.manifest.question.concurrency == (1, 2)
    assert {row.concurrency for row in found.decodes} == {1, 2}
    active = {row.active for row in found.decodes if row.concurrency == 2}
    assert (2, 2, 1, 1, 1) in active
    assert [state.others for state in found.states] == [0.4]
    assert recommend(found).evaluations


def test_an_answer_that_came_when_it_was_asked_for_again_is_not_missed():
    """In another turn it is another answer."""
    lost = scenes.served(scenes.SMALL, 2, server="first", error="HTTP 500")
    again = scenes.served(scenes.SMALL, 2, 0.1, 0.2, server="second")
    other = scenes.served(scenes.SMALL, 2, 0.1, 0.2, server="third", repeat=1)
    assert run_of(scenes.manifest(), [lost, again]).unanswered == ()
    assert run_of(scenes.manifest(), [lost, other]).unanswered == (lost,)


def test_the_facts_of_a_stack_are_its_own_or_those_of_its_draft():
    stack = Candidate(draft="ngram+small")
    own, of_draft = scenes.facts(stack), scenes.facts(scenes.SMALL)
    assert run_of(manifest(), [of_draft]).facts_of(stack) == of_draft
    assert run_of(manifest(), [own, of_draft]).facts_of(stack) == own
    assert run_of(manifest(), [of_draft]).facts_of(scenes.NGRAM) is None


def test_a_run_shows_itself_in_three_lines():
    run = read_run(RunFolder(Path(__file__).parents[2] / "results/reference/tinyllama-gsm8k"))
    first, second, third = repr(run).split("\n")
    assert first.endswith("tinyllama-gsm8k: ./tinyllama on gsm8k.jsonl")
    assert second.startswith("stories15M")
    assert third.startswith("10 responses, ")


@pytest.mark.parametrize(
    ("requests", "sizes"),
    [(1, [1]), (64, [64]), (65, [64, 1]), (128, [64, 64]), (300, [64, 64, 128, 44])],
)
def test_every_wave_is_as_large_as_all_before_it(requests, sizes):
    names = [f"{at:03}" for at in range(requests)]
    found = waves(reversed(names))
    assert [len(wave) for wave in found] == sizes
    assert [name for wave in found for name in wave] == names


def test_a_part_of_a_run_has_what_was_measured_of_its_requests():
    records = [trajectory(name) for name in "abc"] + [replay((1,) * 8, request=n) for n in "abc"]
    records += [scenes.decode(scenes.SMALL, 0, 1.0, request=name) for name in "abc"]
    part = part_of(run_of(manifest(), [*records, scenes.step(None, 1.0)]), {"a", "c"})
    assert [row.request for row in part.trajectories] == ["a", "c"]
    assert [row.request for row in part.replays] == ["a", "c"]
    assert [row.request for row in part.decodes] == ["a", "c"]
    assert len(part.costs) == 1
