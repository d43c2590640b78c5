"""Sweeps of heads, with random weights beside a draft model and with faults in their files."""

import json

import pytest
import random_heads
import torch
from safetensors.torch import load_file
from scenes import EMBEDDED
from sweep.conftest import rows_as_replayed

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.errors import PairError, UsageError
from draftbench.gate.judge import judge
from draftbench.gate.make_baseline import make_baseline
from draftbench.records import Candidate, DraftingMode, LookupReplay


@pytest.fixture
def head(tmp_path):
    def made(vocabulary=2048):
        config = random_heads.config(vocabulary, 200, hidden=256)
        weights = random_heads.tensors(config)
        return f"eagle3:{random_heads.save(tmp_path / 'head', config, weights)}"

    return made


def test_a_head_is_replayed_and_decoded_through_the_same_rounds(small, head):
    how = {"ks": (1, 3), "quants": ("none", "int8"), "dtype": "float32"}
    run = small.found(head(), small.models / "draft", **how)
    names = sorted(map(str, run.candidates))
    assert names == ["draft", "draft:int8", "eagle3:head", "eagle3:head:int8"]
    own = {row.k for row in rows_as_replayed(run) if row.candidate.draft == "eagle3:head"}
    assert own == {1, 3}
    kinds = {type(r) for r in run.replays if r.candidate.draft == "eagle3:head"}
    assert kinds == {LookupReplay}
    assert all(facts.parameters for facts in map(run.facts_of, run.candidates))


def test_a_block_drafter_is_replayed_and_decoded_through_the_same_rounds(small):
    """At every length of its blocks, and at none beyond the longest, seven."""
    drafts = f"dflash:{EMBEDDED / 'block'}", small.models / "draft"
    run = small.found(
        *drafts, ks=(1, 2, 8), measure="all", quants=("none", "int8"), dtype="float32"
    )
    assert sorted(map(str, run.candidates)) == [
        "dflash:block", "dflash:block:int8", "draft", "draft:int8"
    ]  # fmt: skip
    own = {row.k for row in rows_as_replayed(run) if row.candidate.draft == "dflash:block"}
    assert own == {1, 2}
    assert max(row.k for row in run.decodes) == 8
    block = candidate_rounds(run, Candidate(draft="dflash:block"))
    assert (block.reaches(7), block.reaches(8)) == (True, False)
    with pytest.raises(PairError, match="`dflash:block` drafts at most 7 tokens a round"):
        small.prepared(drafts[0], ks=(8, 9))
    replays = [r for r in run.replays if r.candidate == Candidate(draft="dflash:block")]
    assert all(r.at_once and len(r.blocks) == 6 for r in replays)
    assert sum(map(sum, (r.matched for r in replays))) > 5


def test_a_head_of_another_vocabulary_is_refused_before_anything_is_loaded(small, head):
    prepared = small.prepared(head(300), small.models / "draft")
    (failure,) = prepared.failures
    assert (str(failure.candidate), failure.stage) == ("eagle3:head", "pair")
    assert "its vocabulary has 300 rows, and the target's 2048" in failure.reason
    assert [str(candidate) for candidate in prepared.candidates] == ["draft"]
    with pytest.raises(PairError):
        small.prepared(f"eagle3:{small.out.parent / 'head'}")


def test_a_head_does_not_sample(small, head):
    with pytest.raises(UsageError, match="drafts greedily with a head"):
        small.prepared(head(), mode=DraftingMode.SAMPLED)


def unnormed(config, weights):
    return config | {"norm_before_residual": True}, weights


def normed_output(config, weights):
    return config | {"norm_output": True}, weights


def swapped_layers(config, weights):
    return config | {"eagle_aux_hidden_state_layer_ids": [5, 4, 2]}, weights


def wrong_ids(config, weights):
    """Every drafted token has the id of the one before it, and `t2d` does not tell."""
    own = torch.arange(len(weights["d2t"]))
    ids = {"d2t": (own + weights["d2t"]).roll(1) - own}
    return config, {name: w for name, w in (weights | ids).items() if name != "t2d"}


FAULTS = unnormed, normed_output, swapped_layers, wrong_ids


@pytest.mark.slow
def test_a_fault_of_a_heads_files_fails_the_gate(small, tmp_path):
    """Decoding and replay share it, so that only acceptance shows it."""

    def faulty(fault):
        config = json.loads((small.models / "head/config.json").read_text())
        weights = load_file(small.models / "head/model.safetensors")
        return f"eagle3:{random_heads.save(tmp_path / fault.__name__, *fault(config, weights))}"

    heads = [f"eagle3:{small.models / 'head'}", *map(faulty, FAULTS)]
    how = {"ks": (3,), "requests": 24, "max_new_tokens": 48}
    run = small.found(*heads, **how, measure="replay", dtype="float32")
    sound, *others = (make_baseline(run, candidate, 3) for candidate in run.candidates)
    assert sound.faults == ()
    assert [judge(sound, other).verdict for other in others] == ["fail"] * len(FAULTS)
