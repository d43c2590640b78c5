"""Every engine's configuration against what its own sources list, field notes' schemas by hand."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml
from scenes import EMBEDDED

from draftbench.errors import EngineError, UsageError
from draftbench.export.configurations import configure
from draftbench.memory import LEVELS
from draftbench.models.engine_rules import ENGINE_RULES
from draftbench.records import DraftingMode, Sampling

# Keys and types of the SpeculativeConfig of vLLM 0.33 that a draft model or n-grams may have.
VLLM = {
    "method": str,
    "model": str,
    "num_speculative_tokens": int,
    "num_speculative_tokens_per_batch_size": list,
    "revision": str,
    "quantization": str,
    "draft_sample_method": str,
    "use_heterogeneous_vocab": bool,
    "rejection_sample_method": str,
    "synthetic_acceptance_rates": list,
    "prompt_lookup_min": int,
    "prompt_lookup_max": int,
}
SCHEDULE = ((1, 7, 6), (8, 31, 3), (32, 32, 0))
WARM = Sampling(temperature=0.7, top_p=0.9)


def vllm(plan, version=None):
    return json.loads(configure(plan, "vllm", version).text)


def flags(plan, engine, version=None):
    """A command's flags by name; but for --metrics, those without a value are not expected."""
    words = shlex.split(configure(plan, engine, version).text.replace(" --metrics", ""))
    words = words[words.index(next(word for word in words if word.startswith("-m"))) :]
    return dict(zip(words[::2], words[1::2], strict=True))


def tensorrt(plan, version=None):
    return yaml.safe_load(configure(plan, "tensorrt-llm", version).text)["speculative_config"]


def notes(plan, engine, version=None):
    found = configure(plan, engine, version)
    return "\n".join([*filter(None, [found.command]), *found.to_do])


@pytest.mark.parametrize("draft", ["Qwen/Qwen2.5-0.5B", None])
@pytest.mark.parametrize("quant", LEVELS)
@pytest.mark.parametrize("mode", list(DraftingMode))
@pytest.mark.parametrize("version", [None, "0.26", "v0.24.1"])
def test_vllm_gets_only_keys_that_it_knows(plan, draft, quant, mode, version):
    found = vllm(plan(draft=draft, quant=quant, mode=mode, schedule=SCHEDULE), version)
    assert {key: type(value) for key, value in found.items()}.items() <= VLLM.items()
    assert found["method"] == ("ngram" if draft is None else "draft_model")


ENGINE_ONLY = [
    ("eagle3:org/head", "vllm", {"method": "eagle3", "model": "org/head"}),
    ("dflash:org/head@abc", "vllm", {"method": "dflash", "model": "org/head", "revision": "abc"}),
    ("mtp", "vllm", {"method": "mtp"}),
    ("suffix", "vllm", {"method": "suffix"}),
]


@pytest.mark.parametrize(("draft", "engine", "fields"), ENGINE_ONLY)
def test_vllm_is_given_the_method_that_it_ran(plan, draft, engine, fields):
    """Known fault: {"method": "draft_model", "model": "suffix"} was exported."""
    found = vllm(plan(draft, vocabularies=None, engine=engine))
    assert found == fields | {"num_speculative_tokens": 4}


def test_where_a_heads_gguf_file_comes_from_is_said(plan):
    found = configure(plan("eagle3:org/head", target="t.gguf", vocabularies=None), "llama.cpp")
    assert " -md head-BF16.gguf --spec-type draft-eagle3 " in found.text
    converter = "llama.cpp's `convert_hf_to_gguf.py HEAD --target-model-dir TARGET`"
    assert f"{converter} makes the head's GGUF file" in found.to_do


@pytest.mark.parametrize(
    ("draft", "engine", "text"),
    [
        (
            "eagle3:e.gguf",
            "llama.cpp",
            "llama-server -m t.gguf -md e.gguf --spec-type draft-eagle3 --spec-draft-n-max 4 "
            "--spec-draft-n-min 0 --spec-draft-p-min 0 -np 1 --metrics",
        ),
        (
            "mtp",
            "llama.cpp",
            "llama-server -m t.gguf --spec-type draft-mtp --spec-draft-n-max 4 "
            "--spec-draft-n-min 0 --spec-draft-p-min 0 -np 1 --metrics",
        ),
        (
            "eagle3:org/head",
            "sglang",
            "python -m sglang.launch_server --model-path t.gguf --speculative-algorithm EAGLE3 "
            "--speculative-draft-model-path org/head --speculative-num-steps 4 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
        ),
        (
            "eagle3:org/head",
            "tensorrt-llm",
            "speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 4\n"
            "  speculative_model: org/head",
        ),
    ],
)
def test_other_engines_are_given_the_flags_and_fields_that_start_them(plan, draft, engine, text):
    asked = plan(draft, target="t.gguf", vocabularies=None, engine=engine)
    assert configure(asked, engine).text == text


@pytest.mark.parametrize(
    ("draft", "engine", "message", "hint"),
    [
        ("suffix", "llama.cpp", "llama.cpp is not known to draft by `suffix`", "it drafts by"),
        ("eagle3:h", "transformers", "transformers is not known to draft by", "--engine vllm, "),
    ],
)
@pytest.mark.parametrize("measured_on", ["vllm", None])
def test_an_engine_that_cannot_draft_so_is_one_error(
    plan, draft, engine, message, hint, measured_on
):
    asked = plan(draft, vocabularies=None, engine=measured_on)
    with pytest.raises(UsageError) as caught:
        configure(asked, engine)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_targets_own_layers_go_to_transformers_where_it_ran_them(plan):
    own = plan("mtp", vocabularies=None)
    assert configure(own, "transformers").text.endswith("**settings, use_mtp=True)")
    assert "one token a round by each of the target's own layers" in notes(own, "transformers")
    served = plan("mtp", vocabularies=None, engine="vllm")
    with pytest.raises(UsageError, match="transformers is not known to draft by `mtp`"):
        configure(served, "transformers")


def test_vllm_drafts_in_the_mode_that_was_measured(plan):
    assert vllm(plan()) == {
        "method": "draft_model",
        "model": "Qwen/Qwen2.5-0.5B",
        "num_speculative_tokens": 4,
        "draft_sample_method": "greedy",
    }
    sampled = plan(mode=DraftingMode.SAMPLED_TEMPERATURE_ONLY, sampled=True)
    assert vllm(sampled)["draft_sample_method"] == "probabilistic"
    assert "acceptance will differ" not in notes(sampled, "vllm")


def test_vllm_looks_up_the_n_grams_that_were_measured(plan):
    assert vllm(plan(draft=None)) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }


def test_vllm_quantizes_online_only_to_fp8_with_one_scale_a_row(plan):
    assert vllm(plan(quant="fp8"))["quantization"] == "fp8_per_channel"
    assert "quantization" not in vllm(plan(quant="int4"))
    assert "make a 4-bit checkpoint of the draft" in notes(plan(quant="int4"), "vllm")
    assert "make an 8-bit checkpoint of the draft" in notes(plan(quant="int8"), "vllm")


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "transformers"])
def test_what_is_not_recommended_says_so_itself_where_the_format_has_comments(plan, engine):
    recommended = configure(plan(), engine).text.splitlines()
    lines = configure(plan(quant="int4"), engine).text.splitlines()
    said = " ".join(line[2:] for line in lines[: -len(recommended)])
    assert said.endswith("an unquantized draft is not the one recommended")
    assert lines[-len(recommended) :] == recommended
    assert not any(line.startswith("#") for line in recommended)


def test_a_draft_with_other_ids_is_translated_or_refused_though_the_sizes_agree(plan):
    other = {"vocabularies": (1000, 1000), "other_ids": True}
    assert vllm(plan(**other), None)["use_heterogeneous_vocab"] is True
    for engine in ("sglang", "llama.cpp"):
        with pytest.raises(UsageError, match="some tokens have other ids in the draft, or are not"):
            configure(plan(**other), engine)
    said = " ".join(configure(plan(**other), "transformers").to_do)
    assert "translates no token" in said


def test_a_head_that_an_engine_reads_otherwise_than_the_run_is_exported_for_others(plan):
    misread = plan(misread={"vllm": "sorts the layers that a head reads"})
    words = "vLLM would use this head differently from the run: it sorts the layers"
    with pytest.raises(UsageError, match=words):
        configure(misread, "vllm")
    assert configure(misread, "sglang") == configure(plan(), "sglang")


def test_vllm_maps_vocabularies_of_two_sizes_or_says_that_it_cannot(plan):
    for version in (None, "0.25"):
        found = vllm(plan(vocabularies=(152064, 151936)), version)
        assert found["use_heterogeneous_vocab"] is True
    for changes, version in [({}, "0.24"), ({"mode": DraftingMode.SAMPLED}, None)]:
        pair = plan(vocabularies=(152064, 151936), **changes)
        with pytest.raises(UsageError, match="its vocabularies differ"):
            configure(pair, "vllm", version)


@pytest.mark.parametrize(
    ("engine", "version", "draft"),
    [
        ("vllm", "0.23", "d"),
        ("vllm", "0.9.2", None),
        ("vllm", "newest", "d"),
        ("llamacpp", "b9000", "d"),  # the flags were renamed between b8877 and b9626
    ],
)
def test_versions_that_cannot_serve_it_are_refused(plan, engine, version, draft):
    with pytest.raises(UsageError) as caught:
        configure(plan(draft=draft), engine, version)
    assert caught.value.hint


def test_sglang_counts_the_bonus_token_and_names_the_drafts_quantization(plan):
    assert flags(plan(), "sglang") == {
        "-m": "sglang.launch_server",
        "--model-path": "Qwen/Qwen2.5-1.5B",
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": "Qwen/Qwen2.5-0.5B",
        "--speculative-num-steps": "4",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "5",
        "--speculative-draft-model-quantization": "unquant",
    }
    assert flags(plan(quant="fp8"), "sglang")["--speculative-draft-model-quantization"] == "fp8"
    lookup = flags(plan(draft=None), "sglang")
    assert lookup["--speculative-algorithm"] == "NGRAM"
    assert lookup["--speculative-num-draft-tokens"] == "5"
    assert lookup["--speculative-ngram-max-bfs-breadth"] == "1"


@pytest.mark.parametrize(("load", "most"), [(48, None), (49, "49")])
def test_sglang_is_given_the_measured_load_where_its_own_limit_is_lower(plan, load, most):
    assert flags(plan(concurrency=load), "sglang").get("--max-running-requests") == most


def test_llamacpp_after_the_renaming(plan):
    assert flags(plan(quant="int4"), "llamacpp") == {
        "-m": "Qwen2.5-1.5B-BF16.gguf",
        "-md": "Qwen2.5-0.5B-Q4_1.gguf",
        "--spec-type": "draft-simple",
        "--spec-draft-n-max": "4",
        "--spec-draft-n-min": "0",
        "--spec-draft-p-min": "0",
        "-np": "1",
    }
    assert flags(plan(concurrency=16), "llamacpp")["-np"] == "16"
    assert flags(plan(draft=None, concurrency=16), "llamacpp")["-np"] == "16"
    assert "-np 16 divides the context" in notes(plan(concurrency=16), "llamacpp")
    assert "divides the context" not in notes(plan(), "llamacpp")
    lookup = flags(plan(draft=None), "llamacpp", "after-rename")
    assert lookup["--spec-ngram-simple-size-m"] == "4"


def test_llama_server_looks_up_before_a_draft_and_no_other_engine_does(plan):
    stack = plan("ngram+d.gguf", target="t.gguf")
    found = flags(stack, "llama.cpp")
    assert (found["--spec-type"], found["-md"]) == ("ngram-simple,draft-simple", "d.gguf")
    assert (found["--spec-ngram-simple-size-n"], found["--spec-draft-n-max"]) == ("2", "4")
    assert "looks up n-grams of 2 tokens alone" in notes(stack, "llama.cpp")
    with pytest.raises(UsageError, match="before b9626 has no prompt lookup before"):
        configure(stack, "llama.cpp", "before-rename")
    for engine in ENGINE_RULES.keys() - {"llama.cpp"}:
        with pytest.raises(EngineError, match="drafts by one method"):
            configure(stack, engine)


def test_what_llama_cpp_does_otherwise_with_a_stack_stands_on_the_first_line(plan):
    lines = configure(plan("ngram+eagle3:h.gguf", target="t.gguf"), "llama.cpp").text.splitlines()
    assert lines[0].startswith("# behind prompt lookup llama.cpp accepts a little less of a head")
    measured = plan("ngram+eagle3:h.gguf", target="t.gguf", engine="llama.cpp")
    assert configure(measured, "llama.cpp").text.startswith("llama-server ")


@pytest.mark.parametrize("draft", ["d.gguf", "eagle3:h.gguf"])
def test_llama_server_is_given_the_draft_alone_where_it_would_look_up_in_vain(plan, draft):
    stack, alone = (plan(each, target="t.gguf", k=1) for each in (f"ngram+{draft}", draft))
    lines = configure(stack, "llama.cpp").text.splitlines()
    assert lines[0].startswith("# the draft alone, as llama.cpp's prompt lookup proposes no fewer")
    assert lines[-1] == configure(alone, "llama.cpp").text


def test_a_folder_without_a_name_is_called_by_its_part_in_a_llama_cpp_command(plan):
    """Known fault: `-BF16.gguf`, which reads as a flag."""
    found = flags(plan(".", target=".."), "llamacpp")
    assert (found["-m"], found["-md"]) == ("target-BF16.gguf", "draft-BF16.gguf")


@pytest.mark.parametrize("version", [None, "before-rename"])
@pytest.mark.parametrize("draft", ["d", None])
def test_llama_server_is_asked_for_the_counters_that_a_gate_needs(plan, draft, version):
    found = configure(plan(draft=draft), "llama.cpp", version)
    assert "--metrics" in shlex.split(found.text)


@pytest.mark.parametrize("name", ["llamacpp", "llama_cpp", "Llama.cpp", "llama-cpp"])
def test_an_engine_is_known_however_its_name_is_written(plan, name):
    assert configure(plan(), name).text == configure(plan(), "llama.cpp").text


def test_llamacpp_before_the_renaming(plan):
    found = flags(plan(draft="/m/d.gguf", on_gpu=True), "llamacpp", "before-rename")
    assert found == {
        "-m": "Qwen2.5-1.5B-BF16.gguf",
        "-md": "/m/d.gguf",
        "--draft-max": "4",
        "--draft-min": "0",
        "--draft-p-min": "0",
        "-np": "1",
        "-ngl": "99",
        "-ngld": "99",
    }
    lookup = flags(plan(draft=None), "llamacpp", "before-rename")
    assert (lookup["--spec-ngram-size-m"], lookup["--draft-max"]) == ("4", "4")


@pytest.mark.parametrize("mode", [DraftingMode.SAMPLED, DraftingMode.SAMPLED_TEMPERATURE_ONLY])
@pytest.mark.parametrize(
    ("version", "drafts"),
    [
        (None, "probabilistic"),
        ("b11368", "probabilistic"),
        ("b11669", "probabilistic"),
        ("b11367", None),
        ("b9626", None),
        ("b8877", None),
        ("after-rename", None),
        ("before-rename", None),
    ],
)
def test_llamacpp_samples_the_draft_in_builds_that_can_and_never_as_top_p_would(
    plan, mode, version, drafts
):
    pair = plan(mode=mode, sampled=True)
    assert flags(pair, "llamacpp", version).get("--spec-draft-sampling") == drafts
    like = mode is DraftingMode.SAMPLED_TEMPERATURE_ONLY and drafts
    assert ("acceptance will differ" in notes(pair, "llamacpp", version)) == (not like)
    renamed = version not in ("b8877", "before-rename")
    assert ("--spec-draft-n-max" in flags(pair, "llamacpp", version)) == renamed


@pytest.mark.parametrize(
    ("engine", "sizes", "reason"),
    [
        ("llamacpp", (152064, 151935), "sizes may be 128 apart, here 129"),
        ("sglang", (152064, 151936), "it needs equal vocab_size, here 152064 and 151936"),
    ],
)
def test_a_pair_that_the_engine_refuses_is_not_written_for_it(plan, engine, sizes, reason):
    with pytest.raises(UsageError, match=f"refuses this pair: {reason}"):
        configure(plan(vocabularies=sizes), engine)


def test_engines_that_take_a_revision_are_given_it(plan):
    pair = plan(draft="Qwen/Qwen2.5-0.5B@v1", target_revision="abc")
    assert vllm(pair)["revision"] == "v1"
    assert "vllm serve Qwen/Qwen2.5-1.5B --revision abc" in notes(pair, "vllm")
    found = flags(pair, "sglang")
    assert (found["--revision"], found["--speculative-draft-model-revision"]) == ("abc", "v1")
    assert configure(pair, "transformers").text.count("revision='v1'") == 1
    assert configure(pair, "transformers").text.count("revision='abc'") == 2
    # TensorRT-LLM downloads the target at it and the draft at the newest.
    assert yaml.safe_load(configure(pair, "tensorrt-llm").text)["revision"] == "abc"
    assert "Qwen2.5-1.5B@abc" not in notes(pair, "tensorrt-llm")
    assert "serve `Qwen/Qwen2.5-1.5B@abc`, the revision that was measured" in notes(
        pair, "llamacpp"
    )
    for engine in ("llamacpp", "tensorrt-llm"):
        assert "serve `Qwen/Qwen2.5-0.5B@v1`, the revision that was measured" in notes(pair, engine)


def test_tensorrt_llm_reads_the_yaml(plan):
    """Known fault: `DraftTarget`, which is no tag of its union, was refused."""
    assert yaml.safe_load(configure(plan(), "tensorrt-llm").text) == {
        "speculative_config": {
            "decoding_type": "Draft_Target",
            "max_draft_len": 4,
            "speculative_model": "Qwen/Qwen2.5-0.5B",
        }
    }
    assert yaml.safe_load(configure(plan(), "tensorrt-llm", "1.0.0").text) == {
        "disable_overlap_scheduler": True,
        "speculative_config": {
            "decoding_type": "DraftTarget",
            "max_draft_len": 4,
            "speculative_model_dir": "Qwen/Qwen2.5-0.5B",
        },
    }


def test_tensorrt_llm_looks_up_n_grams_of_one_request_alone(plan):
    assert yaml.safe_load(configure(plan(draft=None), "tensorrt-llm").text) == {
        "disable_overlap_scheduler": True,
        "speculative_config": {
            "decoding_type": "NGram",
            "max_draft_len": 4,
            "max_matching_ngram_size": 5,
            "is_public_pool": False,
            "is_use_oldest": False,
        },
    }


def test_tensorrt_llm_samples_the_draft_where_the_run_did(plan):
    sampled = plan(mode=DraftingMode.SAMPLED, sampled=True)
    assert tensorrt(sampled)["use_rejection_sampling"] is True
    assert "acceptance will differ" not in notes(sampled, "tensorrt-llm")
    assert "use_rejection_sampling" not in tensorrt(plan())
    assert "use_rejection_sampling" not in tensorrt(sampled, "1.2.0")


def test_transformers_keeps_k_constant_whatever_the_names_hold(plan):
    code = configure(plan(draft="o'neil\\\"; import os"), "transformers").text
    compile(code, "snippet", "exec")
    lines = code.splitlines()
    assert "draft.generation_config.num_assistant_tokens = 4" in lines
    assert 'draft.generation_config.num_assistant_tokens_schedule = "constant"' in lines
    assert "draft.generation_config.assistant_confidence_threshold = 0.0" in lines
    assert not any(line.startswith("import os") for line in lines)
    assert '"do_sample": False, "repetition_penalty": 1.0, "max_new_tokens": 128' in code
    lookup = configure(plan(draft=None), "transformers").text
    assert "prompt_lookup_num_tokens=4, max_matching_ngram_size=5" in lookup


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        ("vllm", DraftingMode.SAMPLED),
        ("sglang", DraftingMode.SAMPLED),
        ("tensorrt-llm", DraftingMode.SAMPLED_TEMPERATURE_ONLY),
        ("transformers", DraftingMode.GREEDY),
    ],
)
def test_another_drafting_mode_is_said_above_temperature_0_only(plan, engine, mode):
    for sampled in (True, False):
        found = notes(plan(mode=mode, sampled=sampled), engine)
        assert ("acceptance will differ" in found) == sampled


def test_transformers_is_given_the_folder_and_the_name_of_a_gguf_file(plan):
    pair = plan(target="/srv/m/big.gguf", draft="small.gguf", target_revision=None)
    code = configure(pair, "transformers").text
    assert "AutoTokenizer.from_pretrained('/srv/m', gguf_file='big.gguf')" in code
    assert "AutoModelForCausalLM.from_pretrained('/srv/m', gguf_file='big.gguf', dtype=" in code
    assert "AutoModelForCausalLM.from_pretrained('.', gguf_file='small.gguf', dtype=" in code


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "vLLM reads .gguf files only experimentally, newer versions only with vllm-gguf"),
        ("sglang", "SGLang reads .gguf files, but whether as target or draft of STANDALONE"),
        ("tensorrt-llm", "TensorRT-LLM loads Hugging Face checkpoints, not .gguf files"),
        ("llama.cpp", None),
        ("transformers", None),
    ],
)
def test_an_engine_that_hardly_takes_gguf_files_says_so_first(plan, engine, words):
    """Known fault: the file's name was exported without a word."""
    found = configure(plan(target="t.gguf", draft="d.gguf"), engine).to_do
    asked = "give the checkpoint that `t.gguf` and `d.gguf` were made from with --target and"
    assert [words in found[0] and asked in found[0]] == [True] if words else asked not in found
    alone = "give the checkpoint that `d.gguf` was made from with --draft"
    for changes in ({"draft": "d.gguf"}, {}):
        said = notes(plan(**changes), engine)
        assert (alone in said) == bool(words and changes)


def test_transformers_is_given_both_tokenizers_where_sizes_differ(plan):
    found = configure(plan(vocabularies=(152064, 151936)), "transformers")
    compile(found.text, "snippet", "exec")
    assert "tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" in found.text
    assert "assistant_tokenizer" not in configure(plan(), "transformers").text


def test_vllm_gets_the_lengths_by_batch_size(plan):
    found = vllm(plan(schedule=SCHEDULE))
    assert found["num_speculative_tokens"] == 6
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 7, 6], [8, 31, 3], [32, 32, 0]]
    assert "with and without the schedule" in notes(plan(schedule=SCHEDULE), "vllm")
    assert "with and without" not in notes(plan(schedule=SCHEDULE[:2]), "vllm")
    lookup = vllm(plan(schedule=SCHEDULE, draft=None))
    assert lookup["num_speculative_tokens_per_batch_size"][2] == [32, 32, 0]


@pytest.mark.parametrize("engine", ["sglang", "llamacpp", "transformers"])
def test_engines_without_a_length_by_load_say_so(plan, engine):
    pair, words = plan(schedule=SCHEDULE), "takes one draft length, here k = 4"
    assert words in notes(pair, engine)
    assert "6 at 1–7, 3 at 8–31, 0 at 32. --concurrency N" in notes(pair, engine)
    assert "per_batch_size" not in configure(pair, engine).text
    assert words not in notes(plan(), engine)


@pytest.mark.parametrize(
    ("version", "changes", "most", "schedule"),
    [
        (None, {}, 6, {7: 6, 31: 3, 32: 0}),
        ("1.2.0", {}, 6, {1: 6, 8: 3, 32: 0}),
        (None, {"draft": None}, 6, {7: 6, 31: 3, 32: 0}),
        # The first length must be the longest.
        ("1.2.0", {"schedule": ((1, 7, 3), (8, 16, 6))}, 4, None),
        (None, {"schedule": ((1, 7, 3), (8, 16, 6))}, 4, None),
    ],
)
def test_tensorrt_llm_names_the_largest_batch_of_each_length_and_before_1_3_the_smallest(
    plan, version, changes, most, schedule
):
    fields = tensorrt(plan(**{"schedule": SCHEDULE} | changes), version)
    assert (fields["max_draft_len"], fields.get("draft_len_schedule")) == (most, schedule)


TWO_SIZES, SHORT = {"vocabularies": (152064, 151936)}, {"contexts": (131072, 2048)}
LOADS, LOOKUP = {"schedule": SCHEDULE}, {"draft": None}
FIRST = {"draft": None, "first_match": True}
GRAPHS, LENGTHS, HANGS = "without CUDA graphs", "drafts 6 tokens at every load", "may hang"
LAST = "takes the last match in the prompt, the run the first: measure acceptance there"
LEAST = "Draft_Target drafts one token there"


@pytest.mark.parametrize(
    ("engine", "version", "changes", "words"),
    [
        ("tensorrt-llm", None, TWO_SIZES, "the vocabularies differ, and TensorRT-LLM does not"),
        ("vllm", None, SHORT, "cuts the server's context to the draft's, 2048 tokens"),
        ("sglang", None, SHORT, "beyond the draft's context of 2048 tokens"),
        ("vllm", None, {"target": "~/m/t"}, "`~/m/t` is a path on the machine that measured"),
        ("vllm", None, {"draft": "."}, "`.` is a path on the machine that measured"),
        ("llamacpp", None, {"draft": "./d.gguf"}, "`./d.gguf` is a path on the machine"),
        ("vllm", None, {"target_quant": "int4"}, "serve the target at int4, as it was measured"),
        ("tensorrt-llm", None, LOADS, LEAST),
        # From which end prompt lookup searches, and how far down.
        ("tensorrt-llm", None, LOOKUP, "n-grams down to one token"),
        ("llamacpp", None, LOOKUP, "n-grams of 2 tokens alone, the run of up to 5: measure"),
        ("transformers", None, LOOKUP, "down to 2 and takes the first match in the prompt, the"),
        *((engine, None, FIRST, LAST) for engine in ("llamacpp", "tensorrt-llm", "vllm")),
        ("llamacpp", None, LOOKUP | {"k": 1}, "than its n-gram has (2): with k = 1 it drafts"),
        ("vllm", "0.31", LOOKUP, "vLLM takes the first match in the prompt, the run the last"),
        # vLLM's second runner serves draft models from 0.31 on, but maps no vocabularies.
        *(("vllm", version, LOADS, GRAPHS) for version in (None, "0.31")),
        *(("vllm", version, LOADS, LENGTHS) for version in (None, "0.31")),
        ("vllm", "0.25", LOADS, HANGS),
    ],
)
def test_what_an_engine_does_in_its_own_way_is_said(plan, engine, version, changes, words):
    assert words in notes(plan(**changes), engine, version)


@pytest.mark.parametrize(
    ("engine", "version", "changes", "unsaid"),
    [
        ("llamacpp", None, TWO_SIZES, ["152064 and 151936 entries"]),
        ("llamacpp", None, LOOKUP, ["match", "drafts nothing"]),
        ("llamacpp", None, LOOKUP | {"engine": "llama.cpp"}, ["tokens alone"]),
        # Known fault: paths were named that the command, of files yet to be converted, lacks.
        ("llamacpp", None, {"target": "./t", "draft": "/m/d"}, ["on the machine that measured"]),
        *((engine, None, LOOKUP, ["match"]) for engine in ("vllm", "tensorrt-llm")),
        ("vllm", "0.31", FIRST, ["match"]),
        ("transformers", None, FIRST, ["match"]),
        ("tensorrt-llm", None, {}, ["entries", LEAST]),
        ("vllm", None, {"contexts": (2048, 2048)}, ["2048"]),
        ("tensorrt-llm", None, {"schedule": SCHEDULE[:2]}, [LEAST]),
        ("tensorrt-llm", None, LOADS | LOOKUP, [LEAST]),
        ("vllm", "0.30", LOADS, [GRAPHS, LENGTHS, HANGS]),
        ("vllm", None, LOADS | TWO_SIZES, [GRAPHS, LENGTHS, HANGS]),
        ("vllm", None, LOADS | LOOKUP, [GRAPHS, LENGTHS, HANGS]),
        ("vllm", None, LOADS, [HANGS]),
        ("vllm", "0.25", LOADS, [GRAPHS, LENGTHS]),
    ],
)
def test_and_not_where_it_does_not_hold(plan, engine, version, changes, unsaid):
    found = notes(plan(**changes), engine, version)
    assert [words for words in unsaid if words in found] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "send temperature 0 with every request, as measured"),
        (
            {"sampling": WARM, "sampled": True},
            "send temperature 0.7, no top-k, top-p 0.9, no min-p with every request, as measured",
        ),
        # Temperature 0 is what most of the requests ask for, not what all do.
        (
            {"mixed": True, "sampled": True},
            "send every request's temperature, top-k, top-p and min-p, as measured",
        ),
    ],
)
@pytest.mark.parametrize(
    ("engine", "otherwise"),
    [
        ("llamacpp", "at temperature 0.8, top-k 40, top-p 0.95 and min-p 0.05"),
        ("vllm", "by the checkpoint's generation_config.json"),
        ("sglang", "by the checkpoint's generation_config.json"),
    ],
)
def test_what_a_server_does_where_a_request_does_not_say_is_said(
    plan, changes, words, engine, otherwise
):
    first = configure(plan(**changes), engine).to_do[0]
    assert first.startswith(f"{words}; otherwise ")
    assert first.endswith(f" samples {otherwise}")


def test_transformers_generates_as_the_traffic_asked(plan):
    found = configure(plan(sampling=WARM, sampled=True, limit=64), "transformers").text
    assert (
        'settings = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9, '
        '"min_p": 0.0, "repetition_penalty": 1.0, "max_new_tokens": 64}'
    ) in found
    assert "the most frequent is written" in notes(plan(mixed=True), "transformers")


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_the_snippet_for_transformers_runs(plan, sampling):
    pair = {"target": str(EMBEDDED / "target"), "draft": str(EMBEDDED / "draft")}
    for changes in (pair, pair | {"draft": None}):
        scope = {}
        exec(configure(plan(**changes, sampling=sampling, limit=5), "transformers").text, scope)
        assert 1 <= scope["output"].shape[1] - scope["inputs"]["input_ids"].shape[1] <= 5


def test_the_measured_acceptance_is_played_back_by_position_or_as_its_mean(plan):
    pair = plan(survival=(0.8, 0.5, 0.25, 0.05))
    assert vllm(pair)["rejection_sample_method"] == "synthetic"
    assert vllm(pair)["synthetic_acceptance_rates"] == [0.8, 0.5, 0.25, 0.05]
    for version in (None, "b10649"):
        assert flags(pair, "llamacpp", version)["--spec-synth-rates"] == "0.8,0.5,0.25,0.05"
    # 1 + 0.8 + 0.5 + 0.25 + 0.05
    mean = "SGLANG_SIMULATE_ACC_LEN=2.6 python -m sglang.launch_server "
    assert configure(pair, "sglang").text.startswith(mean)
    assert "synth" not in "".join(configure(plan(), e).text.lower() for e in ENGINE_RULES)


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("transformers", None),
        ("tensorrt-llm", None),
        ("llamacpp", "before-rename"),
        ("llamacpp", "after-rename"),
        ("llamacpp", "b10648"),
    ],
)
def test_what_plays_back_no_acceptance_is_refused(plan, engine, version):
    with pytest.raises(UsageError, match="play"):
        configure(plan(survival=(0.8,)), engine, version)
