"""Decides from configurations and tokenizers whether one model can draft for another.

Draft and target exchange the tokens that both have (`translation.py`). A draft may lack tokens,
which it then never proposes, as long as it has most of those that the target writes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from draftbench.engines.pair_rules import (
    Overlap,
    PairFacts,
    TokenDifference,
    TokenizerFacts,
    Vocabulary,
)
from draftbench.errors import ModelError, PairError
from draftbench.models.source import ModelSource
from draftbench.models.translation import rows_of, shared_tokens

# The share of the target's output that a draft must have in its vocabulary.
LEAST_SHARED = 0.5
# llama.cpp compares token texts from this id on: the ones before are usually control tokens.
FIRST_REGULAR = 5
# How many lines of a chat template are compared: the time grows at least with their square.
MOST_LINES = 1000
# Endings of the names of architectures that write text, and of those that judge it.
_WRITES = ("ForCausalLM", "LMHeadModel", "WithLMHead")
_JUDGES = ("Classification", "ForQuestionAnswering", "ForMultipleChoice", "RewardModel")


def check_pair(
    target: ModelSource,
    draft: ModelSource,
    traffic: Mapping[int, float] | None = None,
    *,
    chats: bool = True,
) -> tuple[str, ...]:
    """The caveats of a pair that can work together.

    Args:
        traffic: how often each of the target's tokens occurs in the traffic.
        chats: whether the traffic has chats, which a template renders.

    Raises:
        PairError: the draft has less than half of the tokens that occur in the traffic.
        ModelError: a configuration or tokenizer cannot be loaded, or the draft does not write text.
    """
    check_writes(draft)
    facts = pair_facts(target, draft, traffic)
    refusal = refusal_of(facts)
    if refusal is not None:
        raise PairError(
            f"`{draft.name}` cannot draft for `{target.name}`: {refusal}",
            hint="take a draft of the target's family and generation, or `ngram` (no model)",
        )
    return caveats_of(facts, chats=chats)


def pair_facts(
    target: ModelSource, draft: ModelSource, traffic: Mapping[int, float] | None = None
) -> PairFacts:
    """Compare the configurations and tokenizers of a pair.

    Args:
        traffic: how often each of the target's tokens occurs in the traffic.

    Raises:
        ModelError: a configuration or tokenizer cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    ours, theirs = (
        {index: text for text, index in source.tokenizer.get_vocab().items()}
        for source in (target, draft)
    )
    rows, shared = [rows_of(target), rows_of(draft)], shared_tokens(target, draft)
    common = ours.keys() & theirs.keys()
    differing = [index for index in common if ours[index] != theirs[index]]
    regular = range(FIRST_REGULAR, min(rows))

    def first(indices: Iterable[int]) -> TokenDifference | None:
        index = min(indices, default=None)
        return None if index is None else TokenDifference(index, ours.get(index), theirs.get(index))

    def overlap(counts: Mapping[int, float]) -> Overlap:
        same_id = sum(n for i, n in counts.items() if i in ours and theirs.get(i) == ours[i])
        same_text = sum(n for i, n in counts.items() if i in shared)
        total = sum(counts.values())
        return Overlap(same_id=same_id / total, same_text=same_text / total)

    vocabulary = Vocabulary(
        target_rows=rows[0],
        draft_rows=rows[1],
        target_tokens=len(ours),
        draft_tokens=len(theirs),
        same=len(common) - len(differing),
        shared=len(shared),
        first_missing=first(ours.keys() - theirs.keys()),
        first_unreadable=first(index for index in ours if index >= rows[1]),
        first_added=first(theirs.keys() - ours.keys()),
        first_difference=first(differing),
        first_regular_difference=first(i for i in regular if ours.get(i) != theirs.get(i)),
        all_tokens=overlap(dict.fromkeys(ours, 1.0)),
        traffic=overlap(traffic) if traffic else None,
    )
    templates, difference = [_template(s.tokenizer) for s in (target, draft)], list[str]()
    if all(templates):
        one, other = (template.splitlines() for template in templates)
        heads = one[:MOST_LINES], other[:MOST_LINES]
        difference += difflib.unified_diff(*heads, "target", "draft", lineterm="", n=1)
        if one[MOST_LINES:] != other[MOST_LINES:]:
            difference.append(f"(not compared after line {MOST_LINES})")
    # `_model_mapping` is how `from_config` finds the class; the flag is what `generate` reads.
    model = AutoModelForCausalLM._model_mapping.get(type(target.config), None)
    return PairFacts(
        target=target.name,
        draft=draft.name,
        vocabulary=vocabulary,
        target_tokenizer=_tokenizer_facts(target.tokenizer),
        draft_tokenizer=_tokenizer_facts(draft.tokenizer),
        template_difference=tuple(difference),
        target_context=context_length_of(target),
        draft_context=context_length_of(draft),
        target_recurrent=bool(getattr(model, "_is_stateful", False)),
    )


def covers(facts: PairFacts) -> bool | None:
    """Whether the draft has the tokens that the target writes; None: only traffic can tell."""
    traffic, all_tokens = facts.vocabulary.traffic, facts.vocabulary.all_tokens
    if traffic is None:
        return True if all_tokens.same_text >= LEAST_SHARED else None
    return traffic.same_text >= LEAST_SHARED


def refusal_of(facts: PairFacts) -> str | None:
    """Why the draft cannot draft for the target: it lacks too much of what the target writes."""
    traffic = facts.vocabulary.traffic
    if traffic is None or covers(facts):
        return None
    return f"it has only {traffic.same_text:.0%} of the traffic's tokens"


def caveats_of(facts: PairFacts, *, chats: bool = True) -> tuple[str, ...]:
    """Differences in a pair that can work together, and their consequences; in chat templates only
    if the traffic has `chats`.
    """
    caveats, words = [], facts.vocabulary
    if lacking := words.target_tokens - words.shared:
        bound = ""
        if covers(facts) is None:
            bound = ": `draftbench check --traffic` shows how much of your text it covers"
        elif words.traffic is not None:
            share = words.traffic.same_text
            # 100% would say that none is lacking.
            bound = f": at most {min(share, 0.999):.1%} of the traffic's tokens can be accepted"
            if share == 1:
                bound = ", none of which the traffic uses"
        caveats.append(
            f"the draft lacks {lacking} of the target's tokens and never proposes them{bound}"
        )
    if first := words.first_difference:
        caveats.append(
            f"ids differ (first {first.id}: {first.target!r} in the target, {first.draft!r} in the "
            "draft), so that tokens are translated by their text"
        )
    target, draft = facts.target_tokenizer, facts.draft_tokenizer
    for name in ("bos_token", "eos_token"):
        ours, theirs = target.special.get(name), draft.special.get(name)
        if ours != theirs:
            caveats.append(
                f"{name} is {ours!r} in the target and {theirs!r} in the draft; "
                "the target's is used"
            )
    if chats and target.has_template and not draft.has_template:
        caveats.append(
            "the draft has no chat template: it was probably not trained on this dialogue format"
        )
    elif chats and facts.template_difference:
        caveats.append("the chat templates differ; the target's is used for both")
    longest, ends = facts.target_context, facts.draft_context
    if longest is not None and ends is not None and ends < longest:
        caveats.append(
            f"the draft's context ends at {ends} tokens (target: {longest}); nothing is drafted "
            "beyond"
        )
    return tuple(caveats)


def check_writes(source: ModelSource) -> None:
    """Raise a ModelError if a checkpoint is not a causal language model."""
    if obstacle := writing_obstacle(source):
        raise ModelError(
            obstacle,
            hint="target and draft must be causal language models (…ForCausalLM in config.json)",
        )


def writing_obstacle(source: ModelSource) -> str | None:
    """Why a checkpoint cannot write text token by token, judged by the architecture it was saved
    as; None if it can. transformers would build a causal model from it without complaint.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    config = source.config
    names = [name for name in config.architectures or () if isinstance(name, str)]
    if not names or any(name.endswith(_WRITES) for name in names):
        return None
    if getattr(config, "is_encoder_decoder", False):
        kind = "an encoder-decoder model, which reads its prompt apart from what it writes"
    elif config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        kind = "an encoder, which does not write text token by token"
    elif any(name.endswith(_JUDGES) for name in names):
        kind = "a classifier or reward model, which writes no text"
    else:
        return None
    return f"`{source.name}` ({names[0]}) is {kind}"


def context_length_of(source: ModelSource) -> int | None:
    """The context length in tokens; None for a recurrent model, which has no such limit."""
    context: int | None = getattr(source.config.get_text_config(), "max_position_embeddings", None)
    return context


def _tokenizer_facts(tokenizer: Any) -> TokenizerFacts:
    roles = [role for role in tokenizer.special_tokens_map if role.endswith("_token")]
    special = {role: getattr(tokenizer, role, None) for role in roles}
    ids = {role: getattr(tokenizer, f"{role}_id", None) for role in roles}
    plain = tokenizer("a")["input_ids"]
    backend, kind = getattr(tokenizer, "backend_tokenizer", None), type(tokenizer).__name__
    if backend is not None:
        # BPE that falls back to bytes is sentence-piece's.
        fallback = getattr(backend.model, "byte_fallback", False)
        kind = type(backend.model).__name__ + " with byte fallback" * bool(fallback)
    return TokenizerFacts(
        kind=kind,
        special={role: str(text) for role, text in special.items() if text is not None},
        ids={role: index for role, index in ids.items() if index is not None},
        adds_bos="bos_token" in ids and plain[:1] == [ids["bos_token"]],
        adds_eos="eos_token" in ids and plain[-1:] == [ids["eos_token"]],
        has_template=bool(_template(tokenizer)),
    )


def _template(tokenizer: Any) -> str:
    """The chat template; of several, the default one."""
    template = getattr(tokenizer, "chat_template", None)
    return (template.get("default") if isinstance(template, dict) else template) or ""
