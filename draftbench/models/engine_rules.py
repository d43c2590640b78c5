"""The serving engines: which pairs each takes and with which options, and what it can load itself.

One table for `check`, which answers for a pair, and `export`, which writes the configuration. The
rules are those that the engines document: of vLLM 0.15 on, SGLang's STANDALONE, llama.cpp's
`draft-simple`, TensorRT-LLM's DraftTarget and transformers 5's assisted generation. Not known here:
whether an engine supports either architecture at all, which version is installed, and what it can
load.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from draftbench.models.check_result import (
    EngineAnswer,
    PairFacts,
    TokenDifference,
    TokenizerFacts,
    Vocabulary,
)


@dataclass(frozen=True)
class Engine:
    """A serving engine: its name, the form of configuration that is written for it, and the
    quantization levels that it makes of an unquantized draft while loading (None: files are
    converted beforehand, to any level).
    """

    name: str
    form: str
    levels: tuple[str, ...] | None


# By the name that `export --engine` takes.
ENGINES = {
    "vllm": Engine(
        "vLLM", "schema of vLLM 0.32, validated by its own SpeculativeConfig", ("none", "fp8")
    ),
    "sglang": Engine(
        "SGLang",
        "schema of SGLang's speculative decoding guide at 067ad4d3, autumn 2026",
        ("none", "fp8"),
    ),
    "tensorrt-llm": Engine(
        "TensorRT-LLM", "schema of TensorRT-LLM 1.4.0rc1's documentation", ("none",)
    ),
    "transformers": Engine(
        "transformers",
        "written for transformers 5.x; one request at a time, batches are not supported",
        ("none",),
    ),
    "llamacpp": Engine(
        "llama.cpp",
        "flags of builds from May 2026 on (pull requests 22397 and 22964)",
        None,
    ),
}
# llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE.
LLAMA_CPP_ROWS = 128


def vllm_draft(draft: str, *, translated: bool = False) -> dict[str, Any]:
    """The fields of `--speculative-config` that name a draft; `translated` where the vocabularies
    differ and words are mapped as text, for which the draft must be greedy.
    """
    fields: dict[str, Any] = {"method": "draft_model", "model": draft}
    if translated:
        fields |= {"use_heterogeneous_vocab": True, "draft_sample_method": "greedy"}
    return fields


def sglang_draft(draft: str, quant: str = "none", k: int | None = None) -> list[str]:
    """The flags of a draft and its draft length. Its quantization is always written out: by default
    it is the target's.
    """
    words = ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft]
    if k is not None:
        words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(k + 1)]
    level = "fp8" if quant == "fp8" else "unquant"
    return [*words, "--speculative-draft-model-quantization", level]


def llama_cpp_draft(file: str) -> list[str]:
    """The flags of a draft, since their renaming in April 2026."""
    return ["-md", file, "--spec-type", "draft-simple"]


def tensorrt_llm_draft(draft: str, **lengths: Any) -> dict[str, Any]:
    """The fields that name a draft, with those of its draft length before its name."""
    return {"decoding_type": "DraftTarget", **lengths, "speculative_model": draft}


def transformers_draft(*, two_tokenizers: bool = False) -> str:
    """The arguments of `generate` for a draft; vocabularies that differ need both tokenizers."""
    both = ", tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" if two_tokenizers else ""
    return f"assistant_model=draft{both}"


def engine_answers(facts: PairFacts) -> tuple[EngineAnswer, ...]:
    """One answer per engine, in a fixed order."""
    return (_vllm(facts), _sglang(facts), _llama_cpp(facts), _tensorrt_llm(facts), _assisted(facts))


def _vllm(facts: PairFacts) -> EngineAnswer:
    """`verify_equal_vocab_size_if_draft_model` compares sizes, unless words are translated."""
    words = facts.vocabulary
    if words.target_rows != words.draft_rows:
        reason = f"it asks for equal vocab_size, here {_rows(words)}"
    elif words.first_difference:
        reason = f"equal vocab_size is all it checks, but {_named(words.first_difference)}"
    else:
        return EngineAnswer(
            "vLLM",
            "accepts",
            f"vocab_size is {words.target_rows} in both",
            _speculative_config(vllm_draft(facts.draft)),
        )
    option = _speculative_config(vllm_draft(facts.draft, translated=True))
    return EngineAnswer("vLLM", "with an option", reason, option)


def _speculative_config(fields: dict[str, Any]) -> str:
    return f"--speculative-config '{json.dumps(fields, separators=(',', ':'))}'"


def _sglang(facts: PairFacts) -> EngineAnswer:
    """STANDALONE hands the draft's ids to the target as they are."""
    difference = _other_tokenizer(facts.vocabulary)
    if difference:
        return _refuses("SGLang", f"it passes ids on untranslated, and {difference}")
    option = shlex.join(sglang_draft(facts.draft))
    return EngineAnswer("SGLang", "accepts", "ids mean the same in both", option)


def _llama_cpp(facts: PairFacts) -> EngineAnswer:
    """Same kind of vocabulary, same begin and end tokens, at most 128 rows apart, same texts from
    id 5 on. A draft file without a begin token gets a legacy id, which can be overridden.
    """
    words, target, draft = facts.vocabulary, facts.target_tokenizer, facts.draft_tokenizer
    apart = abs(words.target_rows - words.draft_rows)
    option = shlex.join(llama_cpp_draft(f"{facts.draft}.gguf"))
    if target.kind != draft.kind:
        return _refuses("llama.cpp", f"the vocabularies are {target.kind} and {draft.kind}")
    if apart > LLAMA_CPP_ROWS:
        reason = f"sizes may be {LLAMA_CPP_ROWS} apart, here {apart} ({_rows(words)})"
        return _refuses("llama.cpp", reason)
    differing = _other_ends(target, draft)
    if differing:
        return _refuses("llama.cpp", differing)
    if words.first_regular_difference:
        return _refuses("llama.cpp", _named(words.first_regular_difference))
    bos = target.ids.get("bos_token")
    if bos != draft.ids.get("bos_token"):
        option += f" --override-kv tokenizer.ggml.bos_token_id=int:{bos}"
        return EngineAnswer("llama.cpp", "with an option", "the draft names no bos token", option)
    reason = f"same texts from id 5 on, {apart} rows apart"
    return EngineAnswer("llama.cpp", "accepts", reason, option)


def _other_ends(target: TokenizerFacts, draft: TokenizerFacts) -> str | None:
    """The first begin or end setting that differs; a begin token that the draft lacks does not
    count.
    """
    settings = [
        ("add_bos", target.adds_bos, draft.adds_bos),
        ("add_eos", target.adds_eos, draft.adds_eos),
        ("eos id", target.ids.get("eos_token"), draft.ids.get("eos_token")),
    ]
    if "bos_token" in draft.ids:
        settings.append(("bos id", target.ids.get("bos_token"), draft.ids["bos_token"]))
    for name, expected, actual in settings:
        if expected != actual:
            return f"{name} is {expected} in the target, {actual} in the draft"
    return None


def _tensorrt_llm(facts: PairFacts) -> EngineAnswer:
    """DraftTarget asks for the same tokenizer; it warns of very low acceptance with another."""
    difference = _other_tokenizer(facts.vocabulary)
    if difference:
        return _refuses("TensorRT-LLM", f"it needs the same tokenizer, and {difference}")
    fields = ", ".join(
        f"{name}: {value}" for name, value in tensorrt_llm_draft(facts.draft).items()
    )
    option = f"speculative_config: {{{fields}}}, disable_overlap_scheduler: true"
    return EngineAnswer("TensorRT-LLM", "accepts", "same tokenizer", option)


def _assisted(facts: PairFacts) -> EngineAnswer:
    """Equal vocab_size counts as the same tokenizer, and both tokenizers are then not allowed;
    with different sizes both must be given.
    """
    words = facts.vocabulary
    two = words.target_rows != words.draft_rows
    option = f"generate({transformers_draft(two_tokenizers=two)})"
    if two:
        reason = f"{_rows(words)} rows: it takes the tokenizers for different ones"
        return EngineAnswer("transformers", "with an option", reason, option)
    if words.first_difference:
        reason = f"it cannot tell these apart by size, and {_named(words.first_difference)}"
        return _refuses("transformers", reason)
    reason = f"vocab_size is {words.target_rows} in both"
    return EngineAnswer("transformers", "accepts", reason, option)


def _other_tokenizer(words: Vocabulary) -> str | None:
    """How the draft's tokenizer differs from the target's; it may know additional tokens."""
    difference = words.first_difference or words.first_missing or words.first_unreadable
    return _named(difference) if difference else None


def _named(difference: TokenDifference) -> str:
    target, draft = (
        "no token" if text is None else repr(text) for text in (difference.target, difference.draft)
    )
    return f"id {difference.id} is {target} in the target, {draft} in the draft"


def _rows(words: Vocabulary) -> str:
    return f"{words.target_rows} and {words.draft_rows}"


def _refuses(engine: str, reason: str) -> EngineAnswer:
    return EngineAnswer(engine, "refuses", reason, None)
