"""Each engine's own rule, on pairs whose facts are written down here."""

import pytest
from msgspec.structs import replace
from scenes import pair_facts

from draftbench.engines.every import ENGINES
from draftbench.engines.pair_rules import TokenDifference

OTHER = TokenDifference(7, "a", "b")
LACKING = TokenDifference(9, "x", None)
ADDED = TokenDifference(1000, None, "<think>")
ALL = ("vLLM", "SGLang", "llama.cpp", "TensorRT-LLM", "transformers")


def answers(changes):
    """Engine → its answer, for a pair that differs from a perfect one in these facts only."""
    facts = pair_facts(**changes)
    return {engine.name: engine.answer(facts) for engine in ENGINES.values()}


@pytest.mark.parametrize(
    ("changes", "refusing", "wanting"),
    [
        ({}, [], []),
        ({"draft_rows": 1128}, ["SGLang"], ["vLLM", "transformers"]),
        ({"draft_rows": 872}, ["SGLang"], ["vLLM", "transformers"]),
        ({"draft_rows": 1129}, ["SGLang", "llama.cpp"], ["vLLM", "transformers"]),
        ({"draft_rows": 871}, ["SGLang", "llama.cpp"], ["vLLM", "transformers"]),
        (
            {"first_difference": OTHER, "first_regular_difference": OTHER},
            ["SGLang", "llama.cpp"],
            ["vLLM"],
        ),
        # llama.cpp overlooks the first five ids.
        ({"first_difference": replace(OTHER, id=4)}, ["SGLang"], ["vLLM"]),
        ({"first_missing": LACKING}, ["SGLang"], ["vLLM"]),
        # SGLang compares both vocabularies as a whole: one token more is another vocabulary.
        ({"first_added": ADDED}, ["SGLang"], []),
        ({"first_unreadable": LACKING}, [], ["vLLM"]),
        ({"ids": {"eos_token": 2}}, [], ["llama.cpp"]),
        # A base draft for an instruct target: another end token, which nothing adds.
        ({"ids": {"bos_token": 1, "eos_token": 4}}, [], []),
        ({"target_recurrent": True}, ["transformers"], []),
    ],
)
def test_each_engine_answers_by_its_own_rule(changes, refusing, wanting):
    found = answers(changes)
    assert tuple(found) == ALL
    assert {engine: answer.standing for engine, answer in found.items()} == {
        **dict.fromkeys(ALL, "accepts"),
        **dict.fromkeys(refusing, "refuses"),
        **dict.fromkeys(wanting, "with an option"),
    }
    assert {engine for engine in ALL if found[engine].option is None} == set(refusing)


@pytest.mark.parametrize(
    ("changes", "engine", "reason"),
    [
        (
            {"draft_rows": 1128},
            "vLLM",
            "it translates tokens between vocabularies of 1000 and 1128",
        ),
        ({"draft_rows": 1129}, "llama.cpp", "may be 128 apart, here 129 (1000 and 1129)"),
        ({"first_difference": OTHER}, "vLLM", "id 7 is 'a' in the target, 'b' in the draft"),
        ({"first_missing": LACKING}, "SGLang", "'x' in the target, no token in the draft"),
        ({"kind": "Unigram"}, "llama.cpp", "BPE and Unigram"),
        ({"adds_bos": False}, "llama.cpp", "add_bos is True in the target, False in the draft"),
        ({"adds_eos": True}, "llama.cpp", "add_eos is False in the target, True in the draft"),
        ({"ids": {"bos_token": 3, "eos_token": 2}}, "llama.cpp", "bos id is 1 in the target, 3 in"),
        (
            {
                "target_tokenizer": {"adds_eos": True},
                "adds_eos": True,
                "ids": {"bos_token": 1, "eos_token": 4},
            },
            "llama.cpp",
            "eos id is 2 in the target, 4 in",
        ),
        ({"draft_rows": 1064}, "SGLang", "it needs equal vocab_size, here 1000 and 1064"),
        ({"first_added": ADDED}, "SGLang", "no token in the target, '<think>' in the draft"),
        ({"target_recurrent": True}, "transformers", "it assists no model with recurrent state"),
    ],
)
def test_the_reason_names_what_differs(changes, engine, reason):
    found = answers(changes)[engine]
    assert reason in found.reason
    assert found.standing == ("with an option" if engine == "vLLM" else "refuses")


def test_llama_server_starts_without_a_draft_that_it_refuses():
    alone = "; llama-server starts and serves without the draft"
    refused = answers({"draft_rows": 1129})
    assert refused["llama.cpp"].reason.endswith(alone)
    assert not refused["SGLang"].reason.endswith(alone)
    assert not answers({})["llama.cpp"].reason.endswith(alone)
    assert "sizes differ by 128 rows" in answers({"draft_rows": 1128})["llama.cpp"].reason


@pytest.mark.parametrize("engine", ["TensorRT-LLM", "transformers"])
def test_engines_that_compare_no_words_take_the_pair_and_seldom_accept_what_differs(engine):
    found = answers({"first_difference": OTHER})[engine]
    assert found.standing == "accepts"
    assert "rarely accepted (id 7 is 'a' in the target, 'b' in the draft)" in found.reason


def test_a_target_that_adds_no_bos_needs_no_bos_of_its_draft():
    changes = {"adds_bos": False, "ids": {"eos_token": 2}, "target_tokenizer": {"adds_bos": False}}
    assert answers(changes)["llama.cpp"].standing == "accepts"


def test_every_engine_says_what_it_does_with_a_shorter_context():
    found = answers({"draft_context": 2048})
    assert "cuts the server's context to the draft's, 2048 tokens" in found["vLLM"].reason
    assert (
        "beyond the draft's context of 2048 tokens, up to the target's 4096"
        in found["SGLang"].reason
    )
    assert all("2048" in found[engine].reason for engine in ALL)
    assert not any("4096" in answer.reason for answer in answers({}).values())


@pytest.mark.parametrize(
    ("changes", "engine", "option"),
    [
        # Known fault: without a draft length, and so refused by vLLM and TensorRT-LLM.
        (
            {},
            "vLLM",
            '--speculative-config \'{"method":"draft_model","model":"d",'
            '"num_speculative_tokens":3}\'',
        ),
        ({}, "SGLang", "--speculative-algorithm STANDALONE"),
        ({}, "llama.cpp", "-md d-BF16.gguf --spec-type draft-simple"),
        (
            {},
            "TensorRT-LLM",
            "{decoding_type: Draft_Target, max_draft_len: 3, speculative_model: d}",
        ),
        ({}, "transformers", "generate(assistant_model=draft)"),
        ({"draft_rows": 9}, "vLLM", '_vocab":true,"draft_sample_method":"greedy"'),
        ({"draft_rows": 9}, "transformers", "tokenizer, assistant_tokenizer=draft_tokenizer"),
        ({"ids": {"eos_token": 2}}, "llama.cpp", "--override-kv tokenizer.ggml.bos_token_id=int:1"),
    ],
)
def test_the_options_are_those_of_the_engines(changes, engine, option):
    assert option in answers(changes)[engine].option


def test_a_token_that_the_draft_can_read_and_not_write_is_named_so():
    """Its tokenizer has the id, its output no row for it: the two texts are the same."""
    found = answers({"first_unreadable": TokenDifference(id=10, target="*", draft="*")})
    said = found["TensorRT-LLM"].reason
    assert "id 10 is '*', for which the draft's output has no row" in said
