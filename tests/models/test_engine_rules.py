"""Each engine's own rule, on pairs whose facts are written down here."""

from dataclasses import replace

import pytest

from draftbench.models.check_result import (
    Overlap,
    PairFacts,
    TokenDifference,
    TokenizerFacts,
    Vocabulary,
)
from draftbench.models.engine_rules import engine_answers

WORDS = Vocabulary(
    target_rows=1000,
    draft_rows=1000,
    target_tokens=1000,
    draft_tokens=1000,
    same=1000,
    missing=0,
    unreadable=0,
    first_missing=None,
    first_unreadable=None,
    first_difference=None,
    first_regular_difference=None,
    all_tokens=Overlap(1.0, 1.0),
    traffic=None,
)
SIDE = TokenizerFacts(
    kind="BPE",
    special={"bos_token": "<s>", "eos_token": "</s>"},
    ids={"bos_token": 1, "eos_token": 2},
    adds_bos=True,
    adds_eos=False,
    has_template=True,
)
OTHER = TokenDifference(7, "a", "b")


def answers(words=None, draft=None):
    """Engine → its answer, for a pair that differs from a perfect one in these facts only."""
    facts = PairFacts(
        target="t",
        draft="d",
        vocabulary=replace(WORDS, **(words or {})),
        target_tokenizer=SIDE,
        draft_tokenizer=replace(SIDE, **(draft or {})),
        template_difference=(),
        target_context=None,
        draft_context=None,
    )
    return {answer.engine: answer for answer in engine_answers(facts)}


def standings(**changes):
    return {engine: answer.standing for engine, answer in answers(**changes).items()}


def test_every_engine_takes_a_pair_of_one_tokenizer():
    assert set(standings().values()) == {"accepts"}
    assert list(standings()) == ["vLLM", "SGLang", "llama.cpp", "TensorRT-LLM", "transformers"]


def test_the_options_are_those_of_the_engines():
    options = {engine: answer.option for engine, answer in answers().items()}
    assert options["vLLM"] == '--speculative-config \'{"method":"draft_model","model":"d"}\''
    assert "--speculative-algorithm STANDALONE" in options["SGLang"]
    assert "--speculative-draft-model-quantization unquant" in options["SGLang"]
    assert options["llama.cpp"] == "-md d.gguf --spec-type draft-simple"
    assert "decoding_type: DraftTarget" in options["TensorRT-LLM"]
    assert "disable_overlap_scheduler: true" in options["TensorRT-LLM"]
    assert options["transformers"] == "generate(assistant_model=draft)"


def test_rows_that_only_pad_matter_to_engines_that_compare_sizes():
    found = answers(words={"draft_rows": 1128})
    assert found["vLLM"].standing == found["transformers"].standing == "with an option"
    assert '"use_heterogeneous_vocab":true,"draft_sample_method":"greedy"' in found["vLLM"].option
    assert (
        "tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" in found["transformers"].option
    )
    assert found["SGLang"].standing == found["TensorRT-LLM"].standing == "accepts"


@pytest.mark.parametrize(("rows", "standing"), [(1128, "accepts"), (1129, "refuses")])
def test_llama_cpp_allows_128_rows(rows, standing):
    assert standings(words={"draft_rows": rows})["llama.cpp"] == standing
    assert standings(words={"draft_rows": 2000 - rows})["llama.cpp"] == standing


def test_sizes_that_agree_do_not_make_the_words_agree():
    words = {"first_difference": OTHER, "first_regular_difference": OTHER}
    assert standings(words=words) == {
        "vLLM": "with an option",
        "SGLang": "refuses",
        "llama.cpp": "refuses",
        "TensorRT-LLM": "refuses",
        "transformers": "refuses",
    }
    assert "id 7 is 'a' in the target, 'b' in the draft" in answers(words=words)["vLLM"].reason


def test_llama_cpp_overlooks_the_first_five_ids():
    assert standings(words={"first_difference": replace(OTHER, id=4)})["llama.cpp"] == "accepts"


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        ({"kind": "Unigram"}, "BPE and Unigram"),
        ({"adds_bos": False}, "add_bos is True in the target, False in the draft"),
        ({"adds_eos": True}, "add_eos is False in the target, True in the draft"),
        ({"ids": {"bos_token": 3, "eos_token": 2}}, "bos id is 1 in the target, 3 in the draft"),
        ({"ids": {"bos_token": 1, "eos_token": 4}}, "eos id is 2 in the target, 4 in the draft"),
    ],
)
def test_llama_cpp_wants_the_same_ends(draft, reason):
    found = answers(draft=draft)["llama.cpp"]
    assert (found.standing, found.option) == ("refuses", None)
    assert reason in found.reason


def test_a_bos_token_that_the_draft_lacks_can_be_overridden():
    found = answers(draft={"ids": {"eos_token": 2}})["llama.cpp"]
    assert found.standing == "with an option"
    assert "--override-kv tokenizer.ggml.bos_token_id=int:1" in found.option


def test_a_missing_token_is_another_tokenizer_to_engines_that_ask_for_the_same():
    found = answers(words={"first_missing": TokenDifference(9, "x", None)})
    assert found["SGLang"].standing == found["TensorRT-LLM"].standing == "refuses"
    assert "id 9 is 'x' in the target, no token in the draft" in found["SGLang"].reason
    assert found["vLLM"].standing == "accepts"
