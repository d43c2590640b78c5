"""What makes a run doubtful, and that every answer that rests on it says so.

Without speculation 8 tokens take 8 s by timed steps; with a draft that is always right they take
4.95 s at k = 1 and 4.1 s at k = 2.
"""

import json

import pytest
from scenes import ALL, BIG, SELF_DRAFT, SMALL, manifest

from draftbench.planner.recommend import recommend
from draftbench.run_folder.folder import RunFolder

PROMISED = {1: 4.95, 2: 4.1}


@pytest.fixture
def decoded(scene):
    """decoded(plain, rounds, …): two drafts timed and decoded at k = 1 and 2, where plain decoding
    takes `plain` times as long as its steps promise, and rounds `rounds` times.
    """

    def made(plain=1.0, rounds=1.0, candidates=(SMALL, BIG), **changes):
        scene.requests(30, ALL, SMALL, BIG)
        for candidate in (SMALL, BIG):
            scene.times({1: 1.0, 2: 1.1, 3: 1.2}, {1: 0.1, 2: 0.15}, candidate)
            off = candidate in candidates
            for k, seconds in PROMISED.items():
                scene.decodes(
                    30, k, seconds * (rounds if off else 1.0), candidate,
                    plain=8.0 * (plain if off else 1.0), process=f"p{k}",
                )  # fmt: skip
        return scene.observed(1, 2, **changes)

    return made


def mismatch(run):
    found = [each for each in recommend(run).caveats if each.kind == "baseline-mismatch"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("plain", "rounds", "told"),
    [
        (1.0, 1.0, None),
        (1.05, 1.0, None),
        (1.2, 1.2, None),  # both alike: only the difference affects the speed-up
        (1.3, 1.0, "off by a factor of 1.30"),
        (0.8, 1.0, "off by a factor of 1.25"),
        (1.4, 1.1, "off by a factor of 1.27"),
        (0.8, 0.9, "off by a factor of 1.12"),
        (1.0, 1.3, None),  # rounds may take more than their passes: decoding showed it
        (1.2, 0.9, "off by a factor of 1.33"),
        (1.0, 0.95, None),
        (
            1.0,
            0.8,
            "off by a factor of 1.25",
        ),  # nothing honest makes rounds faster than their passes
    ],
)
def test_plain_decoding_is_held_to_its_own_steps_however_many_cells_agree(
    decoded, plain, rounds, told
):
    """Known fault: the more was decoded, the better a slow baseline was predicted."""
    found = mismatch(decoded(plain, rounds))
    assert (found is not None) is (told is not None)
    if told:
        assert found.decisive
        assert told in found.text
        assert f"plain decoding took {plain:.2f} times as long as its steps" in found.short


def test_a_baseline_that_is_slow_beside_one_draft_alone_is_said(decoded):
    found = mismatch(decoded(plain=1.3, candidates=(BIG,)))
    assert "beside big, plain decoding took 1.30 times" in found.short


def test_a_slow_baseline_in_one_process_of_several_counts_by_what_it_changes(scene):
    """Known fault: the other process outvoted it."""
    scene.timed(30)
    for process, slower in (("p1", 1.0), ("p2", 1.0), ("p3", 1.6)):
        scene.decodes(30, 2, 4.1, plain=8.0 * slower, process=process)
    found = mismatch(scene.observed(2))
    assert "off by a factor of 1.17" in found.text  # the third root of 1.6


def test_the_load_at_which_plain_decoding_is_off_is_named(decoded, scene):
    decoded()
    for candidate in (SMALL, BIG):
        times = {1: 1.0, 2: 1.1, 3: 1.2}
        scene.times(times, {1: 0.1, 2: 0.15}, candidate, concurrency=2)
        for name in (f"r{at}" for at in range(10)):
            scene.batch_run(name, 0, [0] * 8, [1.5] * 8, candidate=candidate)
            scene.batch_run(name, 1, [1, 1, 1, 1], [1.25] * 4, candidate=candidate)
    found = mismatch(scene.observed(1, 2, concurrency=(1, 2)))
    assert "at concurrency 2, plain decoding took 1.50 times as long as its steps" in found.short


@pytest.fixture
def written(scene, tmp_path):
    """written(name, **changes of the manifest): the scene's records as a run folder."""

    def make(name, **changes):
        head = manifest(ks=(1, 2), requests=30, run=name, key_id="key", **changes)
        folder = RunFolder.create(tmp_path / name, head)
        with folder.writer() as writer:
            writer.append(scene.records)
        folder.note_sweep(head, changes.get("under_way"))
        return tmp_path / name

    return make


def fail_the_control(scene):
    for name in (f"r{at}" for at in range(30)):
        scene.replay(name, [1.0, 0.0] * 4, SELF_DRAFT)
    return {}, "self: suspected fault: the target rejects its greedy draft of itself at 120 of 240"


def step_otherwise(scene):
    scene.facts("small", replay_disagreement=0.4)
    return {}, "small: stepping chose another token than replay at 40% of positions"


def cut_off(scene):
    return {"under_way": (SMALL,)}, "this run is not finished (cut off at candidate 1 of 1"


def replay_partly(scene):
    scene.request("r30")
    return {}, "small: replayed on only 30 of 31 responses"


@pytest.mark.parametrize("plant", [fail_the_control, step_otherwise, cut_off, replay_partly])
def test_every_answer_that_rests_on_acceptance_says_what_makes_it_doubtful(
    scene, written, command, tmp_path, plant
):
    """Known fault: `recommend` alone knew that the control had failed."""
    scene.timed(30)
    scene.decodes(30, 2, 4.1)
    sound = written("sound")
    changes, words = plant(scene)
    doubtful = written("doubtful", **changes)

    def says(*asked, code=0):
        outcome = command(*asked)
        assert outcome.code == code, outcome.err
        text = " ".join((outcome.out + outcome.err).split())
        return words in text

    assert says("recommend", doubtful, "--all")
    assert says("acceptance", doubtful)
    assert says("acceptance", doubtful, "--all")
    assert says("acceptance", doubtful, "--format", "json")
    assert says("compare", sound, doubtful)
    page = tmp_path / "page.html"
    command("report", doubtful, "--html", page)
    assert words in " ".join(page.read_text().replace("\u00a0", " ").split())
    baseline = tmp_path / "baseline.json"
    assert not says("gate", "--save", baseline, sound, "--candidate", "small", "--k", 2)
    assert says("gate", "--baseline", baseline, doubtful, code=3)
    assert says("gate", "--baseline", doubtful, sound, code=3)
    exported = command("export", doubtful, "--engine", "vllm")
    assert "provisional" in exported.err


def test_a_sound_run_raises_no_doubt_in_any_answer(scene, written, command, tmp_path):
    scene.timed(30)
    scene.decodes(30, 2, 4.1)
    run, later = written("run"), written("later")
    found = json.loads(command("acceptance", run, "--format", "json").out)
    assert [each for each in found["doubts"] if "nearly all" not in each] == found["doubts"]
    outcome = command("gate", "--baseline", run, later, "--format", "json")
    judged = json.loads(outcome.out)
    assert (outcome.code, judged["doubts"]) == (0, [])
    assert "doubt" not in command("compare", run, later).out


def test_a_doubt_about_one_draft_leaves_the_others_alone(scene, written, command):
    scene.requests(30, ALL, SMALL, BIG)
    for candidate in (SMALL, BIG):
        scene.times({1: 1.0, 2: 1.1, 3: 1.2}, {1: 0.1, 2: 0.15}, candidate)
    old = written("old")
    scene.facts("big", replay_disagreement=0.4)
    new = written("new")
    assert command("gate", "--baseline", old, new, "--candidate", "small").code == 0
    assert command("gate", "--baseline", old, new, "--candidate", "big").code == 3


@pytest.mark.parametrize(
    ("copied", "length", "told"),
    [
        (0, 20, None),
        (3, 20, None),  # a tenth
        (4, 20, False),
        (15, 20, True),
        (15, 8, None),  # short answers may well be the same
    ],
)
def test_requests_that_are_answered_alike_do_not_count_as_so_many(scene, copied, length, told):
    for at in range(30):
        scene.request(f"r{at}", length, digest="same" if at <= copied else f"d{at}")
        scene.replay(f"r{at}", [1.0] * (length - 1))
    found = [
        each for each in recommend(scene.observed(1)).caveats if each.kind == "copied-requests"
    ]
    assert [each.decisive for each in found] == ([] if told is None else [told])
    assert not found or found[0].short.startswith(f"{copied} of 30 requests were answered like")


def test_a_refusal_that_many_prompts_get_is_no_copy(scene):
    for at in range(30):
        scene.request(f"r{at}", 20, digest="sorry", prompt_tokens=10 + 20 * at)
        scene.replay(f"r{at}", [1.0] * 19)
    kinds = {each.kind for each in recommend(scene.observed(1)).caveats}
    assert "copied-requests" not in kinds


def test_several_samples_of_one_request_are_no_copies(scene):
    for at in range(30):
        for sample in (0, 1):
            scene.request(f"r{at}", 20, sample=sample, digest=f"d{at}")
            scene.replay(f"r{at}", [1.0] * 19, sample=sample)
    assert not [
        each for each in recommend(scene.observed(1)).caveats if each.kind == "copied-requests"
    ]
