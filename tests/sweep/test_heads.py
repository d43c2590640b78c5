"""A sweep of a head with random weights beside a draft model, by the built-in decoder."""

import pytest
import random_heads

from draftbench.errors import PairError, UsageError
from draftbench.records import DraftingMode, LookupReplay


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
    along = {(r.key, str(r.candidate)): r for r in run.replays}
    own = [row for row in run.decodes if row.k and row.candidate.draft == "eagle3:head"]
    assert {row.k for row in own} == {1, 3}
    for row in own:
        record, response, at = along[row.key, str(row.candidate)], run.responses[row.key], 1
        assert isinstance(record, LookupReplay)
        assert row.digest == response.digest
        for accepted in row.accepted:
            room = min(row.k, response.limit - at - 1)
            assert accepted == min(record.matched[at - 1], room)
            at += accepted + 1
    assert all(facts.parameters for facts in map(run.facts_of, run.candidates))


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
