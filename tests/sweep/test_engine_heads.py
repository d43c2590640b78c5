"""A sweep of a head with random weights on an engine, over whose answers it is replayed."""

from functools import cache

import pytest
import random_heads
import torch
from sweep import engine
from sweep.engine import FakeEngine, FakeServer
from transformers import AutoModelForCausalLM

from draftbench.errors import PairError, UsageError
from draftbench.sweep import engine_prepare
from draftbench.sweep.estimates import sheets_of
from draftbench.sweep.options import ServingOptions


@pytest.fixture
def head(tmp_path):
    """head(vocabulary, …) saves one and names it as --drafts does; a field of None is not said."""

    def made(vocabulary=2048, **fields):
        config = random_heads.config(vocabulary, 200, hidden=256, **fields)
        said = {name: value for name, value in config.items() if value is not None}
        weights = random_heads.tensors(config)
        return f"eagle3:{random_heads.save(tmp_path / 'head', said, weights)}"

    return made


@pytest.fixture
def follows(small, monkeypatch):
    """follows(norm_before_residual): every server then writes what the head drafts by the plain
    formulas, but at every third token another.
    """
    model = AutoModelForCausalLM.from_pretrained(small.models / "target", dtype=torch.float32)

    def made(norm_before_residual):
        config = random_heads.config(2048, 200, 256, norm_before_residual=norm_before_residual)
        weights = random_heads.tensors(config)

        @cache
        def written(prompt, limit):
            text = [*prompt, 7]
            while len(text) < len(prompt) + limit:
                with torch.no_grad():
                    told = model(torch.tensor([text]), output_hidden_states=True).hidden_states
                states = torch.cat([told[layer][0] for layer in random_heads.READS], 1)
                newest = len(text) - 1
                (token,) = random_heads.drafted_from(config, weights, text, states, newest, 1)
                odd = (len(text) - len(prompt)) % 3 == 0
                text.append((token + odd) % 2048)
            return tuple(text[len(prompt) :])

        monkeypatch.setattr(engine, "writes", lambda prompt, limit: written(tuple(prompt), limit))

    return made


@pytest.mark.parametrize(
    ("name", "said", "read"),
    [
        pytest.param("vllm", True, True, marks=pytest.mark.slow),
        pytest.param("vllm", False, False, marks=pytest.mark.slow),
        pytest.param("sglang", False, False, marks=pytest.mark.slow),
        # Where a checkpoint is silent, the head is replayed as the engine reads it.
        ("vllm", None, True),
        ("sglang", None, False),
    ],
)
def test_on_an_engine_a_head_is_replayed_over_its_answers(
    served, small, follows, head, name, said, read
):
    follows(read)
    asked = {"ks": (2, 4), "measure": "none", "controls": False, "dtype": "float32"}
    asked["serving"] = {"engine": name}
    found = served(head(norm_before_residual=said), **asked)
    assert found.engine.ks == [0, 0]
    assert len(found.run.replays) == 2
    for record in found.run.replays:
        assert record.proposed == (4,) * 9
        assert [matched > 0 for matched in record.matched] == [n % 3 != 0 for n in range(1, 10)]
    (facts,) = [facts for facts in map(found.run.facts_of, found.run.candidates) if facts]
    states = "replayed over states of the target that were computed here in float32"
    assert f"{states} ({name} computes in float32)" in facts.caveats
    silent = [text for text in facts.caveats if "it does not say norm_before_residual" in text]
    assert len(silent) == (said is None)
    assert served(f"eagle3:{small.out.parent / 'head'}", **asked).engine.ks == []


def test_an_engine_is_started_with_a_head_where_replay_leaves_a_k_open(served, head):
    """Every k takes the same time here, so that no third is predicted to be faster."""
    found = served(head(), "ngram", controls=False)
    assert found.engine.ks == [0, 2, 8, 2, 8, 0]
    assert {start.speculation.quant for start in found.engine.starts if start.speculation} == {
        "none"
    }


def test_a_head_is_started_at_no_level_that_the_engine_does_not_make(served, small, head):
    found = served(head(), quants=("none", "int8"), measure="all", ks=(2,), controls=False)
    assert {str(replay.candidate) for replay in found.run.replays} == {
        "eagle3:head",
        "eagle3:head:int8",
    }
    assert found.engine.ks == [0, 2, 0]


def test_a_head_that_the_engine_would_misread_is_replayed_and_not_started(served, small, head):
    found = served(
        head(eagle_aux_hidden_state_layer_ids=[4, 1, 3]), measure="all", ks=(2,), controls=False
    )
    assert len(found.run.replays) == 2
    assert found.engine.ks == [0, 0]
    words = "it sorts the layers that a head reads, and this one reads [4, 1, 3]"
    assert f"eagle3:head is replayed only, not started on vllm: {words}" in small.notes
    (facts,) = filter(None, map(found.run.facts_of, found.run.candidates))
    assert facts.misread["vllm"] == words.removeprefix("it ")


def test_where_the_target_cannot_run_here_the_engine_counts(served, small, head, monkeypatch):
    monkeypatch.setattr(engine_prepare, "memory_free", lambda device: 12_300_000)
    asked = {"measure": "all", "ks": (2, 4), "controls": False, "dtype": "float32"}
    found = served(head(), **asked)
    assert found.run.replays == ()
    assert found.engine.ks == [0, 2, 4, 0]
    said = "note on eagle3:head: it is not replayed, but counted by the engine: the target takes "
    assert f"{said}25.7 MB here, and 12.3 MB are free" in small.notes


def test_a_head_of_another_target_is_refused_before_a_server_is_started(served, head):
    started = FakeEngine()
    with pytest.raises(PairError, match="its vocabulary has 300 rows, and the target's 2048"):
        served(head(300), on=started, controls=False)
    assert started.starts == []


def test_a_head_is_replayed_over_a_running_server_where_the_targets_weights_are_here(
    served, small, head, monkeypatch
):
    how = {"on": [FakeServer()], "measure": "replay", "controls": False}
    draft = head()
    assert len(served(draft, **how).run.replays) == 2
    monkeypatch.setattr(engine_prepare, "memory_free", lambda device: 0)
    with pytest.raises(UsageError, match="head` cannot be replayed: the target takes"):
        served(draft, out="other", **how)


def test_a_dry_run_on_an_engine_counts_the_target_beside_a_head(small, head):
    draft = small.models / "draft"
    prepared = small.prepared(head(), draft, serving=ServingOptions(engine="vllm"))
    target, drafts = sheets_of(prepared)
    assert target is not None
    assert list(drafts) == ["draft"]
