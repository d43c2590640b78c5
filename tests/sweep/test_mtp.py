"""Sweeps of the layers that a target carries to draft for itself."""

import json
import shutil

import pytest
import random_mtp
from sweep.conftest import rows_as_replayed
from transformers import Glm4MoeForCausalLM

from draftbench.drafts.check import check_models
from draftbench.drafts.stack.replay import StackReplay
from draftbench.errors import PairError
from draftbench.models.source import ModelSource
from draftbench.sweep.options import ServingOptions


@pytest.fixture
def target(small, tmp_path, monkeypatch):
    """A target with so many such layers, and the embedded models' tokenizer."""
    monkeypatch.setattr(
        Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", random_mtp.LEFT_OUT
    )

    def made(layers):
        folder = random_mtp.save(tmp_path / "target", layers, 2048)
        for file in (small.models / "target").iterdir():
            if not (folder / file.name).exists() and file.suffix != ".safetensors":
                shutil.copy(file, folder)
        return folder

    return made


@pytest.mark.parametrize(
    ("layers", "drafted", "said"),
    [(1, 3, ()), (2, 2, ("it drafts at most 2 tokens a round, one by each layer",))],
)
def test_a_targets_own_layers_are_replayed_and_decoded_through_the_same_rounds(
    small, target, layers, drafted, said
):
    """Alone, and behind prompt lookup."""
    how = {"ks": (1, 3), "dtype": "float32", "max_new_tokens": 24}
    run = small.found("ngram+mtp", **how, target=str(target(layers)), measure_requests=2)
    own = run.candidates[0]
    assert [str(candidate) for candidate in run.candidates] == ["mtp", "ngram", "ngram+mtp"]
    assert run.facts_of(own).caveats == said
    alone = [record for record in run.replays if record.candidate == own]
    assert {n for record in alone for n in record.proposed} == {drafted}
    decoded = {(row.candidate, row.k) for row in rows_as_replayed(run)}
    assert decoded == {(candidate, k) for candidate in run.candidates for k in (1, 3)}
    stacked = [record for record in run.replays if isinstance(record, StackReplay)]
    assert {bool(n) for record in stacked for n in record.lookup.proposed} == {True, False}


def test_check_says_that_no_engine_is_needed_where_the_built_in_decoder_drafts_so(target):
    (sheet,) = check_models(ModelSource(str(target(1))), [], 1 << 40, heads=["mtp"]).heads
    assert sheet.caveats == ("the built-in decoder drafts with it, without an engine",)


def test_a_target_without_such_layers_is_refused(small):
    with pytest.raises(PairError, match="`target` carries no layers that draft for it"):
        small.prepared("mtp")


def test_layers_that_are_stored_quantized_are_left_to_engines(small, target):
    config = target(1) / "config.json"
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": fp8}))
    with pytest.raises(PairError, match="it is stored as fp8") as it:
        small.prepared("mtp", target=str(config.parent))
    assert "vLLM" in it.value.hint


@pytest.mark.parametrize(
    ("layers", "named", "known"), [(1, [], 0), (2, random_mtp.LEFT_OUT[:1], 1)]
)
def test_layers_that_transformers_does_not_know_are_left_to_engines(
    small, target, monkeypatch, layers, named, known
):
    folder = target(layers)
    names = [r"model\.layers\.92.*", *named]
    monkeypatch.setattr(Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", names)
    why = f"transformers knows {known} of {layers} such layers"
    with pytest.raises(PairError, match=f"cannot draft by `mtp`: .*{why}") as it:
        small.prepared("mtp", target=str(folder))
    assert "vLLM" in it.value.hint
    (sheet,) = check_models(ModelSource(str(folder)), [], 1 << 40, heads=["mtp"]).heads
    assert any(why in caveat for caveat in sheet.caveats)
    assert sheet.obstacles == ()


@pytest.fixture
def dspark(target):
    """A target whose configuration says that it carries a DSpark drafter."""
    config = target(1) / "config.json"
    said = json.loads(config.read_text()) | {"dspark_block_size": 5}
    config.write_text(json.dumps(said))
    return str(config.parent)


def test_mtp_is_refused_of_a_dspark_drafter_with_what_measures_it(small, dspark):
    with pytest.raises(PairError, match=r"`target` carries a DSpark drafter .* not an MTP") as it:
        small.prepared("mtp", target=dspark)
    assert "spec:FILE.json" in it.value.hint


@pytest.mark.parametrize("here", [True, False])
def test_no_server_is_started_for_mtp_of_a_target_with_a_dspark_drafter(small, dspark, here):
    """Its folder says it, or its very name."""
    named = dspark if here else "deepseek-ai/DeepSeek-V4-Flash-0731"
    with pytest.raises(PairError, match=r"carries a DSpark drafter .* not an MTP head") as it:
        small.prepared("mtp", target=named, serving=ServingOptions(engine="vllm"))
    assert '"method": "dspark"' in it.value.hint
