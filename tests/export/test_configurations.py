"""Every engine's configuration, written out. How it drafts is in tests/engines/test_commands.py."""

import json
import shlex

import pytest
import yaml
from scenes import EMBEDDED

from draftbench.drafts.speculation import Speculation
from draftbench.engines.every import ENGINES
from draftbench.errors import EngineError, UsageError
from draftbench.export.configurations import configure
from draftbench.records import DraftingMode, Sampling, StopRule

SCHEDULE = ((1, 7, 6), (8, 31, 3), (32, 32, 0))
WARM = Sampling(temperature=0.7, top_p=0.9)
AFTER = StopRule(kind="after", threshold=0.4)
BEFORE = StopRule(kind="before", threshold=0.75)
SAMPLED, TEMPERATURE = DraftingMode.SAMPLED, DraftingMode.SAMPLED_TEMPERATURE_ONLY
SURE = "--spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0"
CHAIN = "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
SGLANG = "python -m sglang.launch_server --model-path t.gguf --speculative-algorithm"


def vllm(plan, version=None):
    return json.loads(configure(plan, "vllm", version).text)


def tensorrt(plan, version=None):
    return yaml.safe_load(configure(plan, "tensorrt-llm", version).text)["speculative_config"]


def flags(plan, engine, version=None):
    """A command's flags by name; but for --metrics, those without a value are not expected."""
    words = shlex.split(configure(plan, engine, version).text.replace(" --metrics", ""))
    words = words[words.index(next(word for word in words if word.startswith("-m"))) :]
    return dict(zip(words[::2], words[1::2], strict=True))


def notes(plan, engine, version=None):
    found = configure(plan, engine, version)
    return "\n".join([*filter(None, [found.command]), *found.to_do])


PAIR = {"method": "draft_model", "model": "Qwen/Qwen2.5-0.5B", "draft_sample_method": "greedy"}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, PAIR),
        ({"mode": TEMPERATURE, "sampled": True}, PAIR | {"draft_sample_method": "probabilistic"}),
        # It quantizes while loading only to fp8 with one scale a row.
        ({"quant": "fp8"}, PAIR | {"quantization": "fp8_per_channel"}),
        ({"quant": "int4"}, PAIR),
        ({"vocabularies": (152064, 151936)}, PAIR | {"use_heterogeneous_vocab": True}),
        (
            {"vocabularies": (1000, 1000), "other_ids": True},
            PAIR | {"use_heterogeneous_vocab": True},
        ),
        ({"draft": None}, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}),
        (
            {"survival": (0.8, 0.5, 0.25, 0.05)},
            PAIR
            | {"rejection_sample_method": "synthetic"}
            | {"synthetic_acceptance_rates": [0.8, 0.5, 0.25, 0.05]},
        ),
        *(
            (
                {"draft": f"{kind}:org/b", "vocabularies": None, "engine": "vllm"},
                {"method": kind, "model": "org/b"},
            )
            for kind in ("dflash", "dspark")
        ),
        # Known fault: {"method": "draft_model", "model": "suffix"} was exported.
        ({"draft": "suffix", "vocabularies": None, "engine": "vllm"}, {"method": "suffix"}),
    ],
)
def test_vllm_is_given_these_fields(plan, changes, fields):
    assert vllm(plan(**changes)) == fields | {"num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("draft", "engine", "text"),
    [
        (
            "eagle3:e.gguf",
            "llama.cpp",
            f"llama-server -m t.gguf -md e.gguf --spec-type draft-eagle3 {SURE} -np 1 --metrics",
        ),
        (
            "eagle3:org/head",
            "sglang",
            f"{SGLANG} EAGLE3 --speculative-draft-model-path org/head {CHAIN}",
        ),
        (
            "eagle3:org/head",
            "tensorrt-llm",
            "speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 4\n"
            "  speculative_model: org/head",
        ),
        # A block of k tokens: SGLang counts the last known one with DFlash, not with DSpark.
        *(
            (
                f"{kind}:b.gguf",
                "llama.cpp",
                f"llama-server -m t.gguf -md b.gguf --spec-type "
                f"draft-{kind} {SURE} -np 1 --metrics",
            )
            for kind in ("dflash", "dspark")
        ),
        (
            "dflash:org/b",
            "sglang",
            f"{SGLANG} DFLASH --speculative-draft-model-path org/b "
            "--speculative-dflash-block-size 5",
        ),
        (
            "dspark:org/b",
            "sglang",
            f"{SGLANG} DSPARK --speculative-draft-model-path org/b "
            "--speculative-dspark-block-size 4",
        ),
        (
            "dflash:org/b",
            "tensorrt-llm",
            "speculative_config:\n  decoding_type: DFlash\n  max_draft_len: 4\n"
            "  speculative_model: org/b",
        ),
        # Known fault: `DraftTarget`, which is no tag of its union, was refused.
        (
            "d",
            "tensorrt-llm",
            "speculative_config:\n  decoding_type: Draft_Target\n  max_draft_len: 4\n"
            "  speculative_model: d",
        ),
        (
            None,
            "tensorrt-llm",
            "disable_overlap_scheduler: true\nspeculative_config:\n  decoding_type: NGram\n"
            "  max_draft_len: 4\n  max_matching_ngram_size: 5\n  is_public_pool: false\n"
            "  is_use_oldest: false",
        ),
    ],
)
def test_other_engines_are_given_the_flags_and_fields_that_start_them(plan, draft, engine, text):
    asked = plan(draft, target="t.gguf", vocabularies=None, engine=engine)
    assert configure(asked, engine).text == text


def test_a_file_of_speculation_goes_to_the_engine_that_it_was_measured_on(plan):
    assert vllm(plan(**MEDUSA)) == {"method": "medusa", "num_speculative_tokens": 4}


def test_where_a_heads_gguf_file_comes_from_is_said(plan):
    found = configure(plan("eagle3:org/head", target="t.gguf", vocabularies=None), "llama.cpp")
    assert " -md head-BF16.gguf --spec-type draft-eagle3 " in found.text
    assert any("makes the head's GGUF file" in note for note in found.to_do)


OTHER_IDS = {"vocabularies": (1000, 1000), "other_ids": True}
SIZES = {"vocabularies": (152064, 151936)}


FILE = Speculation("raw", None, 4, raw={"method": "medusa", "num_speculative_tokens": "{k}"})
MEDUSA = {"speculation": FILE, "vocabularies": None, "engine": "vllm"}


@pytest.mark.parametrize(
    ("engine", "version", "changes", "message"),
    [
        *(
            (engine, None, {"draft": draft, "vocabularies": None, "engine": on}, "is not known to")
            for engine, draft in (("llama.cpp", "suffix"), ("transformers", "eagle3:h"))
            for on in ("vllm", None)
        ),
        *(
            (engine, None, {"draft": "ngram+d.gguf", "target": "t.gguf"}, "drafts by one method")
            for engine in sorted(ENGINES.keys() - {"llama.cpp"})
        ),
        *((engine, None, OTHER_IDS, "have other ids in the") for engine in ("sglang", "llamacpp")),
        ("llamacpp", None, {"vocabularies": (152064, 151935)}, "may be 128 apart, here 129"),
        ("sglang", None, SIZES, "it needs equal vocab_size, here 152064 and 151936"),
        ("vllm", None, SIZES | {"mode": SAMPLED}, "its vocabularies differ"),
        (
            "vllm",
            None,
            {"misread": {"vllm": "sorts the layers"}},
            "use this head differently from the run: it sorts the layers",
        ),
        ("sglang", None, MEDUSA, "spec:FILE.json is written for vllm"),
        *((e, None, {"stop": BEFORE}, "draft by this rule") for e in ENGINES if e != "llama.cpp"),
        ("llama.cpp", None, {"stop": AFTER}, "does not stop such a draft by this rule"),
        ("vllm", "0.25", {}, "before 0.26"),
        ("vllm", "newest", {}, "not a version"),
        ("llamacpp", "b9625", {}, "before b9626"),
        ("tensorrt-llm", "1.2.0", {}, "before 1.3"),
        *((e, None, {"survival": (0.8,)}, "plays back") for e in ("transformers", "tensorrt-llm")),
        ("llamacpp", "b10648", {"survival": (0.8,)}, "acceptance to play back"),
    ],
)
def test_what_an_engine_or_its_version_cannot_serve_is_refused(
    plan, engine, version, changes, message
):
    with pytest.raises((UsageError, EngineError), match=message) as caught:
        configure(plan(**changes), engine, version)
    assert caught.value.hint


def test_a_targets_own_layers_go_to_transformers_where_it_ran_them(plan):
    own = plan("mtp", vocabularies=None)
    assert configure(own, "transformers").text.endswith("**settings, use_mtp=True)")
    assert "one token a round by each of the target's own layers" in notes(own, "transformers")


@pytest.mark.parametrize(
    ("draft", "load", "said"),
    [("dflash:b", 1, False), ("dflash:b", 2, True), ("eagle3:b", 2, True), ("org/d", 2, False)],
)
def test_llama_server_chooses_a_heads_tokens_for_several_requests_on_the_host(
    plan, draft, load, said
):
    """Chosen in the graph, a block's were wrong, and an EAGLE-3 head's broke answers off."""
    asked = plan(draft, concurrency=load, vocabularies=None, engine="llama.cpp")
    text = configure(asked, "llama.cpp").text
    assert ("--no-spec-draft-backend-sampling -np 2" in text) is said


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "transformers"])
def test_what_is_not_recommended_says_so_itself_where_the_format_has_comments(plan, engine):
    recommended = configure(plan(), engine).text.splitlines()
    lines = configure(plan(quant="int4"), engine).text.splitlines()
    said = " ".join(line[2:] for line in lines[: -len(recommended)])
    assert "make a 4-bit checkpoint of the draft" in said
    assert said.endswith("an unquantized draft is not the one recommended")
    assert lines[-len(recommended) :] == recommended
    assert not any(line.startswith("#") for line in recommended)
    assert "make an 8-bit checkpoint of the draft" in notes(plan(quant="int8"), "vllm")


@pytest.mark.parametrize(("load", "most"), [(48, None), (49, "49")])
def test_sglang_is_given_the_measured_load_where_its_own_limit_is_lower(plan, load, most):
    found = flags(plan(quant="fp8", concurrency=load), "sglang")
    assert found.get("--max-running-requests") == most
    assert found["--speculative-draft-model-quantization"] == "fp8"


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        (
            {"quant": "int4"},
            {"-m": "Qwen2.5-1.5B-BF16.gguf", "-md": "Qwen2.5-0.5B-Q4_1.gguf", "-np": "1"}
            | {"--spec-type": "draft-simple", "--spec-draft-n-max": "4"}
            | {"--spec-draft-n-min": "0", "--spec-draft-p-min": "0"},
        ),
        ({"concurrency": 16, "draft": None}, {"-np": "16", "--spec-ngram-simple-size-m": "4"}),
        ({"draft": "/m/d.gguf", "on_gpu": True}, {"-md": "/m/d.gguf", "-ngl": "99", "-ngld": "99"}),
        # Known fault: `-BF16.gguf`, which reads as a flag.
        ({"draft": ".", "target": ".."}, {"-m": "target-BF16.gguf", "-md": "draft-BF16.gguf"}),
        (
            {"draft": "ngram+d.gguf", "target": "t.gguf"},
            {"--spec-type": "ngram-simple,draft-simple", "-md": "d.gguf"}
            | {"--spec-ngram-simple-size-n": "2", "--spec-draft-n-max": "4"},
        ),
        ({"survival": (0.8, 0.5, 0.25, 0.05)}, {"--spec-synth-rates": "0.8,0.5,0.25,0.05"}),
    ],
)
def test_llama_server_is_given_these_flags(plan, changes, given):
    found = flags(plan(**changes), "llamacpp")
    assert found.items() >= given.items()
    assert set(found) - set(given) <= {"-m", "-md", "-np"} | {f for f in found if "spec" in f}


@pytest.mark.parametrize("measured_on", [None, "llama.cpp"])
def test_what_llama_cpp_does_otherwise_with_a_stack_stands_on_the_first_line(plan, measured_on):
    stack = plan("ngram+eagle3:h.gguf", target="t.gguf", engine=measured_on)
    said = "# behind prompt lookup llama.cpp accepts a little less of a head"
    assert configure(stack, "llama.cpp").text.startswith(said) is (measured_on is None)


@pytest.mark.parametrize("draft", ["d.gguf", "eagle3:h.gguf"])
def test_llama_server_is_given_the_draft_alone_where_it_would_look_up_in_vain(plan, draft):
    stack, alone = (plan(each, target="t.gguf", k=1) for each in (f"ngram+{draft}", draft))
    lines = configure(stack, "llama.cpp").text.splitlines()
    assert lines[0].startswith("# the draft alone, as llama.cpp's prompt lookup proposes no fewer")
    assert lines[-1] == configure(alone, "llama.cpp").text


@pytest.mark.parametrize("name", ["llamacpp", "llama_cpp", "Llama.cpp", "llama-cpp"])
def test_an_engine_is_known_however_its_name_is_written(plan, name):
    assert configure(plan(), name).text == configure(plan(), "llama.cpp").text


@pytest.mark.parametrize("mode", [SAMPLED, TEMPERATURE])
@pytest.mark.parametrize(
    ("version", "drafts"),
    [
        (None, "probabilistic"),
        ("b11368", "probabilistic"),
        ("b11367", None),
        ("b9626", None),
    ],
)
def test_llamacpp_samples_the_draft_in_builds_that_can_and_never_as_top_p_would(
    plan, mode, version, drafts
):
    pair = plan(mode=mode, sampled=True)
    assert flags(pair, "llamacpp", version).get("--spec-draft-sampling") == drafts
    like = mode is TEMPERATURE and drafts
    assert ("acceptance will differ" in notes(pair, "llamacpp", version)) == (not like)


def test_engines_that_take_a_revision_are_given_it(plan):
    pair = plan(draft="Qwen/Qwen2.5-0.5B@v1", target_revision="abc")
    assert vllm(pair)["revision"] == "v1"
    assert "vllm serve Qwen/Qwen2.5-1.5B --revision abc" in notes(pair, "vllm")
    assert flags(pair, "sglang")["--revision"] == "abc"
    assert configure(pair, "transformers").text.count("revision='v1'") == 1
    assert configure(pair, "transformers").text.count("revision='abc'") == 2
    # TensorRT-LLM downloads the target at it and the draft at the newest.
    assert yaml.safe_load(configure(pair, "tensorrt-llm").text)["revision"] == "abc"
    for engine, models in (("tensorrt-llm", ["0.5B@v1"]), ("llamacpp", ["1.5B@abc", "0.5B@v1"])):
        for model in ("1.5B@abc", "0.5B@v1"):
            said = f"serve `Qwen/Qwen2.5-{model}`, the revision that was measured"
            assert (said in notes(pair, engine)) == (model in models)


def test_tensorrt_llm_samples_the_draft_where_the_run_did(plan):
    assert tensorrt(plan(mode=SAMPLED, sampled=True))["use_rejection_sampling"] is True
    assert "use_rejection_sampling" not in tensorrt(plan())


def test_transformers_keeps_k_constant_whatever_the_names_hold(plan):
    code = configure(plan(draft="o'neil\\\"; import os"), "transformers").text
    compile(code, "snippet", "exec")
    lines = code.splitlines()
    assert "draft.generation_config.num_assistant_tokens = 4" in lines
    assert 'draft.generation_config.num_assistant_tokens_schedule = "constant"' in lines
    assert "draft.generation_config.assistant_confidence_threshold = 0.0" in lines
    assert not any(line.startswith("import os") for line in lines)
    lookup = configure(plan(draft=None), "transformers").text
    assert "prompt_lookup_num_tokens=4, max_matching_ngram_size=5" in lookup


def test_transformers_is_given_a_rules_threshold_which_stays(plan):
    """Scikit-learn would move it; the snippet runs."""
    pair = {"target": str(EMBEDDED / "target"), "draft": str(EMBEDDED / "draft")}
    found = configure(plan(**pair, stop=AFTER, limit=5), "transformers")
    lines = found.text.splitlines()
    assert "draft.generation_config.assistant_confidence_threshold = 0.4" in lines
    assert "candidate_generator.is_sklearn_available = lambda: False" in lines
    scope = {}
    exec(found.text, scope)
    assert 1 <= scope["output"].shape[1] - scope["inputs"]["input_ids"].shape[1] <= 5
    assert found.to_do[0] == (
        "the rule of a round: stop after a token that the draft is under 0.4 sure of; draft 4 "
        "tokens at most"
    )
    assert "sklearn" not in configure(plan(), "transformers").text
    drawn = configure(plan(**pair, stop=AFTER, sampled=True, mode=SAMPLED), "transformers")
    assert any("of the token that was drawn" in step for step in drawn.to_do)


def test_llama_server_is_given_a_rules_threshold_and_the_rule_is_said(plan):
    found = configure(plan("d.gguf", target="t.gguf", stop=BEFORE), "llama.cpp")
    assert " --spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0.75 " in found.text
    assert found.to_do[0] == (
        "the rule of a round: stop before a token that the draft is under 0.75 sure of; draft 4 "
        "tokens at most"
    )


def test_transformers_is_given_the_folder_and_the_name_of_a_gguf_file(plan):
    pair = plan(target="/srv/m/big.gguf", draft="small.gguf", target_revision=None)
    code = configure(pair, "transformers").text
    assert "AutoTokenizer.from_pretrained('/srv/m', gguf_file='big.gguf')" in code
    assert "AutoModelForCausalLM.from_pretrained('/srv/m', gguf_file='big.gguf', dtype=" in code
    assert "AutoModelForCausalLM.from_pretrained('.', gguf_file='small.gguf', dtype=" in code


def test_transformers_is_given_both_tokenizers_where_sizes_differ(plan):
    found = configure(plan(**SIZES), "transformers")
    compile(found.text, "snippet", "exec")
    assert "tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" in found.text
    assert "assistant_tokenizer" not in configure(plan(), "transformers").text


@pytest.mark.parametrize(
    ("sampling", "settings"),
    [
        (Sampling(), '{"do_sample": False, "repetition_penalty": 1.0, "max_new_tokens": 5}'),
        (
            WARM,
            '{"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0, '
            '"repetition_penalty": 1.0, "max_new_tokens": 5}',
        ),
    ],
)
def test_the_snippet_for_transformers_generates_as_the_traffic_asked(plan, sampling, settings):
    pair = {"target": str(EMBEDDED / "target"), "draft": str(EMBEDDED / "draft")}
    for changes in (pair, pair | {"draft": None}):
        code = configure(plan(**changes, sampling=sampling, limit=5), "transformers").text
        assert f"settings = {settings}" in code
        scope = {}
        exec(code, scope)
        assert 1 <= scope["output"].shape[1] - scope["inputs"]["input_ids"].shape[1] <= 5


def test_sglang_plays_the_mean_of_the_measured_acceptance_back(plan):
    # 1 + 0.8 + 0.5 + 0.25 + 0.05
    mean = "SGLANG_SIMULATE_ACC_LEN=2.6 python -m sglang.launch_server "
    assert configure(plan(survival=(0.8, 0.5, 0.25, 0.05)), "sglang").text.startswith(mean)
    assert "synth" not in "".join(configure(plan(), e).text.lower() for e in ENGINES)


def test_vllm_gets_the_lengths_by_batch_size(plan):
    for draft in ("d", None):
        found = vllm(plan(draft=draft, schedule=SCHEDULE))
        assert found["num_speculative_tokens"] == 6
        steps = found["num_speculative_tokens_per_batch_size"]
        assert steps == [[1, 7, 6], [8, 31, 3], [32, 32, 0]]


@pytest.mark.parametrize("draft", ["eagle3:org/head", "mtp"])
def test_sglang_reads_the_smallest_batch_of_each_length_from_a_file(plan, draft):
    """Known fault: it was said to take one draft length, whatever drafts."""
    found = configure(plan(draft, vocabularies=None, schedule=SCHEDULE), "sglang")
    steps = {"1": 6, "8": 3, "32": 0}
    assert json.loads(found.text) == {at: {"candidate_steps": [k]} for at, k in steps.items()}
    assert found.command.endswith(
        "--speculative-num-steps 6 --speculative-eagle-topk 1 --speculative-num-draft-tokens 7 "
        "--speculative-adaptive --speculative-adaptive-config FILE"
    )
    assert found.pasted is None
    (note,) = (step for step in found.to_do if "at every load" in step)
    assert ("one such layer" in note) is (draft == "mtp")
    assert "two-batch overlap" in note


@pytest.mark.parametrize("draft", ["d", "ngram", "dflash:h"])
def test_sglang_drafts_one_length_of_any_other_draft(plan, draft):
    found = configure(plan(draft, schedule=SCHEDULE, engine="sglang"), "sglang")
    assert found.command is None
    assert "adaptive" not in found.text
    assert any(ONE in step for step in found.to_do)


@pytest.mark.parametrize(
    ("schedule", "most", "steps"),
    [
        (SCHEDULE, 6, {7: 6, 31: 3, 32: 0}),
        # The first length must be the longest.
        (((1, 7, 3), (8, 16, 6)), 4, None),
    ],
)
@pytest.mark.parametrize("draft", ["d", None])
def test_tensorrt_llm_names_the_largest_batch_of_each_length(plan, schedule, most, steps, draft):
    fields = tensorrt(plan(draft=draft, schedule=schedule))
    assert (fields["max_draft_len"], fields.get("draft_len_schedule")) == (most, steps)


SHORT = {"contexts": (131072, 2048)}
LOADS, LOOKUP = {"schedule": SCHEDULE}, {"draft": None}
OWN, HEAD, DFLASH = (
    {"draft": draft, "vocabularies": None, "engine": "vllm"}
    for draft in ("mtp", "eagle3:h", "dflash:h")
)
# Only with a draft model does its default runner draft more, and the older one not.
GRAPHS, LENGTHS = "without CUDA graphs", "set VLLM_USE_V2_MODEL_RUNNER=0: vLLM's default runner"
ONE = "takes one length of such a draft, here k = 4; the best by concurrent requests: "
ONE += "6 at 1–7, 3 at 8–31, 0 at 32. --concurrency N"
OTHERWISE = "acceptance will differ"


@pytest.mark.parametrize(
    ("engine", "version", "changes", "words"),
    [
        ("tensorrt-llm", None, SIZES, "the vocabularies differ, and TensorRT-LLM does not"),
        ("transformers", None, OTHER_IDS, "translates no token"),
        ("transformers", None, SIZES, "encodes the draft's text again"),
        ("transformers", None, {"mixed": True}, "the most frequent is written"),
        ("vllm", None, SHORT, "cuts the server's context to the draft's, 2048 tokens"),
        ("sglang", None, SHORT, "beyond the draft's context of 2048 tokens"),
        ("vllm", None, {"target_quant": "int4"}, "serve the target at int4, as it was measured"),
        ("llamacpp", None, {"concurrency": 16}, "-np 16 divides the context"),
        ("llamacpp", None, {"draft": "d.gguf"}, "convert `Qwen/Qwen2.5-1.5B` to GGUF"),
        ("llamacpp", None, LOOKUP, "convert `Qwen/Qwen2.5-1.5B` to GGUF"),
        ("vllm", None, {"doubts": ("10 requests",)}, "10 requests"),
        *((engine, None, LOADS, ONE) for engine in ("sglang", "llamacpp", "transformers")),
        # A mode in which the run did not draft.
        *(
            (engine, None, {"mode": mode, "sampled": True}, OTHERWISE)
            for engine, mode in (
                ("vllm", SAMPLED),
                ("sglang", SAMPLED),
                ("tensorrt-llm", TEMPERATURE),
                ("transformers", DraftingMode.GREEDY),
            )
        ),
        # Where prompt lookup finds something else.
        ("tensorrt-llm", None, LOOKUP, "n-grams down to one token: measure"),
        ("llamacpp", None, LOOKUP, "n-grams of 2 tokens: measure"),
        ("transformers", None, LOOKUP, "down to one token and takes the first match in the prompt"),
        ("sglang", None, LOOKUP, "in the texts of all requests: measure"),
        ("vllm", "0.31", LOOKUP, "vLLM takes the first match in the prompt"),
        ("llamacpp", None, LOOKUP | {"k": 1}, "than its n-gram has (2): with k = 1 it drafts"),
        # vLLM's second runner serves draft models from 0.31 on, but maps no vocabularies.
        *(("vllm", version, LOADS, GRAPHS) for version in (None, "0.31")),
        *(("vllm", version, LOADS, LENGTHS) for version in (None, "0.31")),
        # What else drafts more than its schedule says.
        ("vllm", None, LOADS | OWN, "if the target has several such layers"),
        (
            "vllm",
            None,
            LOADS | DFLASH,
            "the same width at every load, and is left out only where",
        ),
        *(
            ("vllm", None, LOADS | draft, "drops the schedule and drafts 6 tokens at every load")
            for draft in ({}, OWN, HEAD, LOOKUP)
        ),
    ],
)
def test_what_an_engine_does_in_its_own_way_is_said(plan, engine, version, changes, words):
    assert words in notes(plan(**changes), engine, version)


def test_what_happens_to_requests_beyond_the_drafts_context_comes_first(plan):
    beside = {"doubts": ("few",), "differences": ("another rotary base",)}
    first, *others = configure(plan(**beside, **SHORT, **SIZES), "tensorrt-llm").to_do
    assert first.startswith("TensorRT-LLM: ")
    assert "2048 tokens" in first
    assert others[:2] == ["few", "another rotary base"]  # then why not to trust the answer


@pytest.mark.parametrize(
    ("engine", "version", "changes", "unsaid"),
    [
        ("llamacpp", None, SIZES, ["152064 and 151936 entries"]),
        ("llamacpp", None, LOOKUP, ["drafts nothing"]),
        ("llamacpp", None, LOOKUP | {"engine": "llama.cpp"}, ["only looks up"]),
        ("llamacpp", None, {"target": "t.gguf", "draft": "d.gguf"}, ["convert", "divides"]),
        ("vllm", None, LOOKUP, ["match"]),
        ("tensorrt-llm", None, {}, ["entries"]),
        ("vllm", None, {"contexts": (2048, 2048)}, ["2048"]),
        ("vllm", "0.30", LOADS, [GRAPHS, LENGTHS]),
        ("vllm", None, LOADS | SIZES, [GRAPHS, LENGTHS]),
        ("vllm", None, LOADS | LOOKUP, [GRAPHS, LENGTHS]),
        # Known fault: whoever served a head was sent to the older runner for nothing.
        *(("vllm", None, LOADS | draft, [GRAPHS, LENGTHS]) for draft in (OWN, HEAD, DFLASH)),
        ("vllm", None, {"schedule": ((1, 3, 1), (4, 4, 0)), **OWN}, ["several such layers"]),
        ("vllm", None, OWN, ["data parallelism", "several such layers"]),
        ("sglang", None, {}, [ONE]),
        ("llamacpp", None, {}, ["the revision that was measured"]),
        # At temperature 0 all modes are the same.
        *((engine, None, {"mode": SAMPLED}, [OTHERWISE]) for engine in ("vllm", "sglang")),
        ("vllm", None, {"mode": TEMPERATURE, "sampled": True}, [OTHERWISE]),
        ("tensorrt-llm", None, {"mode": SAMPLED, "sampled": True}, [OTHERWISE]),
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
@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang"])
def test_what_a_server_does_where_a_request_does_not_say_is_said(plan, changes, words, engine):
    (sent,) = [step for step in configure(plan(**changes), engine).to_do if "send " in step]
    assert sent.startswith(f"{words}; otherwise ")
    assert " samples " in sent


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang", "tensorrt-llm", "transformers"])
def test_a_speed_measured_elsewhere_comes_with_the_warning_that_the_engine_may_not_gain(
    plan, engine
):
    """Known fault: a run of the built-in decoder on a GPU was exported for vLLM without it."""
    warned = configure(plan(), engine).to_do[0]
    assert warned.startswith("the speed-up was measured in draftbench, and ")
    assert " may gain less or nothing: measure it there" in warned
    for changes in ({"engine": engine}, {"costs_given": True}):
        found = configure(plan(**changes), engine).to_do
        assert not any("may gain less" in step for step in found)


@pytest.mark.parametrize(
    ("engine", "draft", "said"),
    [
        ("vllm", "eagle3:h.gguf", "vLLM takes no .gguf head: give it what `t.gguf` and `h.gguf`"),
        ("vllm", "ngram", "vLLM was not tried with .gguf files: give it what `t.gguf` was made"),
        ("sglang", "d.gguf", "SGLang was not tried with .gguf files: give it what `t.gguf` and"),
        ("llama.cpp", "eagle3:h.gguf", None),
        ("transformers", "d.gguf", None),
    ],
)
def test_what_was_measured_from_gguf_files_is_given_to_other_engines_as_it_was_before(
    plan, engine, draft, said
):
    found = configure(plan(draft, target="t.gguf", vocabularies=None, k=6), engine)
    if said is None:
        assert not any(".gguf files" in step or ".gguf head" in step for step in found.to_do)
    else:
        assert found.to_do[0].startswith(said)
        assert "--target and --draft" in found.to_do[0]
