"""How an engine drafts: turns an entry of `--drafts` into each engine's flags or fields.

`sweep` starts servers with them, `export` writes them, and `check` names them for a pair. vLLM's
and llama.cpp's were tried; SGLang's and TensorRT-LLM's come from their source code.
"""

from __future__ import annotations

import json
from typing import Any

from draftbench.drafts.speculation import Speculation
from draftbench.errors import UsageError
from draftbench.hub import split_revision
from draftbench.memory import level_of
from draftbench.records import DraftingMode

# The program that makes a head's .gguf file.
CONVERT_HEAD = "llama.cpp's `convert_hf_to_gguf.py HEAD --target-model-dir TARGET`"


def vllm_fields(speculation: Speculation) -> dict[str, Any]:
    """The fields of vLLM's `--speculative-config`. If it translates tokens, it drafts greedily."""
    length = {"num_speculative_tokens": speculation.k}
    if speculation.method == "raw":
        fields = length | _with_length(speculation.raw or {}, speculation.k)
        if (k := fields["num_speculative_tokens"]) != speculation.k:
            raise UsageError(
                f"spec:FILE.json drafts {json.dumps(k)} tokens, not {speculation.k}",
                hint='write "num_speculative_tokens": "{k}"',
            )
        return fields
    if speculation.method == "ngram":
        sizes = {
            "prompt_lookup_min": speculation.lookup.shortest,
            "prompt_lookup_max": speculation.lookup.longest,
        }
        return {"method": "ngram", **length, **sizes}
    if speculation.model is None:
        return {"method": speculation.method, **length}
    model, revision = split_revision(speculation.model)
    method = speculation.method.replace("draft-model", "draft_model")
    fields = {"method": method, "model": model, **length}
    if revision is not None:
        fields["revision"] = revision
    if speculation.method != "draft-model":
        return fields
    if level := level_of(speculation.quant).made_by.get("vllm"):
        fields["quantization"] = level
    if speculation.translated:
        fields |= {"use_heterogeneous_vocab": True, "draft_sample_method": "greedy"}
    elif speculation.mode is not DraftingMode.GREEDY:
        fields["draft_sample_method"] = "probabilistic"
    return fields


def llama_cpp_flags(speculation: Speculation) -> list[str]:
    """llama-server's flags for drafting since they were renamed in April 2026: k tokens in every
    round, however sure the draft is; prompt lookup uses n-grams of one size.
    """
    if speculation.method == "raw":
        return _passed_flags(speculation)
    lookup = ["--spec-ngram-simple-size-n", str(speculation.lookup.shortest)]
    lookup += ["--spec-ngram-simple-size-m", str(speculation.k)]
    if speculation.method == "ngram":
        return ["--spec-type", "ngram-simple", *lookup]
    kind = "simple" if speculation.method == "draft-model" else speculation.method
    words = [] if speculation.model is None else ["-md", speculation.model]
    words += ["--spec-type", f"draft-{kind}"]
    if speculation.stacked:
        words[-1:] = [f"ngram-simple,draft-{kind}", *lookup]
    if speculation.mode is not DraftingMode.GREEDY:
        words += ["--spec-draft-sampling", "probabilistic"]
    words += ["--spec-draft-n-max", str(speculation.k), "--spec-draft-n-min", "0"]
    return [*words, "--spec-draft-p-min", "0"]


def sglang_flags(speculation: Speculation) -> list[str]:
    """SGLang's flags for drafting a chain of k tokens, though SGLang could draft a tree. A draft's
    quantization is always written out, since its default is the target's.
    """
    if speculation.method == "raw":
        return _passed_flags(speculation)
    draft_tokens = ["--speculative-num-draft-tokens", str(speculation.k + 1)]
    if speculation.method == "ngram":
        words = ["--speculative-algorithm", "NGRAM", *draft_tokens]
        return [*words, "--speculative-ngram-max-bfs-breadth", "1"]
    algorithms = {"draft-model": "STANDALONE", "eagle3": "EAGLE3", "mtp": "NEXTN"}
    words = [
        "--speculative-algorithm",
        algorithms.get(speculation.method, speculation.method.upper()),
    ]
    model, pinned = revision_flags(speculation.model or "", "--speculative-draft-model-revision")
    words += ["--speculative-draft-model-path", model] if model else []
    chain = ["--speculative-num-steps", str(speculation.k), "--speculative-eagle-topk", "1"]
    if speculation.method == "draft-model":
        level = level_of(speculation.quant).made_by.get("sglang") or "unquant"
        quantization = ["--speculative-draft-model-quantization", level]
        return [*words, *chain, *draft_tokens, *quantization, *pinned]
    if speculation.method == "dflash":  # its block holds the last accepted token too
        return [*words, *pinned, "--speculative-dflash-block-size", str(speculation.k + 1)]
    return [*words, *pinned, *chain, *draft_tokens]


def tensorrt_llm_fields(speculation: Speculation) -> dict[str, Any]:
    """The fields of TensorRT-LLM's `speculative_config`. By default its prompt lookup takes the
    oldest match in the texts of all requests.
    """
    length = {"max_draft_len": speculation.k}
    if speculation.method == "mtp":
        return {"decoding_type": "MTP", **length}
    if speculation.method == "ngram":
        longest = speculation.lookup.longest
        fields = {"decoding_type": "NGram", **length, "max_matching_ngram_size": longest}
        return {**fields, "is_public_pool": False, "is_use_oldest": False}
    kind = "Draft_Target" if speculation.method == "draft-model" else "Eagle3"
    fields = {"decoding_type": kind, **length, "speculative_model": speculation.model}
    if speculation.mode is not DraftingMode.GREEDY:
        fields["use_rejection_sampling"] = True
    return fields


def transformers_arguments(speculation: Speculation) -> str:
    """The arguments of `generate`; to translate between vocabularies it needs both tokenizers."""
    if speculation.method == "mtp":
        return "use_mtp=True"
    if speculation.method == "ngram":
        longest = speculation.lookup.longest
        return f"prompt_lookup_num_tokens={speculation.k}, max_matching_ngram_size={longest}"
    both = ", tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" * speculation.translated
    return f"assistant_model=draft{both}"


def revision_flags(model: str, flag: str) -> tuple[str, list[str]]:
    """A model's name without its `@revision`, and the flags for that revision."""
    name, revision = split_revision(model)
    return name, [] if revision is None else [flag, revision]


def _with_length(content: Any, k: int) -> Any:
    """What `spec:FILE.json` holds, with every "{k}" replaced by the draft length."""
    if isinstance(content, dict):
        return {name: _with_length(inner, k) for name, inner in content.items()}
    if isinstance(content, list):
        return [_with_length(inner, k) for inner in content]
    return k if content == "{k}" else content


def _passed_flags(speculation: Speculation) -> list[str]:
    """The flags that `spec:FILE.json` holds: without a value where it is true, none where it is
    false or null.
    """
    words: list[str] = []
    for name, value in _with_length(speculation.raw or {}, speculation.k).items():
        if isinstance(value, dict | list):
            raise UsageError(
                f"spec:FILE.json: the value of `{name}` is {json.dumps(value)}",
                hint="a flag's value is a text, a number, true or false",
            )
        if value is not None and value is not False:
            words += [name] if value is True else [name, str(value)]
    return words
