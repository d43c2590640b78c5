"""Names, files and everything that can be wrong with them."""

import json
import shutil
from pathlib import Path

import pytest
import random_mtp
import torch
from safetensors.torch import load_file, save_file
from scenes import with_fields
from transformers import AutoModelForCausalLM, Glm4MoeForCausalLM

from draftbench.drafts.check import check_models
from draftbench.drafts.loading import Pairing
from draftbench.drafts.mtp.draft import check
from draftbench.errors import ModelError, PairError
from draftbench.hub import Trust, split_revision
from draftbench.models.source import ModelSource, end_tokens


def refused(source, what="config"):
    """The error of reading a part of a model."""
    with pytest.raises(ModelError) as caught:
        source.load(torch.float32, "cpu") if what == "weights" else getattr(source, what)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


def test_a_model_is_called_by_the_last_part_of_its_path_or_id(workshop, tmp_path):
    workshop.source("org-7b.v2")
    (tmp_path / "some.Q4_K.gguf").touch()
    assert ModelSource(str(tmp_path / "org-7b.v2") + "/").name == "org-7b.v2"
    assert ModelSource(str(tmp_path / "some.Q4_K.gguf")).name == "some.Q4_K"
    assert ModelSource("org/name@v1").name == "name"


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", "feature/x"])
def test_a_revision_may_hold_slashes_unless_a_folder_has_that_name(workshop, monkeypatch, revision):
    spec = f"org/name@{revision}"
    assert split_revision(spec) == ("org/name", revision)
    assert (ModelSource(spec).on_hub, ModelSource(spec).name) == (True, "name")
    workshop.source(spec)
    monkeypatch.chdir(workshop.folder)
    assert split_revision(spec) == (spec, None)
    assert (ModelSource(spec).local, ModelSource(spec).on_hub) == (True, False)
    assert ModelSource(spec).name == Path(spec).name


@pytest.mark.parametrize("path", ["./a@b/c", "/a@b", "~/a@b", "x/a@b.gguf", "x/y/z@b"])
def test_a_path_with_an_at_sign_has_no_revision(path):
    assert split_revision(path) == (path, None)


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        *(
            (spec, f"no model at `{spec}`", "give a directory with config.json")
            for spec in ("./nowhere", "/no/model", "missing.gguf", "a/b/c", "/" + "x" * 300)
        ),
        # A way to draft that is not known is no hub id.
        *(
            (spec, f"no model at `{spec}`", "is eagle3:MODEL, dflash:MODEL or spec:FILE.json")
            for spec in ("medusa:./heads", "egale3:org/head", "llama:8b")
        ),
        ("org/absent", "cannot load the configuration of `org/absent`", "download the model"),
    ],
)
def test_a_model_that_is_not_there_is_refused_by_what_was_meant(spec, message, hint):
    error = refused(ModelSource(spec))
    assert error.message.startswith(message)
    assert hint in error.hint
    assert not ModelSource("").on_hub


@pytest.mark.parametrize("spec", ["./smolm2", "smolm2", "./smolm2/", "models/smolm2"])
def test_a_misspelt_path_names_the_model_beside_it(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "models/smollm2", "qwen0.5"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "smolm2.txt").touch()
    meant = spec.rstrip("/").replace("smolm2", "smollm2")
    assert refused(ModelSource(spec)).hint.startswith(f"did you mean `{meant}`? ")


@pytest.mark.parametrize(
    ("what", "file", "content", "words"),
    [
        ("config", "config.json", "{not json", "cannot load the configuration"),
        ("config", "config.json", '{"model_type": "perpetuum"}', "perpetuum"),
        ("tokenizer", "tokenizer.json", None, "cannot load the tokenizer"),
        ("weights", "model.safetensors", None, "cannot load the weights"),
        ("weights", "model.safetensors", "cut short", "cannot load the weights"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_refused(workshop, what, file, content, words):
    source = workshop.source("model")
    path = Path(source.spec) / file
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content)
    assert words in refused(source, what).message


def test_pickled_weights_need_the_users_word(workshop, tmp_path):
    source = workshop.weighted("model")
    folder = tmp_path / "model"
    torch.save(source.load(torch.float32, "cpu").state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    error = refused(source, "weights")
    assert "cannot load the weights" in error.message
    assert "--allow-pickle" in error.hint
    opened = ModelSource(source.spec, Trust(pickle=True)).load(torch.float32, "cpu")
    assert opened.num_parameters() > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # Each of 64 in the file.
        ({"hidden_size": 96}, ["have other shapes", "lm_head.weight is [300, 64], not [300, 96]"]),
        # Layers without weights would run on random numbers. Nine of a layer: q, k, v, o, gate, up,
        # down and two norms.
        (
            {"num_hidden_layers": 3},
            ["lack 9 of the tensors", "model.layers.2.input_layernorm.weight"],
        ),
    ],
)
def test_weights_that_do_not_fit_the_configuration_are_refused(workshop, change, words):
    source = workshop.weighted("model")
    with_fields(Path(source.spec) / "config.json", **change)
    message = refused(source, "weights").message
    assert all(part in message for part in words)
    with pytest.raises(ModelError) as before_loading:
        ModelSource(source.spec).check_weights()
    assert before_loading.value.message == message


def test_weights_that_are_not_there_are_noticed_before_they_are_loaded(workshop):
    source = workshop.weighted("model")
    source.check_weights()
    file = Path(source.spec) / "model.safetensors"
    names = {"model.norm.weight": "a.safetensors"}
    for written, lacked in (({"weight_map": names}, "a.safetensors"), (None, "model.safetensors")):
        file.unlink(missing_ok=True)
        index = Path(source.spec) / "model.safetensors.index.json"
        index.write_text(json.dumps(written)) if written else index.unlink()
        with pytest.raises(ModelError, match=rf"no file `{lacked}`"):
            ModelSource(source.spec).check_weights()


def test_a_quantized_checkpoint_holds_every_layer_too(workshop, monkeypatch):
    """Its tensors have other names and shapes than the model's, so layers are counted. Of layers
    whose tensors have other names (transformers renames those of some models) or come later (a hub
    model without an index) nothing is said.
    """
    source = workshop.weighted("model")
    fp8 = {"quantization_config": {"quant_method": "fp8"}, "num_hidden_layers": 3}
    with_fields(Path(source.spec) / "config.json", **fp8)
    with pytest.raises(ModelError, match=r"hold 2 layers, and its configuration asks for 3$"):
        ModelSource(source.spec).check_weights()
    for names in ({}, {"language_model.text.layers.0.mlp.up_proj.weight": None}):
        monkeypatch.setattr(ModelSource, "stored_tensors", lambda _, n=names: n)
        ModelSource(source.spec).check_weights()


def test_headers_are_read_and_no_weights(workshop, monkeypatch):
    source = workshop.weighted("model")
    file = Path(source.spec) / "model.safetensors"
    header = int.from_bytes(file.read_bytes()[:8], "little") + 8
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:header])
    with file.open("ab") as stream:
        stream.truncate(size)  # zeros that take no room
    source.check_weights()
    assert {p.device.type for p in source.skeleton.parameters()} == {"meta"}


def with_fewer_layers(source, **more):
    """The same weights with a configuration that asks for one of their two layers."""
    with_fields(Path(source.spec) / "config.json", num_hidden_layers=1, **more)
    return ModelSource(source.spec)


def test_layers_that_the_configuration_leaves_out_are_refused_unless_they_draft(workshop):
    source = with_fewer_layers(workshop.weighted("model"))
    error = refused(source, "weights")
    assert "hold 2 layers, and its configuration asks for 1" in error.message
    with pytest.raises(ModelError, match="hold 2 layers"):
        check_models(source, [], 10**9)
    source = with_fewer_layers(source, num_nextn_predict_layers=1)
    source.load(torch.float32, "cpu")
    check_models(source, [], 10**9)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_of_files_that_are_not_here_the_index_names_the_layers(workshop, monkeypatch, prefix):
    """As of a hub model, whose weights are fetched when they are loaded."""
    source = with_fewer_layers(workshop.weighted("model"))
    folder = Path(source.spec)
    (folder / "model.safetensors").unlink()
    names = {f"{prefix}layers.{layer}.mlp.up_proj.weight": "other.safetensors" for layer in (0, 1)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    monkeypatch.setattr(ModelSource, "local", False)
    monkeypatch.setattr(ModelSource, "_arguments", lambda self: (str(folder), {}))
    monkeypatch.setattr(ModelSource, "_folder", lambda self: folder)
    with pytest.raises(ModelError, match="hold 2 layers"):
        source.check_weights()


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("shared_head.head", "lm_head.weight"),
        ("embed_tokens", "model.embed_tokens.weight"),
    ],
)
def test_a_drafting_layer_trained_with_an_output_or_embedding_of_its_own_is_not_run(
    tmp_path, monkeypatch, name, like
):
    """transformers takes the target's in its place, without a word."""
    left_out = "_keys_to_ignore_on_load_unexpected"
    monkeypatch.setattr(Glm4MoeForCausalLM, left_out, random_mtp.LEFT_OUT)
    folder = random_mtp.save(tmp_path / "target", 1, 64)
    file, name = folder / "model.safetensors", f"model.layers.{random_mtp.LAYERS}.{name}.weight"
    weights = load_file(file)
    save_file(weights | {name: weights[like].clone()}, file, metadata={"format": "pt"})
    source = ModelSource(str(folder))
    assert check(source, Pairing(source, {}, chats=False), "mtp") == ()
    save_file(weights | {name: weights[like] + 1e-3}, file, metadata={"format": "pt"})
    with pytest.raises(PairError, match=f"its {name} is not the target's"):
        check(source, Pairing(source, {}, chats=False), "mtp")
    with pytest.raises(ModelError, match=f"has a {name} that is not the target's"):
        source.load_mtp(None)


def test_code_from_a_checkpoint_does_not_run(workshop, tmp_path):
    source = workshop.source("model")
    folder = tmp_path / "model"
    (folder / "own.py").write_text("from pathlib import Path\nPath(__file__ + '.ran').touch()\n")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(own))
    refused(source)
    assert not list(tmp_path.rglob("*.ran"))


def test_too_little_memory_is_not_the_models_fault(workshop, monkeypatch):
    def from_pretrained(*args, **options):
        raise MemoryError

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(MemoryError):
        workshop.source("model").load(torch.float32, "cpu")


def test_the_fingerprint_is_that_of_the_files_and_not_of_their_place(workshop, tmp_path):
    source = workshop.weighted("model")
    before = source.fingerprint()
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("other notes")
    assert ModelSource(str(tmp_path / "copy")).fingerprint() == before
    file = tmp_path / "model" / "model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))  # a change at the end of the weights
    assert source.fingerprint() != before


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({"eos_token_id": 7}, {1, 7}), ({"eos_token_id": [7, 9]}, {1, 7, 9}), (None, {1})],
)
def test_end_tokens_are_those_of_all_three_files(workshop, tmp_path, generation, expected):
    """`<end>` of configuration and tokenizer is 1; the generation configuration may add some."""
    source = workshop.source("model")
    if generation is not None:
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps(generation))
    assert end_tokens(source) == expected
