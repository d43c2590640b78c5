"""Planted faults are named, and sound decoders are not."""

from dataclasses import replace

import msgspec
import pytest
from audit import faults
from audit.conftest import REQUESTS
from scenes import EMBEDDED

from draftbench.audit.audit import Audit, audit
from draftbench.cli.audit import sections

pytestmark = pytest.mark.slow
CLEAN = [
    (which, dtype) for which in ("head", "block", "draft") for dtype in ("float32", "bfloat16")
]


@pytest.mark.parametrize("name", faults.HEAD)
def test_a_fault_of_a_head_is_named(audited, name):
    assert_named(audited("head", faults.HEAD[name]), name)


@pytest.mark.parametrize(("which", "name"), faults.SMALL)
def test_a_fault_that_moves_few_rounds_takes_more_of_them(audited, which, name):
    assert_named(audited(which, faults.SMALL[which, name], requests=32), name)


@pytest.mark.parametrize("name", faults.BLOCK)
def test_a_fault_of_a_block_drafter_is_named(audited, name):
    assert_named(audited("block", faults.BLOCK[name]), name)


@pytest.mark.parametrize("name", faults.MODEL)
def test_a_fault_of_a_draft_model_is_named(audited, name):
    assert_named(audited("draft", faults.MODEL[name]), name)


@pytest.mark.parametrize(("which", "name"), faults.OF_OTHERS)
def test_a_fault_that_needs_another_draft_is_named(audited, which, name):
    assert_named(audited(which, faults.OF_OTHERS[which, name]), name)


def assert_named(found, name):
    assert (found.verdict, found.counted) == ("explained", "rounds")
    assert found.named[0].hypothesis == name
    assert found.named[0].tally.share > max(0.98, found.named[0].before.share)


@pytest.mark.parametrize(("which", "dtype"), CLEAN)
def test_a_sound_decoder_is_sound(audited, which, dtype):
    found = audited(which, dtype=dtype)
    assert (found.verdict, found.named, found.tally.differ) == ("sound", (), 0)


def test_another_checkpoint_is_named_if_it_is_given(audited):
    other = EMBEDDED / "distilled"
    found = audited("draft", faults.from_checkpoint(other), weights=str(other))
    assert_named(found, "other-weights")


def test_a_fault_that_no_hypothesis_has_is_not_named(audited):
    found = audited("draft", faults.from_checkpoint(EMBEDDED / "distilled"))
    assert (found.verdict, found.named) == ("not explained", ())
    assert found.others[0].tally.share < 0.9


def of_other_files(swept, fault):
    """What is said of a run with a fault whose draft's files were overwritten since."""
    of = swept("draft", "float32", REQUESTS)
    run = of.decoded(fault)
    specs = run.manifest.specs | {of.candidate.draft: str(EMBEDDED / "distilled")}
    run = replace(run, manifest=msgspec.structs.replace(run.manifest, specs=specs))
    (found,) = audit(run, [of.candidate]).candidates
    return found


def test_files_that_were_overwritten_are_named_if_the_decoder_drafted_with_them(swept):
    found = of_other_files(swept, faults.from_checkpoint(EMBEDDED / "distilled"))
    assert_named(found, "changed-since")


def test_files_that_were_overwritten_since_are_said_to_be_others(swept):
    found = of_other_files(swept, faults.MODEL["stale-keys"])
    assert (found.verdict, found.named) == ("not explained", ())
    assert "its files have changed" in found.not_tried[-1]


@pytest.mark.parametrize(
    ("which", "norm"),
    [("head", "norm.weight"), ("block", "norm.weight"), ("draft", "model.norm.weight")],
)
def test_of_a_draft_that_is_never_right_a_fault_is_named_as_a_possible_one(audited, which, norm):
    """It proposes the unlikeliest token, and whatever breaks a draft explains its rounds."""
    found = audited(which, faults.with_tensor(norm, lambda tensor: -tensor))
    assert found.idle
    (shown,) = sections(Audit(run="run", decoder="vllm", near_tie=0.5, candidates=(found,)))
    assert "this is why" not in shown.title
    assert any(note.startswith("Next to nothing was accepted") for note in shown.notes)


def test_a_fault_that_moves_no_round_is_none(audited):
    """The prompts are long, and their first token is far away."""
    found = audited("draft", faults.reading(lambda tokens: tokens[1:]))
    assert (found.verdict, found.tally.differ) == ("sound", 0)
