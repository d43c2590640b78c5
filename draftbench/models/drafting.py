"""How an engine drafts: turns an entry of `--drafts` into each engine's flags or fields.

`sweep` starts servers with them, `export` writes them, and `check` names them for a pair. vLLM's
and llama.cpp's were tried; SGLang's and TensorRT-LLM's come from their source code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from draftbench.errors import EngineError, UsageError, did_you_mean
from draftbench.hub import short_name, split_revision
from draftbench.memory import level_of
from draftbench.records import (
    LOOKUP,
    NGRAMS,
    SELF,
    STACK,
    Candidate,
    DraftingMode,
    NGramSizes,
    draft_of_stack,
)
from draftbench.safe_files import UnreadableError, read_limited

Method = Literal["draft-model", "ngram", "eagle3", "mtp", "suffix", "dflash", "raw"]
_WITHOUT_WEIGHTS: dict[str, Method] = {LOOKUP: "ngram", "mtp": "mtp", "suffix": "suffix"}
WITH_WEIGHTS: dict[str, Method] = {"eagle3": "eagle3", "dflash": "dflash"}
# The methods by which each engine drafts.
METHODS: dict[str, tuple[Method, ...]] = {
    "vllm": ("draft-model", "ngram", "eagle3", "mtp", "suffix", "dflash", "raw"),
    "llama.cpp": ("draft-model", "ngram", "eagle3", "mtp", "dflash", "raw"),
    "sglang": ("draft-model", "ngram", "eagle3", "mtp", "dflash", "raw"),
    "tensorrt-llm": ("draft-model", "ngram", "eagle3", "mtp"),
}
# What drafts in a stack when its prompt lookup finds nothing.
STACKABLE: tuple[Method, ...] = ("draft-model", "eagle3", "mtp")
# The engines that try prompt lookup before it: llama.cpp in this order, whatever order its
# --spec-type names (common/speculative.cpp). vLLM takes one method (issue 46977 asks for more).
STACKING = ("llama.cpp",)
# The program that makes a head's .gguf file.
CONVERT_HEAD = "llama.cpp's `convert_hf_to_gguf.py HEAD --target-model-dir TARGET`"
_TAKES_FLAGS = ("llama.cpp", "sglang")
_MOST_RAW_BYTES = 64 << 10
_RAW_HINT = (
    "spec:FILE.json holds vLLM's speculative configuration, or flags of llama.cpp or SGLang with "
    'their values; "{k}" stands for the draft length'
)
# The fields that --speculative-config may have (vllm/config/speculative.py).
VLLM_FIELDS_OF = "0.32"
VLLM_FIELDS = (
    *("num_speculative_tokens", "model", "method", "revision", "code_revision", "quantization"),
    *("draft_tensor_parallel_size", "max_model_len", "kv_cache_dtype", "draft_load_config"),
    *("moe_backend", "attention_backend", "enforce_eager", "index_share_for_mtp_iteration"),
    *("disable_padded_drafter_batch", "disable_eagle_block_drop", "use_local_argmax_reduction"),
    *("use_heterogeneous_vocab", "prompt_lookup_max", "prompt_lookup_min", "parallel_drafting"),
    *("num_speculative_tokens_per_batch_size", "suffix_decoding_max_tree_depth"),
    *("suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor"),
    *("suffix_decoding_min_token_prob", "rejection_sample_method", "draft_sample_method"),
    *("synthetic_acceptance_rates", "synthetic_acceptance_length"),
    *("enable_adaptive_verification", "dspark_draft_topk"),
)


@dataclass(frozen=True)
class Speculation:
    """How a server drafts, and how many tokens per round."""

    method: Method
    model: str | None  # the draft's weights; None where it has none
    k: int
    lookup: NGramSizes = NGRAMS
    raw: dict[str, Any] | None = None  # the content of `spec:FILE.json`
    quant: str = "none"  # of a draft model, made while the engine loads it
    mode: DraftingMode = DraftingMode.GREEDY  # of a draft model
    # Whether a draft model has another vocabulary, so that the engine has to translate tokens.
    translated: bool = False
    stacked: bool = False  # whether it drafts only where prompt lookup finds nothing


def parsed(draft: str) -> tuple[Method, str]:
    """The method of an entry of `--drafts` and its model or file, empty where it has none: `ngram`,
    `mtp`, `suffix`, `eagle3:MODEL`, `dflash:MODEL`, `spec:FILE.json`, or a draft model. Of a stack,
    `ngram+DRAFT`, those of its draft.

    Raises:
        UsageError: the model is missing, or nothing that can be stacked follows `ngram+`.
    """
    if (fallback := draft_of_stack(draft)) is not None:
        method, model = ("raw", "") if fallback in ("", SELF) else parsed(fallback)
        if method not in STACKABLE or draft_of_stack(fallback) is not None:
            raise UsageError(
                f"`{draft}`: prompt lookup goes before a draft model, an EAGLE-3 head or the "
                "target's own layers; it was not tried before any other kind of draft",
                hint=f"write {STACK}MODEL, {STACK}eagle3:MODEL or {STACK}mtp",
            )
        return method, model
    if draft in _WITHOUT_WEIGHTS:
        return _WITHOUT_WEIGHTS[draft], ""
    kind, colon, rest = draft.partition(":")
    if kind in WITH_WEIGHTS:
        if not rest:
            raise UsageError(f"`{draft}` names no model", hint=f"write {kind}:MODEL")
        return WITH_WEIGHTS[kind], rest
    return ("raw", rest) if kind == "spec" and colon else ("draft-model", draft)


def draft_name(draft: str) -> str:
    """A run's name for an entry of `--drafts`: its method, then the short name of its model."""
    if fallback := draft_of_stack(draft):
        return STACK + draft_name(fallback)
    method, model = parsed(draft)
    kind = "" if method == "draft-model" else f"{draft.partition(':')[0]}:"
    return f"{kind}{short_name(model)}" if model else draft


def speculation_of(
    draft: str,
    k: int,
    *,
    lookup: NGramSizes = NGRAMS,
    quant: str = "none",
    mode: DraftingMode = DraftingMode.GREEDY,
    held: str | None = None,
) -> Speculation:
    """How an entry of `--drafts` drafts; `held` is the content of its `spec:FILE.json` when it was
    read.

    Raises:
        UsageError: the model is missing, or the file is not a JSON object.
    """
    method, rest = parsed(draft)
    if method == "raw":
        return Speculation("raw", None, k, raw=_raw(rest, held))
    stacked = draft_of_stack(draft) is not None
    if method == "draft-model":
        return Speculation(method, rest, k, lookup, quant=quant, mode=mode, stacked=stacked)
    return Speculation(method, rest or None, k, lookup, stacked=stacked)


def _raw(file: str, held: str | None) -> dict[str, Any]:
    try:
        text = read_limited(Path(file), _MOST_RAW_BYTES) if held is None else held
        return msgspec.json.decode(text, type=dict[str, Any])
    except UnreadableError as error:
        raise UsageError(f"cannot read `{file}`: {error}", hint=_RAW_HINT) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"`{file}` is no JSON object", hint=_RAW_HINT) from error


def check_method(engine: str, speculation: Speculation) -> None:
    """Raise an EngineError if an engine lacks this method of drafting, a UsageError if it cannot
    draft as a `spec:FILE.json` says.
    """
    methods = METHODS[engine]
    if speculation.method not in methods:
        raise EngineError(
            f"{engine} is not known to draft by `{speculation.method}`",
            hint=f"it drafts by {', '.join(methods).replace('raw', 'spec:FILE.json')}",
        )
    check_stack(engine, speculation)
    flags = engine in _TAKES_FLAGS
    for name in speculation.raw or {}:
        if name.startswith("-") is not flags:
            meant = f"--{name}" if flags else name.lstrip("-").replace("-", "_")
            raise UsageError(
                f"`{name}` in spec:FILE.json is no {'flag' if flags else 'field'} of {engine}",
                hint=f"write `{meant}`: {_RAW_HINT}",
            )
    if engine == "vllm" and speculation.raw is not None:
        vllm_fields(speculation)


def check_stack(engine: str, speculation: Speculation) -> None:
    """Raise an EngineError if an engine cannot look up before it drafts."""
    if speculation.stacked and engine not in STACKING:
        method = speculation.method
        raise EngineError(
            f"{engine} drafts by one method, not by prompt lookup and then by `{method}`",
            hint=f"{' and '.join(STACKING)} does; or take the draft alone, without `{STACK}`",
        )


def doubtful_fields(engine: str, speculation: Speculation) -> list[str]:
    """A sentence for each field of a speculative configuration that is unknown to the version of
    vLLM known here. Other versions have other fields, so it is not an error.
    """
    if engine != "vllm":
        return []
    return [
        f"vLLM {VLLM_FIELDS_OF} has no field `{name}` in its speculative configuration: "
        + did_you_mean(name, VLLM_FIELDS, "see what your version calls it")
        for name in speculation.raw or {}
        if name not in VLLM_FIELDS
    ]


def vllm_fields(speculation: Speculation) -> dict[str, Any]:
    """The fields of vLLM's `--speculative-config`. If it translates tokens, it drafts greedily."""
    length = {"num_speculative_tokens": speculation.k}
    if speculation.method == "raw":
        fields = length | _passed_through(speculation)
        if (k := fields["num_speculative_tokens"]) != speculation.k:
            raise UsageError(
                f"spec:FILE.json drafts {k} tokens, not {speculation.k}",
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
        return {"decoding_type": "MTP", "num_nextn_predict_layers": speculation.k}
    if speculation.method == "ngram":
        longest = speculation.lookup.longest
        fields = {"decoding_type": "NGram", **length, "max_matching_ngram_size": longest}
        return {**fields, "is_public_pool": False, "is_use_oldest": False}
    kind = "Draft_Target" if speculation.method == "draft-model" else "Eagle3"
    fields = {"decoding_type": kind, **length, "speculative_model": speculation.model}
    if speculation.mode is not DraftingMode.GREEDY:
        fields["use_rejection_sampling"] = True
    return fields


def transformers_arguments(*, two_tokenizers: bool = False) -> str:
    """The arguments of `generate` for a draft; different vocabularies need both tokenizers."""
    both = ", tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" if two_tokenizers else ""
    return f"assistant_model=draft{both}"


def fewest_drafted(engine: str | None, draft: str, shortest: int) -> int:
    """The smallest k at which an engine's prompt lookup drafts: llama.cpp's never proposes fewer
    tokens than its n-gram has.
    """
    looks_up = Candidate(draft=draft).looks_up
    return shortest if engine == "llama.cpp" and looks_up else 1


def too_short(fewest: int) -> str:
    """Why nothing is drafted at a k below `fewest_drafted`."""
    return f"llama.cpp's prompt lookup proposes no fewer tokens than its n-gram has ({fewest})"


def revision_flags(model: str, flag: str) -> tuple[str, list[str]]:
    """A model's name without its `@revision`, and the flags for that revision."""
    name, revision = split_revision(model)
    return name, [] if revision is None else [flag, revision]


def _passed_through(speculation: Speculation) -> dict[str, Any]:
    """The content of `spec:FILE.json` with `{k}` replaced by the draft length."""
    return {
        name: speculation.k if value == "{k}" else value
        for name, value in (speculation.raw or {}).items()
    }


def _passed_flags(speculation: Speculation) -> list[str]:
    words: list[str] = []
    for name, value in _passed_through(speculation).items():
        words += [name] if value is True else [name, str(value)]
    return words
