"""The embedded draft rewritten as a GGUF file → the same model, tokenizer and facts; files that
would make a reader swell or leave its folder.
"""

from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from huggingface_hub.utils import filter_repo_objects
from scenes import EMBEDDED

from draftbench.errors import ModelError
from draftbench.models.checkpoint import check_files
from draftbench.models.compatibility import check_pair
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource, end_tokens
from draftbench.safe_files import UnreadableError

BUILD = Build(torch.float32, "none", "cpu")
IDS = torch.arange(5, 45)

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from embedded_gguf import write


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory, embedded):
    path = tmp_path_factory.mktemp("gguf") / "draft.F32.gguf"
    write(path, embedded / "draft", Kind.F32)
    return path


def logits_and_facts(spec, draft=None):
    runner, facts = build_runner(ModelSource(str(spec)), BUILD, draft)
    return runner.forward(IDS, runner.new_cache(40), every=True), facts


@pytest.mark.parametrize(
    ("kind", "level"), [(Kind.Q8_0, "gguf-q8_0"), (Kind.Q4_0, "gguf-q4_0"), (Kind.BF16, None)]
)
def test_a_gguf_file_counts_as_the_type_of_most_of_its_weights(tmp_path, embedded, kind, level):
    write(tmp_path / "draft.gguf", embedded / "draft", kind)
    assert stored_level(ModelSource(str(tmp_path / "draft.gguf"))) == level


def test_quantized_blocks_are_unpacked_and_have_no_cost_of_their_own(tmp_path, embedded):
    write(tmp_path / "draft.gguf", embedded / "draft", Kind.Q8_0)
    logits, facts = logits_and_facts(tmp_path / "draft.gguf")
    expected, exact = logits_and_facts(embedded / "draft")
    assert (facts.quant, facts.has_kernel) == ("gguf-q8_0", False)
    assert facts.caveats == (
        "stored as gguf-q8_0 and unpacked here: right acceptance, its own cost and size unknown",
    )
    assert facts.parameters == exact.parameters
    # Unpacked numbers need 32 bits, two bytes more each: those of the embedding, of the head that
    # is tied to it, and of each layer's query, key and value, output, gate and up, and down.
    of_a_layer = 256 * 128 + 128 * 128 + 704 * 128 + 128 * 352
    wider = 2 * (2 * 2048 * 128 + 2 * of_a_layer)
    assert facts.weight_bytes == exact.weight_bytes + wider
    closeness = torch.nn.functional.cosine_similarity(logits, expected, dim=-1)
    assert 0.99 < closeness.min() < 1


def test_a_gguf_file_gives_the_directorys_logits_and_prints_nothing(gguf_file, embedded, capfd):
    logits, facts = logits_and_facts(gguf_file, "draft")
    assert capfd.readouterr() == ("", "")
    expected, _ = logits_and_facts(embedded / "draft", "draft")
    assert facts.runner.startswith("draftbench (float32, cpu")
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_gguf_file_gives_the_directorys_tokenizer(gguf_file, embedded):
    one, other = ModelSource(str(gguf_file)), ModelSource(str(embedded / "draft"))
    text = "def walk(top):\n    for name in os.listdir(top):\n        yield name  # é\n"
    assert one.tokenizer(text)["input_ids"] == other.tokenizer(text)["input_ids"]
    assert end_tokens(one) == end_tokens(other) == {0}
    target = ModelSource(str(embedded / "target"))
    assert check_pair(target, one) == check_pair(target, other)


def test_a_gguf_file_has_a_name_and_a_fingerprint(gguf_file, tmp_path):
    source = ModelSource(str(gguf_file))
    assert source.name == "draft.F32"
    raw = bytearray(gguf_file.read_bytes())
    raw[-1] ^= 1
    changed = tmp_path / "draft.F32.gguf"
    changed.write_bytes(raw)
    assert ModelSource(str(changed)).fingerprint() != source.fingerprint()


def stating(path, embedded, blocks, more):
    """The embedded draft, which has two layers, with another `block_count` and `more` numbers."""

    class Writer(gguf.GGUFWriter):
        def add_block_count(self, _):
            super().add_block_count(blocks)
            for name, number in more.items():
                self.add_uint32(name, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", Writer)
        write(path, embedded / "draft", Kind.F32)
    return ModelSource(str(path))


@pytest.mark.parametrize(
    ("blocks", "more"),
    [
        (3, {}),  # a layer is missing
        (1, {}),  # a layer would be left out without a word
        (4, {"llama.nextn_predict_layers": 1}),
        (3, {"split.count": 1}),
        (3, {"general.base_model.count": 2}),
    ],
)
def test_a_gguf_file_must_hold_the_layers_that_its_metadata_says(tmp_path, embedded, blocks, more):
    source = stating(tmp_path / "draft.gguf", embedded, blocks, more)
    words = f"holds 2 layers, and its `block_count` asks for {blocks}"
    with pytest.raises(ModelError, match=words) as caught:
        _ = source.config
    assert "download the checkpoint again" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\0" * 99])
def test_what_only_has_the_name_of_a_gguf_file_is_refused_by_what_it_may_be(tmp_path, data):
    path = tmp_path / "draft.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="it is not a GGUF file") as caught:
        _ = ModelSource(str(path)).config
    assert "a failed download or a pointer of Git LFS" in caught.value.hint


def test_a_cut_gguf_file_and_an_adapter_are_refused(gguf_file, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(gguf_file.read_bytes()[:5000])
    with pytest.raises(ModelError, match="cannot load the configuration"):
        _ = ModelSource(str(tmp_path / "broken.gguf")).config
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="it is an adapter") as caught:
        _ = ModelSource(str(tmp_path)).config
    assert caught.value.hint == "merge it into that model, and give the merged checkpoint"


@pytest.mark.parametrize("more", [{"llama.nextn_predict_layers": 1}, {"split.count": 2}])
def test_layers_that_draft_or_are_in_other_files_may_be_missing(tmp_path, embedded, more):
    source = stating(tmp_path / "draft.gguf", embedded, 3, more)
    assert source.config.num_hidden_layers == 3


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", '{"num_hidden_layers": 1000000000}', "`num_hidden_layers` is more than"),
        ("config.json", '{"text_config": {"num_experts": 1e12}}', "`num_experts` is more than"),
        ("config.json", '{"vocab_size": ' + "9" * 400 + "}", "`vocab_size` is more than"),
        ("config.json", '{"rope_theta": NaN}', "`rope_theta` is more than"),
        ("config.json", '{"max_position_embeddings": 1000000000}', "`max_position_embeddings` is"),
        ("config.json", '{"max_position_embeddings": 0}', "is less than any model has"),
        ("config.json", '{"text_config": {"num_hidden_layers": -2}}', "is less than any"),
        ("config.json", "[" * 100_000, "recursion"),
        ("tokenizer.json", '{"\xff": 1}'.encode("latin-1"), "utf-8"),
        ("a.safetensors.index.json", '{"weight_map": {"w": "../x"}}', "not in this folder"),
        ("a.safetensors.index.json", '{"weight_map": {"w": "/etc/passwd"}}', "not in this folder"),
        ("a.safetensors.index.json", '{"weight_map": {"w": ""}}', "not in this folder"),
        ("a.safetensors.index.json", "[]", "no `weight_map`"),
    ],
)
def test_a_checkpoint_that_would_swell_or_lead_away_is_refused(tmp_path, name, content, words):
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UnreadableError, match=words):
        check_files(tmp_path)


def little(*numbers, bytes_each=8):
    return b"".join(number.to_bytes(bytes_each, "little") for number in numbers)


def header(rest, fields=0, tensors=0):
    return b"GGUF\3\0\0\0" + little(tensors, fields) + rest


def tensor(*shape, kind, start):
    sizes = little(len(shape), bytes_each=4) + little(*shape)
    return KEY + sizes + little(kind, bytes_each=4) + little(start)


ENDLESS, KEY, ARRAY = little(1 << 60), little(1) + b"k", little(9, bytes_each=4)
BLOCKS = little(17) + b"llama.block_count" + little(4, bytes_each=4)
SHORT = "it is cut off"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header(b"", fields=1 << 60), SHORT),
        (header(ENDLESS + b"k" * 8, fields=1), SHORT),
        # The library would walk an array of 2^60 empty numbers.
        (header(KEY + ARRAY + little(4, bytes_each=4) + ENDLESS, fields=1), SHORT),
        (header(KEY + ARRAY + ARRAY + ENDLESS, fields=1), SHORT),
        (header(KEY + ARRAY + (ARRAY + little(1)) * 5000, fields=1), "recursion"),
        (header(KEY + little(77, bytes_each=4), fields=1), "77"),
        # A tokenizer alone, whose model would be built of a billion layers.
        (header(BLOCKS + little(10**9, bytes_each=4), fields=1), "`block_count` is more than"),
        # 3 × 4 float32 from byte 8 on, of which 50 bytes are there.
        (header(tensor(3, 4, kind=0, start=8) + b"\0" * 50, tensors=1), SHORT),
        # Two blocks of 32 in 4 bits, each 18 bytes.
        (header(tensor(64, kind=2, start=0) + b"\0" * 35, tensors=1), SHORT),
        (header(tensor(1 << 62, 1 << 62, kind=0, start=1 << 63), tensors=1), "cut off|reshape"),
    ],
)
def test_a_gguf_header_must_fit_into_its_file(tmp_path, data, words):
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(UnreadableError, match=words):
        check_files(tmp_path / "model.gguf")


def test_what_the_hub_sent_is_looked_at_before_it_is_read(tmp_path, monkeypatch):
    """A cache as the hub's library makes it: snapshots of links to blobs."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    repository, commit = cache / "models--org--bomb", "0" * 40
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / part).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs" / "a").write_text('{"model_type": "llama", "num_hidden_layers": 1e9}')
    (repository / "snapshots" / commit / "config.json").symlink_to(repository / "blobs" / "a")
    with pytest.raises(ModelError, match="`num_hidden_layers` is more than any model has"):
        _ = ModelSource("org/bomb").config


def test_a_tokenizer_of_the_hub_is_looked_at_before_it_is_read(tmp_path, monkeypatch):
    """The first reading fetches all small files, and only those."""
    sent = {"config.json": b"{}", "tokenizer.json": b'{"\xff": 1}', "a.safetensors": b""}

    def download(repository, *, revision, allow_patterns, ignore_patterns):
        assert (repository, revision) == ("org/bomb", "main")
        for name in filter_repo_objects(sent, allow_patterns=allow_patterns):
            (tmp_path / name).write_bytes(sent[name])
        return str(tmp_path)

    # Modules that are first imported now would keep the name that is replaced.
    assert ModelSource(str(EMBEDDED / "target")).tokenizer
    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ModelError, match=r"tokenizer\.json: 'utf-8' codec"):
        _ = ModelSource("org/bomb").tokenizer
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "tokenizer.json"}


@pytest.mark.parametrize(
    ("name", "most"),
    [("chat_template.jinja", 4), ("tokenizer.model", 256), ("merges.txt", 256), ("vocab.txt", 256)],
)
def test_a_text_of_a_checkpoint_has_a_limit(tmp_path, name, most):
    with (tmp_path / name).open("wb") as stream:
        stream.truncate((most << 20) + 1)
    with pytest.raises(UnreadableError, match=f"{name}: it is larger"):
        check_files(tmp_path)
