"""`draftbench check`: on the models of the package, what is printed and what it exits as; of any
answer, that it fits one screen and that everything is under --all.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from scenes import pair_facts, sheet, stranger

from draftbench.cli.check import render
from draftbench.models.check_result import (
    CheckResult,
    EngineAnswer,
    LevelRow,
    Overlap,
    PairSheet,
    Room,
)
from draftbench.records import Mixture

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


def test_logged_answers_are_what_a_draft_must_have_and_prompts_where_there_are_none(
    command, embedded, tmp_path
):
    """`foreign` has every letter, and of the target's words half."""
    log = tmp_path / "log.jsonl"
    words = ("check", "--target", embedded / "target", "--drafts", embedded / "foreign")
    asked, answered = {"prompt": "convert IT"}, {"prompt": "give IT", "response": "a"}
    shares = []
    for rows in ([asked], [answered], [asked, answered]):
        log.write_text("\n".join(map(json.dumps, rows)))
        answer = json.loads(command(*words, "--traffic", log, "--format", "json").out)
        shares.append(answer["pairs"][0]["facts"]["vocabulary"]["traffic"]["same_text"])
    assert shares[0] < shares[2] < shares[1] == 1
    assert shares[0] < 0.8


def test_traffic_that_is_not_there(failing, words):
    assert "did you mean" in failing(2, *words, "--traffic", "suite:completon")


def test_a_draft_without_a_model_is_named_beside_those_that_are_checked(command, words):
    outcome = command(*words, "--drafts", "self,ngram,suffix,spec:a.json")
    assert outcome.code == 0
    on_it = "only a sweep on it measures that"
    assert outcome.err.splitlines() == [
        "note: `self` is not a model: it works with every target",
        "note: `ngram` is not a model: it works with every target",
        f"note: `suffix` is not a model: vLLM drafts this way for every target, and {on_it}",
        "note: `spec:a.json` is not a model: only the engine knows whether it can draft this way, "
        f"and {on_it}",
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
    assert (sound.code, wrong.code) == (0, 1)
    assert "cannot draft for `target`\n  its d2t and t2d name different tokens" in wrong.out


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


LONG = "an-organisation/a-model-with-a-very-long-name-that-goes-on-and-on-Instruct-GPTQ-Int4"
NAMES = ("vLLM", "SGLang", "llama.cpp", "TensorRT-LLM", "transformers")


def pair(name, *, works=True, diff=()):
    rows, share = (100, 1.0) if works else (50, 0.5)
    words = {"draft_rows": rows, "target_rows": 100, "all_tokens": Overlap(share, share)}
    return PairSheet(
        draft=sheet(name),
        facts=pair_facts(target="big", draft=name, template_difference=diff, **words),
        obstacles=() if works else (f"`{name}` cannot draft for `big`: too few tokens",),
        caveats=("the chat templates differ; the target's is used for both",) * works,
        rooms=(Room("none", 40_000_000, 40_000_000, 1000),),
        engines=tuple(
            EngineAnswer(e, "accepts" if works else "refuses", "a reason " * 10, "--an option")
            for e in NAMES
        ),
        works="yes" if works else "no",
    )


def answer(*pairs):
    level = LevelRow("none", "as loaded", "oneDNN", None, "all")
    return CheckResult(sheet("big", layers=8), 16_000_000_000, None, pairs, (level,))


@pytest.mark.parametrize(
    "pairs",
    [
        [pair("small")],
        [pair("small", works=False, diff=("- a", "+ b") * 20)],
        [pair(LONG)],
        [pair("small"), pair("other", works=False)],
        [pair(f"{LONG}-{n}", works=n % 2 == 0) for n in range(30)],
    ],
)
@pytest.mark.parametrize("width", [60, 88, 200])
def test_one_screen_holds_the_verdict_the_differences_and_the_engines(pairs, width):
    lines = render(answer(*pairs), "table", width).splitlines()
    assert len(lines) <= 25
    if width >= 88:
        assert max(map(len, lines)) <= 88
    assert "can" in lines[0]
    assert any("--all" in line for line in lines)


def test_only_what_differs_is_a_row():
    lines = render(answer(pair("small")), "table", 88).splitlines()
    (row,) = [line.split() for line in lines if line.startswith("layers")]
    assert row == ["layers", "×", "width", "8", "×", "64", "2", "×", "64"]
    assert not any(line.startswith("context") for line in lines)


def test_templates_that_differ_are_not_called_the_same():
    text = render(answer(pair("small", diff=("- a", "+ b"))), "table", 88)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "chat template its own another" in lines
    assert not any("Same in both" in line and "chat template" in line for line in lines)


def test_several_drafts_are_a_row_each():
    text = render(answer(pair("small"), pair("other", works=False)), "table", 88)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "1 of 2 drafts can work with big"
    assert "small yes 10 M all all" in lines
    assert "other no 10 M 50.00% none" in lines
    assert "`other` cannot draft for `big`: too few tokens" in lines


def test_several_drafts_may_work_where_only_traffic_tells():
    drafts = pair("small"), replace(pair("other"), works="maybe"), pair("no", works=False)
    lines = [" ".join(x.split()) for x in render(answer(*drafts), "table", 88).splitlines()]
    assert lines[0] == "1 of 3 drafts can work with big, 1 may"
    assert "other maybe 10 M all all" in lines
    alone = render(answer(drafts[1]), "table", 88).splitlines()
    assert alone[0] == "`other` may be able to draft for `big`"


def test_each_caveat_of_several_drafts_says_whose_it_is_and_shared_ones_are_said_once():
    """Known fault: what held for every draft had no name, and stood below another's."""
    of_target = "big reads images too"
    one = replace(pair("small"), caveats=("shared by all", of_target, "alone", "small is int4"))
    others = [
        replace(pair(name), caveats=("shared by all", of_target, "of two")) for name in ("b", "c")
    ]
    lines = render(answer(one, *others), "table", 88).splitlines()
    assert [line.strip() for line in lines if line.startswith("  ")][:5] == [
        "every draft: shared by all", of_target, "small: alone", "small is int4", "b, c: of two",
    ]  # fmt: skip


def test_a_mixture_shows_what_a_step_reads_of_it():
    mixture = Mixture(experts=8, per_token=2, layers=2, parameters=4_000_000)
    small = replace(
        pair("small"), draft=sheet("small", active_parameters=7_000_000, mixture=mixture)
    )
    text = " ".join(render(answer(small), "table", 88).split())
    assert "experts of a token no mixture 2 of 8" in text
    assert "10 M, 7 M active" in render(answer(small), "table", 88, everything=True)
    assert "experts" not in render(answer(pair("b")), "table", 88, everything=True)


def test_everything_has_templates_sizes_memory_and_options():
    pairs = answer(pair("small", diff=("- a", "+ b")))
    for style in ("table", "markdown"):
        short = render(pairs, style, 88)
        whole = render(pairs, style, 88, everything=True)
        for words in ("+ b", "Sizes", "Memory: 16 GB", "Quantization here", "vLLM: --an option"):
            assert words in whole
            assert words not in short


def test_the_second_layout_of_a_cpu_is_part_of_the_memory():
    text = render(answer(pair("small")), "table", 88, everything=True)
    assert "up to 40 MB more: a second layout of the weights" in " ".join(text.split())
    works = pair("small")
    on_gpu = replace(works, rooms=(Room("none", 40_000_000, 0, 1000),))
    assert "held once more" not in render(answer(on_gpu), "table", 88, everything=True)


def test_no_line_of_a_template_can_end_the_block_of_markdown():
    text = render(answer(pair("a", diff=("```", "<b>"))), "markdown", 88, everything=True)
    assert "\n    ```\n    <b>\n" in text
