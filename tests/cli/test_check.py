"""`draftbench check` on the models of the package: what is printed and what it exits as."""

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from scenes import stranger

pytestmark = pytest.mark.usefixtures("no_weights")


@pytest.fixture
def words(embedded):
    return ["check", "--target", embedded / "target", "--drafts", embedded / "draft"]


def test_a_pair_that_works_exits_0(command, words):
    outcome = command(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("`draft` can draft for `target`\n")
    for engine in ("vLLM", "SGLang", "llama.cpp", "TensorRT-LLM", "transformers"):
        assert f"  {engine} accepts" in outcome.out


def test_that_neither_has_a_chat_template_is_not_hidden_in_what_is_the_same(command, words):
    said = " ".join(command(*words).out.split())
    assert "adds bos token. Chat template: none in either, so chats cannot be measured." in said


def test_one_pair_that_cannot_work_exits_1(command, words, tmp_path):
    words = [*words, "--drafts", stranger(tmp_path), "--all"]
    outcome = command(*words, "--traffic", "suite:completion", "--sample", 4)
    assert (outcome.code, outcome.err) == (1, "")
    assert "`draft` can draft for `target`\n" in outcome.out
    assert "`stranger` cannot draft for `target`\n" in outcome.out
    outcome = command(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert "`stranger` may be able to draft for `target`\n" in outcome.out
    assert "SGLang refuses" in outcome.out


def test_a_draft_of_half_the_words_works_and_its_bound_is_said(command, embedded):
    """The first 1024 of 2048 tokens; in prose and code more than half of what occurs."""
    words = ["check", "--target", embedded / "target", "--drafts", embedded / "foreign"]
    plain, weighed = command(*words), command(*words, "--traffic", "suite:completion", "--all")
    assert (plain.code, weighed.code) == (0, 0)
    said = " ".join(weighed.out.split())
    assert "lacks 1024 of the target's tokens and never proposes them: at most 86.9% of" in said
    assert '"use_heterogeneous_vocab":true' in said
    assert "vLLM accepts with an option: it translates tokens" in said
    assert "SGLang refuses" in said
    assert "llama.cpp refuses" in said
    assert "at most" not in plain.out


def test_configurations_alone_are_answered(command, embedded, tmp_path):
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        shutil.copy(embedded / name / "config.json", tmp_path / name)
    words = ["check", "--target", tmp_path / "target", "--drafts", tmp_path / "draft"]
    outcome = command(*words)
    assert (outcome.code, outcome.err) == (0, "")
    said = " ".join(outcome.out.split())
    assert said.startswith("`draft` may be able to draft for `target` target and draft have no tok")
    assert "target has no weights here" in said
    assert "weights read per step" in said
    outcome = command(*words, "--drafts", embedded / "draft", "--all")
    assert "Memory: " in outcome.out


def test_json_holds_every_fact(command, words):
    answer = json.loads(command(*words, "--format", "json", "--memory", "1.5 TiB").out)
    assert answer["memory_bytes"] == 3 << 39
    (pair,) = answer["pairs"]
    assert pair["facts"]["vocabulary"]["same"] == 2048
    assert [engine["standing"] for engine in pair["engines"]] == ["accepts"] * 5
    assert answer["traffic_tokens"] is None


def test_traffic_weighs_the_vocabulary(command, words):
    answer = json.loads(
        command(*words, "--traffic", "suite:completion", "--sample", 4, "--format", "json").out
    )
    assert answer["traffic_tokens"] > 20
    assert answer["pairs"][0]["facts"]["vocabulary"]["traffic"] == {"same_id": 1, "same_text": 1}


def test_a_table_fits_eighty_columns_except_for_what_is_to_be_copied(command, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = command(*words).out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("    ")] == []


@pytest.mark.parametrize("size", ["24", "GB", "24XB", "0GB", "-1GB", "1e3GB"])
def test_a_memory_that_is_no_size(failing, words, size):
    assert "for example 24GB" in failing(2, *words, f"--memory={size}")


def test_a_draft_that_is_not_there(failing, words, tmp_path):
    assert "no model at" in failing(2, *words, "--drafts", tmp_path / "none")


def test_a_head_that_is_not_there_is_named_as_it_was_given(failing, words):
    said = failing(2, *words, "--drafts", "eagle3:./none")
    assert said == (
        "error: no head at `eagle3:./none`\n"
        "hint: give the folder of the head, which holds its config.json, or its hub id (org/name)"
    )


def test_traffic_that_is_not_there(failing, words):
    assert "did you mean" in failing(2, *words, "--traffic", "suite:completon")


def test_a_draft_without_a_model_is_named_beside_those_that_are_checked(command, words):
    outcome = command(*words, "--drafts", "self,ngram,suffix,spec:a.json")
    assert outcome.code == 0
    assert outcome.err.splitlines() == [
        "note: `self` is not a model: it works with every target",
        "note: `ngram` is not a model: it works with every target",
        "note: `suffix` is not a model: vLLM drafts so for every target",
        "note: `spec:a.json` is not a model: only the engine knows whether it can draft so",
    ]
    assert "`draft` can draft for `target`" in outcome.out


def test_without_a_model_to_check_the_target_alone_is_shown(command, embedded):
    outcome = command("check", "--target", embedded / "target", "--drafts", "ngram")
    assert outcome.code == 0
    assert outcome.out.startswith("Sizes\n")


def test_a_head_that_does_not_fit_exits_1_beside_a_draft_that_does(command, words, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 128, "vocab_size": 2048}'
    )
    outcome = command(*words, "--drafts", f"mtp,eagle3:{tmp_path}")
    assert (outcome.code, outcome.err) == (1, "")
    assert "`mtp` cannot draft for `target`\n" in outcome.out
    assert "it reads states of width 128, and the target's have 256" in outcome.out
    assert "supported" not in outcome.out
    assert "`draft` can draft for `target`\n" in outcome.out


def test_what_the_files_of_a_head_hold_is_checked_too(command, words, embedded, tmp_path):
    head = Path(shutil.copytree(embedded / "head", tmp_path / "head"))
    file = head / "model.safetensors"
    weights = load_file(file)
    sound = command(*words, "--drafts", f"eagle3:{head}")
    save_file(weights | {"d2t": weights["d2t"] + 1}, file)
    wrong = command(*words, "--drafts", f"eagle3:{head}")
    said = "the built-in decoder refuses it: its d2t and t2d name different tokens"
    assert said not in sound.out
    assert said in " ".join(wrong.out.split())


@pytest.fixture
def seeing(embedded, tmp_path):
    """A vision-language model with the vocabulary of the embedded target."""
    from transformers import AutoTokenizer, Qwen2_5_VLConfig

    text = {"vocab_size": 2048, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
    images = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
    folder = tmp_path / "seeing"
    config = Qwen2_5_VLConfig(text_config=text, vision_config=images)
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(embedded / "target").save_pretrained(folder)
    return folder


def test_what_reads_images_is_a_target_of_engines_alone(command, embedded, seeing, tmp_path):
    outcome = command("check", "--target", seeing, "--drafts", embedded / "draft")
    assert (outcome.code, outcome.err) == (0, "")
    said = " ".join(outcome.out.split())
    assert "seeing reads images too, so that only serving engines run it" in said
    sweep = ["sweep", "--target", seeing, "--drafts", embedded / "draft", "--dry-run"]
    sweep += ["--traffic", "suite:completion", "--out", tmp_path / "run"]
    assert command(*sweep, "--engine", "vllm").code == 0
    drafting = command("check", "--target", embedded / "target", "--drafts", seeing)
    assert drafting.code == 1
    assert "`seeing` reads images too: a draft must be a text model" in drafting.out


def test_a_damaged_configuration(failing, words, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", ')
    assert "cannot load the configuration" in failing(2, *words, "--drafts", tmp_path)


def test_weights_that_fit_nowhere_exit_1(command, words):
    outcome = command(*words, "--memory", "1MB")
    assert (outcome.code, outcome.err) == (1, "")
    assert "do not fit the memory" in outcome.out


@pytest.mark.parametrize(("target", "draft"), [("bert", "draft"), ("target", "bert")])
def test_an_encoder_can_neither_draft_nor_be_drafted_for(command, embedded, encoder, target, draft):
    place = {"bert": encoder}
    words = [place.get(name, embedded / name) for name in (target, draft)]
    outcome = command("check", "--target", words[0], "--drafts", words[1])
    assert (outcome.code, outcome.err) == (1, "")
    head, reason = outcome.out.splitlines()[:2]
    assert head == f"`{draft}` cannot draft for `{target}`"
    assert reason.startswith("  `bert` (BertForMaskedLM) is an encoder, which does not write text")
    assert "accepts" not in outcome.out


def test_large_numbers_are_grouped(command, words):
    answer = command(*words, "--all", "--memory", "1GB").out
    side_by_side = answer.partition("Engines")[0].split("\n")
    (rows,) = (line.split() for line in side_by_side if line.startswith("vocab_size"))
    assert rows[-2:] == ["2,048", "2,048"]
    fits = next(line.split() for line in answer.split("\n") if line.startswith("none  "))
    assert re.fullmatch(r"\d{3},\d{3}", fits[-1])


def test_a_head_that_is_not_named_as_one_is_told_how(failing, embedded):
    words = ("--target", embedded / "target", "--drafts", embedded / "head")
    said = failing(2, "check", *words)
    assert f"`{embedded / 'head'}` is a head" in said
    assert f"name it `eagle3:{embedded / 'head'}`" in said
