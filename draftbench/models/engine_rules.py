"""The serving engines: which pairs each takes and with which options, and what it can load itself.

One table, `ENGINES`, for `check`, which answers for a pair, and `export`, which writes the
configuration. The rules are those that the engines document: of vLLM 0.15 on, SGLang's STANDALONE,
llama.cpp's `draft-simple`, TensorRT-LLM's DraftTarget and transformers 5's assisted generation. Not
known here: whether an engine supports either architecture at all, and which version is installed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftbench.models.check_result import (
    EngineAnswer,
    PairFacts,
    Standing,
    TokenDifference,
)

# llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE.
LLAMA_CPP_ROWS = 128


@dataclass(frozen=True)
class Engine:
    """A serving engine: its configuration, and the rules by which it takes a pair."""

    name: str
    form: str  # of the configuration that is written for it
    levels: tuple[str, ...] | None  # that it makes while loading; None: files are converted before
    # A finding about a pair, the answer, and its reason, which holds the finding at {}: the first
    # finding that is made counts.
    rules: tuple[tuple[str, Standing, str], ...]
    option: Callable[[PairFacts, bool], str]  # what to pass to it; True: to take the pair at all


def engine_answers(facts: PairFacts) -> tuple[EngineAnswer, ...]:
    """One answer per engine, in the order of the table."""
    answers, findings = [], _findings(facts)
    for engine in ENGINES.values():
        finding, standing, reason = next(rule for rule in engine.rules if findings[rule[0]])
        option = None
        if standing != "refuses":
            option = engine.option(facts, standing == "with an option")
        words = reason.format(findings[finding])
        answers.append(EngineAnswer(engine.name, standing, words, option))
    return tuple(answers)


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


def _vllm_option(facts: PairFacts, special: bool) -> str:
    fields = vllm_draft(facts.draft, translated=special)
    return f"--speculative-config '{json.dumps(fields, separators=(',', ':'))}'"


def _llama_cpp_option(facts: PairFacts, special: bool) -> str:
    option = shlex.join(llama_cpp_draft(f"{facts.draft}.gguf"))
    if special:
        bos = facts.target_tokenizer.ids["bos_token"]
        option += f" --override-kv tokenizer.ggml.bos_token_id=int:{bos}"
    return option


def _tensorrt_llm_option(facts: PairFacts, special: bool) -> str:
    fields = tensorrt_llm_draft(facts.draft)
    words = ", ".join(f"{name}: {value}" for name, value in fields.items())
    return f"speculative_config: {{{words}}}, disable_overlap_scheduler: true"


def _findings(pair: PairFacts) -> dict[str, str]:
    """What rules ask of a pair, in words; empty where the two agree."""
    words, target, draft = pair.vocabulary, pair.target_tokenizer, pair.draft_tokenizer
    apart = abs(words.target_rows - words.draft_rows)
    sizes = f"{words.target_rows} and {words.draft_rows}"
    # The draft may know additional tokens.
    tokenizer = words.first_difference or words.first_missing or words.first_unreadable
    ends = [
        ("add_bos", target.adds_bos, draft.adds_bos),
        ("add_eos", target.adds_eos, draft.adds_eos),
        ("eos id", target.ids.get("eos_token"), draft.ids.get("eos_token")),
    ]
    if "bos_token" in draft.ids:  # a draft file without one gets a legacy id
        ends.append(("bos id", target.ids.get("bos_token"), draft.ids["bos_token"]))
    other_ends = [
        f"{name} is {ours} in the target, {theirs} in the draft"
        for name, ours, theirs in ends
        if ours != theirs
    ]
    no_begin = "bos_token" in target.ids and "bos_token" not in draft.ids
    return {
        "always": "always",
        "rows": str(words.target_rows),
        "rows_apart": str(apart),
        "other_size": sizes if apart else "",
        "too_far_apart": f"{apart} ({sizes})" if apart > LLAMA_CPP_ROWS else "",
        "other_word": _named(words.first_difference),
        "other_regular_word": _named(words.first_regular_difference),
        "other_tokenizer": _named(tokenizer),
        "other_kind": f"{target.kind} and {draft.kind}" if target.kind != draft.kind else "",
        "other_end": next(iter(other_ends), ""),
        "no_begin": "no bos token" if no_begin else "",
    }


def _named(difference: TokenDifference | None) -> str:
    if difference is None:
        return ""
    target, draft = (
        "no token" if text is None else repr(text) for text in (difference.target, difference.draft)
    )
    return f"id {difference.id} is {target} in the target, {draft} in the draft"


# By the name that `export --engine` takes.
ENGINES = {
    "vllm": Engine(
        name="vLLM",
        form="schema of vLLM 0.32, validated by its own SpeculativeConfig",
        levels=("none", "fp8"),
        # `verify_equal_vocab_size_if_draft_model` compares sizes, unless words are translated.
        rules=(
            ("other_size", "with an option", "it asks for equal vocab_size, here {}"),
            ("other_word", "with an option", "equal vocab_size is all it checks, but {}"),
            ("rows", "accepts", "vocab_size is {} in both"),
        ),
        option=_vllm_option,
    ),
    "sglang": Engine(
        name="SGLang",
        form="schema of SGLang's speculative decoding guide at 067ad4d3, autumn 2026",
        levels=("none", "fp8"),
        rules=(
            ("other_tokenizer", "refuses", "it passes ids on untranslated, and {}"),
            ("always", "accepts", "ids mean the same in both"),
        ),
        option=lambda facts, special: shlex.join(sglang_draft(facts.draft)),
    ),
    "llamacpp": Engine(
        name="llama.cpp",
        form="flags of builds from May 2026 on (pull requests 22397 and 22964)",
        levels=None,
        rules=(
            ("other_kind", "refuses", "the vocabularies are {}"),
            ("too_far_apart", "refuses", f"sizes may be {LLAMA_CPP_ROWS} apart, here {{}}"),
            ("other_end", "refuses", "{}"),
            ("other_regular_word", "refuses", "{}"),
            ("no_begin", "with an option", "the draft names {}"),
            ("rows_apart", "accepts", "same texts from id 5 on, {} rows apart"),
        ),
        option=_llama_cpp_option,
    ),
    "tensorrt-llm": Engine(
        name="TensorRT-LLM",
        form="schema of TensorRT-LLM 1.4.0rc1's documentation",
        levels=("none",),
        # It warns of very low acceptance with another tokenizer.
        rules=(
            ("other_tokenizer", "refuses", "it needs the same tokenizer, and {}"),
            ("always", "accepts", "same tokenizer"),
        ),
        option=_tensorrt_llm_option,
    ),
    "transformers": Engine(
        name="transformers",
        form="written for transformers 5.x; one request at a time, batches are not supported",
        levels=("none",),
        # Equal vocab_size counts as the same tokenizer, and both tokenizers are then not allowed.
        rules=(
            ("other_size", "with an option", "{} rows: it takes the tokenizers for different ones"),
            ("other_word", "refuses", "it cannot tell these apart by size, and {}"),
            ("rows", "accepts", "vocab_size is {} in both"),
        ),
        option=lambda facts, special: f"generate({transformers_draft(two_tokenizers=special)})",
    ),
}
