"""What embedded models cannot show: real chat models, other vocabularies, 49,152 logits a token.

Needs the folder that `DRAFTBENCH_MODELS` names; skipped without it.
"""

import os
from pathlib import Path

import check_greedy
import pytest
import torch

from draftbench.cli import main
from draftbench.measure.prompts import TargetText
from draftbench.models.compatibility import check_pair
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource

pytestmark = pytest.mark.real
REQUESTS, TOKENS, K = 3, 64, 4


@pytest.fixture
def model():
    """The directory of a real model by name."""
    folder = os.environ.get("DRAFTBENCH_MODELS")
    if not folder:
        pytest.skip("DRAFTBENCH_MODELS names no folder of real models")

    def find(name):
        path = Path(folder).expanduser() / name
        if not path.is_dir():
            pytest.skip(f"no {name} in the folder that DRAFTBENCH_MODELS names")
        return str(path)

    return find


def test_greedy_speculation_writes_what_transformers_writes(model):
    """The int4 copy and the first half of the layers must reject in every request, or no cache was
    rolled back.
    """
    source = ModelSource(model("smollm2"))
    ends = TargetText(source).end_tokens
    asked = check_greedy.prompts(source, "suite:creative", REQUESTS, TOKENS)
    known = check_greedy.references(source, asked, TOKENS, ends)
    target, _ = build_runner(source, Build(torch.float32, "none", "cpu"), None)
    rejecting = {}
    for name, draft in check_greedy.drafts(source, target, ()):
        tally = check_greedy.check(draft, target, known, (K, 1), (TOKENS, ends))
        together = check_greedy.check(draft, target, known, (K, REQUESTS), (TOKENS, ends))
        assert tally.faults == together.faults == [], name
        assert tally.equal + tally.ties == REQUESTS
        rejecting[name] = tally.rejecting
    assert rejecting["self"] == 0
    assert rejecting["int4 copy"] == rejecting["first half of layers"] == REQUESTS


def test_what_a_draft_of_another_family_covers_is_said_before_weights_load(
    model, monkeypatch, capsys
):
    def load(self, dtype, device):
        raise AssertionError(f"the weights of {self.spec} were loaded")

    monkeypatch.setattr(ModelSource, "load", load)
    words = ["--target", model("qwen1.5"), "--drafts", model("smollm2")]
    assert main(["sweep", *words, "--traffic", "suite:chat", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "note on smollm2: the draft lacks" in said
    assert "of the traffic's tokens can be accepted" in said


def test_two_sizes_of_a_family_pair(model):
    """Their templates write the braces of tool calls differently."""
    target, draft = ModelSource(model("qwen1.5")), ModelSource(model("qwen0.5"))
    caveats = ("the chat templates differ; the target's is used for both",)
    assert check_pair(target, draft) == caveats


def test_a_story_teller_pairs_with_a_chat_model_with_caveats(model):
    caveats = check_pair(ModelSource(model("tinyllama")), ModelSource(model("stories15M")))
    assert caveats == (
        "the draft has no chat template: it was probably not trained on this dialogue format",
        "the draft's context ends at 256 tokens (target: 2048); nothing is drafted beyond",
    )
