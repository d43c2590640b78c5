"""A pair's facts → which serving engines take it, by each engine's own documented rule, and with
which option.

The rules are those of vLLM 0.15 on, SGLang's STANDALONE, llama.cpp's `draft-simple`, TensorRT-LLM's
DraftTarget and transformers 5's assisted generation. Not known here: whether an engine supports
either architecture at all, which version is installed, and what it can load.
"""

from __future__ import annotations

from draftbench.models.facts import (
    EngineAnswer,
    PairFacts,
    TokenDifference,
    TokenizerFacts,
    Vocabulary,
)

# llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE.
LLAMA_CPP_ROWS = 128


def engine_answers(facts: PairFacts) -> tuple[EngineAnswer, ...]:
    """One answer per engine, in a fixed order."""
    return (_vllm(facts), _sglang(facts), _llama_cpp(facts), _tensorrt_llm(facts), _assisted(facts))


def _vllm(facts: PairFacts) -> EngineAnswer:
    """`verify_equal_vocab_size_if_draft_model` compares sizes, or heterogeneous vocabularies are
    asked for: words are then translated as text, and the draft must be greedy.
    """
    config = f'"method":"draft_model","model":"{facts.draft}"'
    words = facts.vocabulary
    other = f'{config},"use_heterogeneous_vocab":true,"draft_sample_method":"greedy"'
    if words.target_rows != words.draft_rows:
        reason = f"it asks for equal vocab_size, here {_rows(words)}"
        return _with_option("vLLM", reason, f"--speculative-config '{{{other}}}'")
    if words.first_difference:
        reason = f"equal vocab_size is all it checks, but {_named(words.first_difference)}"
        return _with_option("vLLM", reason, f"--speculative-config '{{{other}}}'")
    return EngineAnswer(
        "vLLM",
        "accepts",
        f"vocab_size is {words.target_rows} in both",
        f"--speculative-config '{{{config}}}'",
    )


def _sglang(facts: PairFacts) -> EngineAnswer:
    """STANDALONE hands the draft's ids to the target as they are; the draft's quantization follows
    the target's unless named.
    """
    refusal = _other_tokenizer(facts.vocabulary)
    if refusal:
        return _refuses("SGLang", f"it hands over ids untranslated, and {refusal}")
    return EngineAnswer(
        "SGLang",
        "accepts",
        "ids mean the same in both",
        f"--speculative-algorithm STANDALONE --speculative-draft-model-path {facts.draft} "
        "--speculative-draft-model-quantization unquant",
    )


def _llama_cpp(facts: PairFacts) -> EngineAnswer:
    """Same kind of vocabulary, same begin and end tokens, at most 128 rows apart, same texts from
    id 5 on. A draft file without a begin token gets a legacy id, which can be overridden.
    """
    words, ours, theirs = facts.vocabulary, facts.target_tokenizer, facts.draft_tokenizer
    apart = abs(words.target_rows - words.draft_rows)
    option = f"-md {facts.draft}.gguf --spec-type draft-simple"
    if ours.kind != theirs.kind:
        return _refuses("llama.cpp", f"the vocabularies are {ours.kind} and {theirs.kind}")
    if apart > LLAMA_CPP_ROWS:
        reason = f"sizes may be {LLAMA_CPP_ROWS} apart, here {apart} ({_rows(words)})"
        return _refuses("llama.cpp", reason)
    differing = _other_ends(ours, theirs)
    if differing:
        return _refuses("llama.cpp", differing)
    if words.first_regular_difference:
        return _refuses("llama.cpp", _named(words.first_regular_difference))
    bos = ours.ids.get("bos_token")
    if bos != theirs.ids.get("bos_token"):
        option += f" --override-kv tokenizer.ggml.bos_token_id=int:{bos}"
        return _with_option("llama.cpp", "the draft names no bos token", option)
    reason = f"same texts from id 5 on, {apart} rows apart"
    return EngineAnswer("llama.cpp", "accepts", reason, option)


def _other_ends(ours: TokenizerFacts, theirs: TokenizerFacts) -> str | None:
    """The first begin or end setting that differs; a begin token that the draft lacks does not
    count.
    """
    settings = [
        ("add_bos", ours.adds_bos, theirs.adds_bos),
        ("add_eos", ours.adds_eos, theirs.adds_eos),
        ("eos id", ours.ids.get("eos_token"), theirs.ids.get("eos_token")),
    ]
    if "bos_token" in theirs.ids:
        settings.append(("bos id", ours.ids.get("bos_token"), theirs.ids["bos_token"]))
    for name, mine, other in settings:
        if mine != other:
            return f"{name} is {mine} in the target, {other} in the draft"
    return None


def _tensorrt_llm(facts: PairFacts) -> EngineAnswer:
    """DraftTarget asks for the same tokenizer; it warns of very low acceptance otherwise."""
    refusal = _other_tokenizer(facts.vocabulary)
    if refusal:
        return _refuses("TensorRT-LLM", f"it needs the same tokenizer, and {refusal}")
    return EngineAnswer(
        "TensorRT-LLM",
        "accepts",
        "same tokenizer",
        "speculative_config: {decoding_type: DraftTarget, "
        f"speculative_model: {facts.draft}}}, disable_overlap_scheduler: true",
    )


def _assisted(facts: PairFacts) -> EngineAnswer:
    """Equal vocab_size counts as the same tokenizer, and both tokenizers are then not allowed;
    otherwise both must be given.
    """
    words = facts.vocabulary
    if words.target_rows != words.draft_rows:
        reason = f"it takes {_rows(words)} rows for different tokenizers"
        option = "generate(assistant_model=draft, tokenizer=…, assistant_tokenizer=…)"
        return _with_option("transformers", reason, option)
    if words.first_difference:
        reason = f"it cannot tell these apart by size, and {_named(words.first_difference)}"
        return _refuses("transformers", reason)
    reason = f"vocab_size is {words.target_rows} in both"
    return EngineAnswer("transformers", "accepts", reason, "generate(assistant_model=draft)")


def _other_tokenizer(words: Vocabulary) -> str | None:
    """How the draft's tokenizer is not the target's; it may know additional tokens."""
    difference = words.first_difference or words.first_missing or words.first_unreadable
    return _named(difference) if difference else None


def _named(difference: TokenDifference) -> str:
    mine, other = (
        "no token" if text is None else repr(text) for text in (difference.target, difference.draft)
    )
    return f"id {difference.id} is {mine} in the target, {other} in the draft"


def _rows(words: Vocabulary) -> str:
    return f"{words.target_rows} and {words.draft_rows}"


def _refuses(engine: str, reason: str) -> EngineAnswer:
    return EngineAnswer(engine, "refuses", reason, None)


def _with_option(engine: str, reason: str, option: str) -> EngineAnswer:
    return EngineAnswer(engine, "with an option", reason, option)
