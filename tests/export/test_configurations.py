"""Every engine's configuration against what its own sources list, field notes' schemas by hand."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from draftbench.errors import UsageError
from draftbench.export.configurations import configure
from draftbench.models.engine_rules import ENGINES
from draftbench.records import DraftingMode

# Keys and types of the SpeculativeConfig of vLLM 0.32 that a draft model or n-grams may have.
VLLM = {
    "method": str,
    "model": str,
    "num_speculative_tokens": int,
    "num_speculative_tokens_per_batch_size": list,
    "quantization": str,
    "draft_sample_method": str,
    "use_heterogeneous_vocab": bool,
    "prompt_lookup_min": int,
    "prompt_lookup_max": int,
}
REMOVED = {
    "vllm": ["--speculative-model", "--num-speculative-tokens", "--use-v2-block-manager"],
    "llamacpp": ["--draft-max", "--draft-min", "--draft-n", "--spec-ngram-size-n"],
}
SCHEDULE = ((1, 7, 6), (8, 31, 3), (32, 32, 0))


def vllm(setting, version=None):
    return json.loads(configure(setting, "vllm", version).text)


def flags(setting, engine, version=None):
    """A command's flags by name; those without a value are not expected."""
    words = shlex.split(configure(setting, engine, version).text)
    words = words[words.index(next(word for word in words if word.startswith("-m"))) :]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("draft", ["Qwen/Qwen2.5-0.5B", None])
@pytest.mark.parametrize("quant", ["none", "fp8", "int8", "int4"])
@pytest.mark.parametrize("mode", list(DraftingMode))
@pytest.mark.parametrize("version", [None, "0.26", "v0.15.1"])
def test_vllm_gets_only_keys_that_it_knows(setting, draft, quant, mode, version):
    found = vllm(setting(draft=draft, quant=quant, mode=mode, schedule=SCHEDULE), version)
    assert {key: type(value) for key, value in found.items()}.items() <= VLLM.items()
    assert found["method"] == ("ngram" if draft is None else "draft_model")


def test_vllm_drafts_in_the_mode_that_was_measured(setting):
    assert vllm(setting()) == {
        "method": "draft_model",
        "model": "Qwen/Qwen2.5-0.5B",
        "num_speculative_tokens": 4,
        "draft_sample_method": "greedy",
    }
    sampled = setting(mode=DraftingMode.SAMPLED_TEMPERATURE_ONLY, sampled=True)
    assert vllm(sampled)["draft_sample_method"] == "probabilistic"
    assert not any("acceptance will differ" in note for note in configure(sampled, "vllm").notes)


def test_vllm_looks_up_the_n_grams_that_were_measured(setting):
    assert vllm(setting(draft=None)) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }


def test_vllm_quantizes_online_only_to_fp8(setting):
    assert vllm(setting(quant="fp8"))["quantization"] == "fp8"
    assert "quantization" not in vllm(setting(quant="int4"))
    (note,) = [n for n in configure(setting(quant="int4"), "vllm").notes if "checkpoint" in n]
    assert "4-bit checkpoint" in note
    assert "--draft" in note


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "transformers"])
def test_what_is_not_recommended_says_so_itself_where_the_format_has_comments(setting, engine):
    recommended = configure(setting(), engine).text.splitlines()
    lines = configure(setting(quant="int4"), engine).text.splitlines()
    said = " ".join(line[2:] for line in lines[: -len(recommended)])
    assert said.endswith("an unquantized draft is not the one recommended")
    assert lines[-len(recommended) :] == recommended
    assert not any(line.startswith("#") for line in recommended)


def test_vllm_maps_vocabularies_of_two_sizes_or_says_that_it_cannot(setting):
    assert vllm(setting(vocabularies=(152064, 151936)))["use_heterogeneous_vocab"] is True
    for changes, version in [({}, "0.25"), ({"mode": DraftingMode.SAMPLED}, None)]:
        pair = setting(vocabularies=(152064, 151936), **changes)
        with pytest.raises(UsageError, match="152064 and 151936"):
            configure(pair, "vllm", version)


@pytest.mark.parametrize(
    ("engine", "version", "draft"),
    [
        ("vllm", "0.14", "d"),
        ("vllm", "0.9.2", None),
        ("transformers", "4.44", "d"),
        ("vllm", "newest", "d"),
        ("llamacpp", "b9235", "d"),
    ],
)
def test_versions_that_cannot_serve_it_are_refused(setting, engine, version, draft):
    with pytest.raises(UsageError) as caught:
        configure(setting(draft=draft), engine, version)
    assert caught.value.hint


@pytest.mark.parametrize("engine", ["tgi", "sglnag", "ollama", ""])
def test_engines_without_a_configuration_are_refused(setting, engine):
    with pytest.raises(UsageError) as caught:
        configure(setting(), engine)
    assert "vllm, sglang, llamacpp, tensorrt-llm, transformers" in caught.value.hint
    assert ("`--speculate K`" in caught.value.message) == (engine == "tgi")


def test_sglang_counts_the_bonus_token_and_names_the_drafts_quantization(setting):
    assert flags(setting(), "sglang") == {
        "-m": "sglang.launch_server",
        "--model-path": "Qwen/Qwen2.5-1.5B",
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": "Qwen/Qwen2.5-0.5B",
        "--speculative-num-steps": "4",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "5",
        "--speculative-draft-model-quantization": "unquant",
    }
    assert flags(setting(quant="fp8"), "sglang")["--speculative-draft-model-quantization"] == "fp8"
    lookup = flags(setting(draft=None), "sglang")
    assert lookup["--speculative-algorithm"] == "NGRAM"
    assert lookup["--speculative-num-draft-tokens"] == "5"


def test_llamacpp_after_the_renaming(setting):
    assert flags(setting(quant="int4"), "llamacpp") == {
        "-m": "Qwen2.5-1.5B-BF16.gguf",
        "-md": "Qwen2.5-0.5B-Q4_K_M.gguf",
        "--spec-type": "draft-simple",
        "--spec-draft-n-max": "4",
        "--spec-draft-n-min": "0",
        "--spec-draft-p-min": "0",
        "--spec-draft-sampling": "greedy",
    }
    lookup = flags(setting(draft=None), "llamacpp", "after-rename")
    assert lookup["--spec-ngram-simple-size-m"] == "4"


def test_llamacpp_before_the_renaming(setting):
    found = flags(setting(draft="/m/d.gguf", on_gpu=True), "llamacpp", "before-rename")
    assert found == {
        "-m": "Qwen2.5-1.5B-BF16.gguf",
        "-md": "/m/d.gguf",
        "--draft-max": "4",
        "--draft-min": "0",
        "--draft-p-min": "0",
        "-ngl": "99",
        "-ngld": "99",
    }
    lookup = flags(setting(draft=None), "llamacpp", "before-rename")
    assert (lookup["--spec-ngram-size-m"], lookup["--draft-max"]) == ("4", "4")


def test_llamacpp_refuses_vocabularies_that_differ_by_more_than_128(setting):
    def refused(*sizes):
        notes = configure(setting(vocabularies=sizes), "llamacpp").notes
        return any("refuses" in note for note in notes)

    assert refused(152064, 151935)
    assert not refused(152064, 151936)


@pytest.mark.parametrize("engine", REMOVED)
@pytest.mark.parametrize("draft", ["d", None])
def test_removed_flags_are_never_written(setting, engine, draft):
    written = configure(setting(draft=draft), engine)
    for flag in REMOVED[engine]:
        assert flag not in shlex.split(written.text)
        assert flag not in " ".join(written.notes)


def test_tensorrt_llm_reads_the_yaml(setting):
    assert yaml.safe_load(configure(setting(), "tensorrt-llm").text) == {
        "disable_overlap_scheduler": True,
        "speculative_config": {
            "decoding_type": "DraftTarget",
            "max_draft_len": 4,
            "speculative_model": "Qwen/Qwen2.5-0.5B",
        },
    }
    older = yaml.safe_load(configure(setting(), "tensorrt-llm", "1.0.0").text)
    assert older["speculative_config"]["speculative_model_dir"] == "Qwen/Qwen2.5-0.5B"
    lookup = yaml.safe_load(configure(setting(draft=None), "tensorrt-llm").text)
    assert lookup["speculative_config"] == {
        "decoding_type": "NGram",
        "max_draft_len": 4,
        "max_matching_ngram_size": 5,
    }


def test_transformers_keeps_k_constant_whatever_the_names_hold(setting):
    code = configure(setting(draft="o'neil\\\"; import os"), "transformers").text
    compile(code, "snippet", "exec")
    lines = code.splitlines()
    assert "draft.generation_config.num_assistant_tokens = 4" in lines
    assert 'draft.generation_config.num_assistant_tokens_schedule = "constant"' in lines
    assert "draft.generation_config.assistant_confidence_threshold = 0.0" in lines
    assert not any(line.startswith("import os") for line in lines)
    lookup = configure(setting(draft=None), "transformers").text
    assert "prompt_lookup_num_tokens=4, max_matching_ngram_size=5" in lookup


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("draft", ["d", None])
def test_every_engine_states_what_its_schema_was_taken_from(setting, engine, draft):
    notes = configure(setting(draft=draft), engine).notes
    assert any(word in " ".join(notes) for word in ("schema of", "flags of", "written for"))


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        ("vllm", DraftingMode.SAMPLED),
        ("sglang", DraftingMode.SAMPLED),
        ("tensorrt-llm", DraftingMode.SAMPLED),
        ("transformers", DraftingMode.GREEDY),
    ],
)
def test_another_drafting_mode_is_said_above_temperature_0_only(setting, engine, mode):
    for sampled in (True, False):
        notes = configure(setting(mode=mode, sampled=sampled), engine).notes
        assert any("acceptance will differ" in note for note in notes) == sampled


def test_names_of_the_measuring_machine_are_pointed_out(setting):
    pair = setting(target="~/models/t", draft=".", pinned=("org/d@main",), target_quant="int4")
    notes = " ".join(configure(pair, "vllm").notes)
    assert "`~/models/t` is a path on the measuring machine" in notes
    assert "`.` is a path on the measuring machine" in notes
    assert "the run measured `org/d@main`: pin this revision" in notes
    assert "the target was measured at int4: serve it at that level" in notes


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_engines_that_compare_no_vocabularies_say_so_where_sizes_differ(setting, engine):
    def said(*sizes):
        notes = configure(setting(vocabularies=sizes), engine).notes
        return any(f"{sizes[0]} and {sizes[1]} entries" in note for note in notes)

    assert said(152064, 151936)
    assert not said(151936, 151936)


def test_transformers_is_given_both_tokenizers_where_sizes_differ(setting):
    found = configure(setting(vocabularies=(152064, 151936)), "transformers")
    compile(found.text, "snippet", "exec")
    assert "tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" in found.text
    assert "assistant_tokenizer" not in configure(setting(), "transformers").text


def test_vllm_gets_the_lengths_by_batch_size(setting):
    found = configure(setting(schedule=SCHEDULE), "vllm")
    fields = json.loads(found.text)
    assert fields["num_speculative_tokens"] == 6
    assert fields["num_speculative_tokens_per_batch_size"] == [[1, 7, 6], [8, 31, 3], [32, 32, 0]]
    assert any("data parallelism" in note for note in found.notes)
    lookup = json.loads(configure(setting(schedule=SCHEDULE, draft=None), "vllm").text)
    assert lookup["num_speculative_tokens_per_batch_size"][2] == [32, 32, 0]


def test_an_older_vllm_keeps_one_length_and_says_the_rest(setting):
    found = configure(setting(schedule=SCHEDULE), "vllm", "0.24")
    assert json.loads(found.text)["num_speculative_tokens"] == 4
    assert "per_batch_size" not in found.text
    assert any(
        "k = 6 from 1 to 7, k = 3 from 8 to 31, k = 0 from 32 to 32" in n for n in found.notes
    )


def test_tensorrt_llm_names_the_largest_batch_of_each_length_and_before_1_3_the_smallest(setting):
    def lengths(version=None, **changes):
        pair = setting(schedule=SCHEDULE, **changes)
        own = yaml.safe_load(configure(pair, "tensorrt-llm", version).text)["speculative_config"]
        return own["max_draft_len"], own.get("draft_len_schedule")

    assert lengths() == (6, {7: 6, 31: 3, 32: 0})
    assert lengths("1.2.0") == (6, {1: 6, 8: 3, 32: 0})
    assert lengths(draft=None) == (6, {7: 6, 31: 3, 32: 0})


def test_a_schedule_that_rises_is_not_written_for_an_older_tensorrt_llm(setting):
    pair = setting(schedule=((1, 7, 3), (8, 16, 6)))
    own = yaml.safe_load(configure(pair, "tensorrt-llm", "1.2.0").text)["speculative_config"]
    assert own["max_draft_len"] == 4
    assert "draft_len_schedule" not in own


def test_tensorrt_llm_is_said_to_draft_where_the_schedule_says_not_to(setting):
    def said(**changes):
        notes = configure(setting(**changes), "tensorrt-llm").notes
        return any("drafts one token where the schedule says 0" in note for note in notes)

    assert said(schedule=SCHEDULE)
    assert not said(schedule=SCHEDULE[:2])
    assert not said(schedule=SCHEDULE, draft=None)


@pytest.mark.parametrize("engine", ["sglang", "llamacpp", "transformers"])
def test_engines_without_a_length_by_load_say_so(setting, engine):
    words = "one draft length for all loads"
    (note,) = [n for n in configure(setting(schedule=SCHEDULE), engine).notes if words in n]
    assert "it is k = 4" in note
    assert "k = 0 from 32 to 32 concurrent requests" in note
    assert not any(words in n for n in configure(setting(), engine).notes)
