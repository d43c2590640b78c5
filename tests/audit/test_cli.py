"""`draftbench audit`: what it prints, and the exit codes."""

import json
import shutil

import pytest
import scenes
from scenes import REFERENCE, SMALL

from draftbench.run_folder.folder import RunFolder

RUN = REFERENCE / "qwen2.5-coder"


def test_a_sound_run_exits_with_0_and_needs_no_model(command):
    outcome = command("audit", RUN)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Sound: ")
    assert "are as replayed" in " ".join(outcome.out.split())


def test_one_candidate_can_be_asked_for(command, failing):
    names = [each["candidate"] for each in answers(command, RUN)]
    assert len(names) > 1
    (only,) = answers(command, RUN, "--candidate", names[0])
    assert only["candidate"] == names[0]
    assert "did you mean" in failing(2, "audit", RUN, "--candidate", names[0] + "x")


def answers(command, *words):
    return json.loads(command("audit", *words, "--format", "json").out)["candidates"]


def test_the_hypotheses_are_listed(command):
    shown = command("audit", "--list").out
    assert "layers-lower" in shown
    listed = json.loads(command("audit", "--list", "--format", "json").out)
    assert listed["cache-8-bit"]["seen"].startswith("llama-server with -ctkd q8_0")


def test_a_run_without_decodes_cannot_be_audited(failing, tmp_path):
    run = shutil.copytree(RUN, tmp_path / "run")
    (run / "observations" / "decode.jsonl").unlink()
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"sealed": None}))
    assert "no rounds were decoded" in failing(2, "audit", run)


def folder_of(path, *records, **question):
    """A run folder with these records."""
    folder = RunFolder.create(path, scenes.manifest(**question))
    with folder.writer() as writer:
        writer.append(records)
    return folder


def test_a_draft_that_only_an_engine_ran_cannot_be_audited(failing, tmp_path):
    response = scenes.trajectory("r", 3, origin="engine", margins=(), argmax=())
    answer = scenes.served(SMALL, 2, 1.0, 2.0, 3.0)
    folder_of(tmp_path / "run", response, answer, engine="vllm")
    assert "`small` was not replayed" in failing(2, "audit", tmp_path / "run")


def test_a_draft_that_was_not_replayed_is_named_beside_one_that_was(command, tmp_path):
    response = scenes.trajectory("r", 3, origin="engine", margins=(), argmax=())
    lookup = scenes.lookup((1, 0), (1, 0))
    answers = [scenes.served(draft, 2, 1.0, 2.0, 3.0) for draft in (lookup.candidate, SMALL)]
    folder_of(tmp_path / "run", response, lookup, *answers, engine="vllm")
    shown = command("audit", tmp_path / "run").out
    assert "Not judged: small on vllm was not replayed." in shown


def test_a_type_is_refused_where_no_engine_computed(failing):
    told = failing(2, "audit", RUN, "--dtype", "float32")
    assert "--dtype makes no sense for a run of the built-in decoder" in told


@pytest.fixture
def contradicted(tmp_path):
    """A run of 60 rounds in which nothing was accepted, though replay says that every second token
    is, so that there were 40 to begin where it says so.
    """
    response = scenes.trajectory("r", 61)
    decode = scenes.decode(
        SMALL,
        1,
        1.0,
        proposed=(1,) * 59 + (0,),
        accepted=(0,) * 60,
        cut=(0,) * 60,
        draft_seconds=(1.0,) * 60,
        verify_seconds=(1.0,) * 60,
        output_tokens=61,
    )
    return folder_of(tmp_path / "run", response, scenes.replay((1.0, 0.0) * 30), decode, ks=(1,))


def test_a_run_whose_models_are_elsewhere_is_still_judged(command, contradicted):
    outcome = command("audit", contradicted.path)
    assert outcome.code == 1
    shown = " ".join(outcome.out.split())
    assert shown.startswith("Not explained: small on the built-in decoder does not draft as replay")
    # Rounds begin at 1 … 59, and replay accepts at the 30 odd ones of these.
    assert "29 of 59 rounds of 1 request are as replayed, 30 are not" in shown
    assert "Not tried: " in shown


def test_a_run_whose_texts_were_deleted_is_still_judged(command, contradicted):
    contradicted.redact()
    outcome = command("audit", contradicted.path)
    assert outcome.code == 1
    assert "was redacted: the responses to replay were deleted" in " ".join(outcome.out.split())
