"""`draftbench acceptance` on a small run folder made by hand."""

import json

import pytest
from scenes import manifest

from draftbench.records import Candidate, DraftingMode, Replay, Sampling, Trajectory
from draftbench.run_folder.folder import PrivateDraft, PrivateText, RunFolder


def along(request, draft, accept):
    return Replay(
        request=request,
        sample=0,
        candidate=Candidate(draft=draft),
        mode=DraftingMode.GREEDY,
        draftable=20,
        accept=accept,
        confidence=(0.9,) * len(accept),
        margin=(5.0,) * len(accept),
        rank=tuple(int(a == 0) for a in accept),
    )


@pytest.fixture
def make_run(tmp_path, embedded):
    """Six requests of four tokens, two drafts; `small` is wrong at the second position."""

    def make(*, private=True, target=embedded / "target"):
        folder = RunFolder.create(tmp_path / "run", manifest(target=str(target)))
        with folder.writer() as writer:
            for request in "abcdef":
                fields = {"segment": None, "weight": 1.0, "sampling": Sampling(), "digest": ""}
                facts = {"prompt_tokens": 1, "output_tokens": 4, "limit": 20, "finish": "stop"}
                seen = {"origin": "target", "margins": (5.0,) * 4, "argmax": (1,) * 4}
                writer.append([Trajectory(request=request, sample=0, **fields, **facts, **seen)])
                writer.append(
                    [along(request, "small", (1.0, 0.0, 1.0)), along(request, "big", (1.0,) * 3)]
                )
                if private:
                    text = {"prompt": (1,), "tokens": (1, 10, 11, 12), "log_p": ()}
                    writer.append([PrivateText(request=request, sample=0, **text)])
                    own = {"candidate": Candidate(draft="small"), "tokens": (10, 300, 12)}
                    writer.append([PrivateDraft(request=request, sample=0, **own)])
        return folder.path

    return make


def test_all_candidates_at_the_runs_own_draft_lengths(command, make_run):
    outcome = command("acceptance", make_run(), "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert [each["candidate"] for each in found["candidates"]] == ["small", "big"]
    assert {reading["k"] for reading in found["candidates"][0]["at_each_k"]} == {1, 2}
    # At k = 1 small's wrong token is never tried; at k = 2 it takes two rounds where big takes one.
    tokens = [d for d in found["differences"] if d["figure"] == "tokens per round"]
    assert [(d["k"], d["value"]["value"]) for d in tokens] == [
        (1, 0.0),
        (2, 3 / 2 - 3),
    ]


def test_candidates_lengths_and_width_are_chosen_by_flags(command, make_run, tmp_path):
    words = ["--candidate", "big", "--k", "1-3", "--width", "0.1", "-o", tmp_path / "out.json"]
    outcome = command("acceptance", make_run(), "--format", "json", *words)
    assert (outcome.code, outcome.out) == (0, "")
    found = json.loads((tmp_path / "out.json").read_text())
    assert [each["candidate"] for each in found["candidates"]] == ["big"]
    assert found["width"] == 0.1
    assert {reading["k"] for reading in found["candidates"][0]["at_each_k"]} == {1, 2, 3}


def test_without_the_flag_no_token_is_shown(command, make_run):
    run = make_run()
    assert "disagreement" not in command("acceptance", run).out
    assert json.loads(command("acceptance", run, "--format", "json").out)["disagreements"] is None


def test_the_flag_shows_tokens_in_the_targets_words(command, make_run, embedded):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(embedded / "target"))
    outcome = command("acceptance", make_run(), "--show-text", "--format", "json")
    # At the run's longest k; at k = 1 the wrong token would never be tried.
    (found,) = json.loads(outcome.out)["disagreements"]["small"]
    assert (found["drafted"], found["target"], found["rounds_lost"]) == (300, 11, 6.0)
    assert (found["drafted_text"], found["target_text"]) == (
        tokenizer.decode([300]),
        tokenizer.decode([11]),
    )


def test_tokens_are_ids_where_the_tokenizer_is_gone(command, make_run, tmp_path):
    run = make_run(target=tmp_path / "gone")
    outcome = command("acceptance", run, "--k", "2", "--show-text")
    assert outcome.code == 0
    assert "#300     #11         6          6.0  100.0%" in outcome.out
    assert outcome.err.startswith("note: tokens are shown as ids: no model at")


def test_a_deleted_private_part_loses_the_tokens_only(command, failing, make_run):
    run = make_run(private=False)
    assert command("acceptance", run).code == 0
    said = failing(2, "acceptance", run, "--show-text")
    assert "this run holds no drafted tokens to show" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--candidate", "tiny"], "the run has no candidate `tiny`"),
        (["--width", "2"], "--width 2: expected a share"),
        (["--k", "0"], "--k 0"),
    ],
)
def test_mistakes_are_named(failing, make_run, words, said):
    assert said in failing(2, "acceptance", make_run(), *words)
