"""The serving engines: their names, which pairs each accepts, and with which options.

`check` uses the table `ENGINE_RULES` to judge a pair, `export` to write the configuration for
vLLM's draft models, SGLang's STANDALONE, llama.cpp's `draft-simple`, TensorRT-LLM's Draft_Target
and transformers' assisted generation. `sources` names the version in which each rule was read. The
table does not know whether an engine supports an architecture at all, nor which version is
installed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

import msgspec

from draftbench.drafts.kind import Method
from draftbench.drafts.speculation import Speculation
from draftbench.errors import EngineError
from draftbench.models.check_result import (
    EngineAnswer,
    PairFacts,
    Standing,
    TokenDifference,
)
from draftbench.models.drafting import (
    llama_cpp_flags,
    sglang_flags,
    tensorrt_llm_fields,
    transformers_arguments,
    vllm_fields,
)
from draftbench.records import BUILT_IN_LOOKUP, STACK, Candidate, LookupRule

# llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE.
LLAMA_CPP_ROWS = 128
_UNCHECKED = "differing tokens are rarely accepted ({})"
_KEEPS_DRAFTING = "it keeps drafting beyond the draft's context of {} tokens, up to the target's {}"


class Source(msgspec.Struct, frozen=True):
    """Where a rule was read, and in which version it was tried."""

    rule: str
    read: str  # version and file
    tried: str  # version; empty: none that has it could be had


class EngineRules(msgspec.Struct, frozen=True):
    """A serving engine: its configuration, and its rules for accepting a pair."""

    name: str
    form: str  # what the exported configuration is written for
    # What to pass to it so that it drafts like this.
    option: Callable[[Speculation], str]
    methods: tuple[Method, ...]  # of drafting that it is known to have
    sources: tuple[Source, ...]
    # (a key of `_findings`, answer, reason); the first rule whose finding is not empty applies, and
    # the finding fills {} in the reason.
    rules: tuple[tuple[str, Standing, str], ...]
    # What it does if the draft's context ends at {} tokens, the target's at {}.
    short_context: str = (
        "try a request beyond the draft's context of {} tokens, which was not tested (target: {})"
    )
    special: str = ""  # what else it needs for a pair that it takes only with an option
    refused: str = ""  # what it does with a pair that it refuses, if it starts all the same
    # How it samples if a request does not say; None: the configuration says, or it is unknown.
    sampling: str | None = None
    started: bool = False  # whether draftbench can start it (its adapter knows how)
    converts: bool = False  # whether it loads only files that were converted and quantized before
    reads_gguf: bool = False  # whether it is known to load .gguf files
    stacks: bool = False  # whether it can try prompt lookup before another draft
    lookup: LookupRule = BUILT_IN_LOOKUP  # how its prompt lookup works
    older_lookup: LookupRule | None = None  # of an older runner, which it uses on a CPU
    rounds_activations: bool = False  # to 8 bits, whatever the type of its weights
    pins: tuple[str, ...] = ("target", "draft")  # the models whose revision its configuration names
    synthetic: bool = False  # whether it accepts drafts at given rates; SGLang only at their mean
    takes_dtype: bool = False  # whether it is started with --dtype, in which drafts are replayed
    requests: int = 0  # its default limit of concurrent requests; 0: unknown
    # What it calls the number of requests that it answers at once, and the flag for it.
    slots: tuple[str, str] = ("", "")
    shares_context: bool = False  # whether it divides its cache among them when it starts


def engine_called(name: str) -> str:
    """An engine's name from any spelling (`llamacpp`, `vLLM`, `tensorrt_llm`); other names
    unchanged.
    """

    def letters(text: str) -> str:
        return re.sub(r"[-_. ]", "", text.lower())

    return next(
        (engine for engine in (*ENGINE_RULES, "openai") if letters(engine) == letters(name)), name
    )


def engine_answers(facts: PairFacts) -> tuple[EngineAnswer, ...]:
    """One answer per engine, in the order of the table."""
    answers, findings = [], _findings(facts)
    for engine in ENGINE_RULES.values():
        finding, standing, template = next(rule for rule in engine.rules if findings[rule[0]])
        option = None
        reason = template.format(findings[finding])
        if standing != "refuses":
            special, file = standing == "with an option", ".gguf" * engine.converts
            how = Speculation("draft-model", facts.draft + file, 1, translated=special)
            option = engine.option(how)
            if special:
                option += engine.special.format(facts.target_tokenizer.ids.get("bos_token"))
            if cut := shorter_context(engine, facts.target_context, facts.draft_context):
                reason += f"; {cut}"
        elif engine.refused:
            reason += f"; {engine.refused}"
        answers.append(EngineAnswer(engine.name, standing, reason, option))
    return tuple(answers)


def shorter_context(engine: EngineRules, target: int | None, draft: int | None) -> str | None:
    """What an engine does if the draft's context is shorter than the target's; None if not."""
    if draft is None or (target is not None and draft >= target):
        return None
    return engine.short_context.format(draft, "no limit" if target is None else target)


def engine_refusal(engine: EngineRules, target: int, draft: int, *, translated: bool) -> str | None:
    """Why an engine refuses vocabularies of these sizes, or some of whose tokens must be
    `translated`; None if it accepts them.
    """
    other = "some tokens have other ids in the draft, or are not in it" if translated else ""
    findings = _size_findings(target, draft)
    findings |= {"other_vocabulary": other, "other_regular_word": other}
    for finding, standing, reason in engine.rules:
        if standing == "refuses" and findings.get(finding):
            return reason.format(findings[finding])
    return None


def check_method(engine: str, speculation: Speculation) -> None:
    """Raise an EngineError if an engine lacks this method of drafting."""
    rules = ENGINE_RULES[engine]
    if speculation.stacked and not rules.stacks:
        able = " and ".join(name for name, each in ENGINE_RULES.items() if each.stacks)
        method = speculation.method
        raise EngineError(
            f"{engine} drafts by one method, not by prompt lookup and then by `{method}`",
            hint=f"{able} does; or take the draft alone, without `{STACK}`",
        )
    if speculation.method not in rules.methods:
        raise EngineError(
            f"{engine} is not known to draft by `{speculation.method}`",
            hint=f"it drafts by {', '.join(rules.methods).replace('raw', 'spec:FILE.json')}",
        )


def fewest_drafted(engine: str | None, draft: str, shortest: int) -> int:
    """The smallest k at which an engine drafts: the prompt lookup of some proposes no fewer tokens
    than its n-gram has.
    """
    rules = ENGINE_RULES.get(engine or "")
    return shortest if rules and rules.lookup.one_size and Candidate(draft=draft).looks_up else 1


def too_short(engine: str, fewest: int) -> str:
    """Why an engine drafts nothing at a k below `fewest_drafted`."""
    name = ENGINE_RULES[engine].name
    return f"{name}'s prompt lookup proposes no fewer tokens than its n-gram has ({fewest})"


def lookup_rule(engine: str, *, older: bool) -> LookupRule:
    """How a server's prompt lookup works, on a CPU or in its `older` runner; as in the built-in
    decoder if nothing else is known.
    """
    rules = ENGINE_RULES.get(engine)
    if rules is None:
        return BUILT_IN_LOOKUP
    return rules.older_lookup if older and rules.older_lookup else rules.lookup


def _size_findings(target: int, draft: int) -> dict[str, str]:
    """The `_findings` from the sizes of two vocabularies."""
    apart, sizes = abs(target - draft), f"{target} and {draft}"
    return {
        "other_size": sizes if apart else "",
        "too_far_apart": f"{apart} ({sizes})" if apart > LLAMA_CPP_ROWS else "",
    }


def _findings(pair: PairFacts) -> dict[str, str]:
    """Differences in a pair by the names that the rules use; empty where the two agree."""
    words, target, draft = pair.vocabulary, pair.target_tokenizer, pair.draft_tokenizer
    # The draft may know additional tokens.
    tokenizer = words.first_difference or words.first_missing or words.first_unreadable
    ends: list[tuple[str, object, object]] = [("add_bos", target.adds_bos, draft.adds_bos)]
    if target.adds_bos and "bos_token" in draft.ids:  # a draft file without one gets a legacy id
        ends.append(("bos id", target.ids.get("bos_token"), draft.ids["bos_token"]))
    ends.append(("add_eos", target.adds_eos, draft.adds_eos))
    if target.adds_eos:
        ends.append(("eos id", target.ids.get("eos_token"), draft.ids.get("eos_token")))
    other_ends = [
        f"{name} is {ours} in the target, {theirs} in the draft"
        for name, ours, theirs in ends
        if ours != theirs
    ]
    apart = abs(words.target_rows - words.draft_rows)
    return {
        **_size_findings(words.target_rows, words.draft_rows),
        "always": "always",
        "rows": str(words.target_rows),
        "rows_apart": f"sizes differ by {apart} rows" if apart else "same size",
        "other_word": _named(words.first_difference),
        "other_regular_word": _named(words.first_regular_difference),
        "other_tokenizer": _named(tokenizer),
        "other_vocabulary": _named(
            words.first_difference or words.first_missing or words.first_added
        ),
        "other_kind": f"{target.kind} and {draft.kind}" if target.kind != draft.kind else "",
        "other_end": next(iter(other_ends), ""),
        "no_begin": "no bos token" if target.adds_bos and "bos_token" not in draft.ids else "",
        "recurrent": "recurrent state" if pair.target_recurrent else "",
    }


def _named(difference: TokenDifference | None) -> str:
    if difference is None:
        return ""
    target, draft = (
        "no token" if text is None else repr(text) for text in (difference.target, difference.draft)
    )
    if target == draft:
        return f"id {difference.id} is {target}, for which the draft's output has no row"
    return f"id {difference.id} is {target} in the target, {draft} in the draft"


# By the name that `export --engine` takes.
ENGINE_RULES = {
    "vllm": EngineRules(
        name="vLLM",
        methods=("draft-model", "ngram", "eagle3", "mtp", "suffix", "dflash", "raw"),
        started=True,
        takes_dtype=True,
        synthetic=True,
        requests=256,
        # It always proposes k tokens; its older runner, which it uses on a CPU, takes the first
        # occurrence (v1/spec_decode/ngram_proposer.py).
        lookup=LookupRule(fills=True),
        older_lookup=LookupRule(first=True),
        form="written for vLLM 0.33, and parsed by vLLM 0.32",
        # `verify_equal_vocab_size_if_draft_model` compares sizes, unless words are translated.
        rules=(
            ("other_size", "with an option", "it translates tokens between vocabularies of {}"),
            ("other_tokenizer", "with an option", "it translates tokens, since {}"),
            ("rows", "accepts", "vocab_size is {} in both"),
        ),
        option=lambda how: (
            f"--speculative-config '{json.dumps(vllm_fields(how), separators=(',', ':'))}'"
        ),
        sampling="vLLM samples by the checkpoint's generation_config.json",
        short_context="from 0.33 on it cuts the server's context to the draft's, {} tokens "
        "(target: {})",
        sources=(
            Source("fields of --speculative-config", "0.33.0 config/speculative.py", "0.32.0"),
            Source("draft lengths by batch size", "0.33.0 v1/spec_decode/dynamic", "0.32.0"),
            Source("vocab_size must be equal", "0.33.0 config/speculative.py", "0.32.0"),
            Source("fp8_per_channel", "0.33.0 config/quantization.py; not in 0.23", "0.32.0"),
            Source("a draft's schedule ignored, no CUDA graphs", "0.33.0, 0.31.0; not 0.30", ""),
            Source("n-grams from the last match", "0.33.0 gpu/spec_decode/ngram; not in 0.31", ""),
            Source("use_heterogeneous_vocab", "0.25.0 config/speculative.py", "0.32.0"),
            Source("draft_sample_method of draft models", "0.23.0 v1/spec_decode", "0.32.0"),
            Source("context cut to the draft's", "0.33.0 config/vllm.py; not in 0.32", ""),
            Source("synthetic acceptance", "0.33.0 config/speculative.py; not in 0.19", "0.32.0"),
            Source("method mtp", "0.33.0 config/speculative.py", "0.32.0"),
            Source("generation_config.json", "0.32.0 config/model.py", ""),
        ),
    ),
    "sglang": EngineRules(
        name="SGLang",
        methods=("draft-model", "ngram", "eagle3", "mtp", "dflash", "raw"),
        started=True,
        synthetic=True,
        requests=48,  # as soon as it speculates
        slots=("max_running_requests", "--max-running-requests"),
        form="written for SGLang 0.5.23",
        # `_validate_vocab_compatibility`: config.vocab_size, then both get_vocab() as a whole.
        rules=(
            ("other_size", "refuses", "it needs equal vocab_size, here {}"),
            ("other_vocabulary", "refuses", "it needs the same tokens in both, and {}"),
            ("always", "accepts", "the same vocabulary in both"),
        ),
        option=lambda how: shlex.join(sglang_flags(how)),
        sampling="SGLang samples by the checkpoint's generation_config.json",
        short_context=_KEEPS_DRAFTING,
        sources=(
            Source("flags of STANDALONE and NGRAM", "0.5.23 arg_groups/fields/spec.py", "0.5.23"),
            Source("equal vocabularies", "0.5.23 speculative/standalone_worker_v2.py", "0.5.23"),
            Source("generation_config.json", "0.5.23 arg_groups/fields/serving.py", "0.5.23"),
            Source("48 requests at once", "0.5.23 arg_groups/speculative_hook.py", "0.5.23"),
            Source("no rejection sampling", "0.5.23 arg_groups/speculative_hook.py", ""),
            Source("the draft's context", "0.5.23 speculative/standalone_worker_v2.py", ""),
            Source("mean of synthetic acceptance", "0.5.23 speculative/spec_utils.py", ""),
            Source("NEXTN", "0.5.23 arg_groups/speculative_hook.py", "0.5.23"),
        ),
    ),
    "llama.cpp": EngineRules(
        name="llama.cpp",
        methods=("draft-model", "ngram", "eagle3", "mtp", "dflash", "raw"),
        started=True,
        synthetic=True,
        slots=("slots", "-np"),
        shares_context=True,
        # Prompt lookup first, whatever order --spec-type names (common/speculative.cpp).
        stacks=True,
        # The newest token is not looked at (common/ngram-map.cpp).
        lookup=LookupRule(unseen=1, begin=1, one_size=True),
        rounds_activations=True,
        pins=(),
        form="flags of builds from May 2026 on (pull requests 22397 and 22964)",
        converts=True,
        reads_gguf=True,
        # Begin and end tokens count only where the target adds them.
        rules=(
            ("other_kind", "refuses", "the vocabularies are {}"),
            ("too_far_apart", "refuses", f"sizes may be {LLAMA_CPP_ROWS} apart, here {{}}"),
            ("other_end", "refuses", "{}"),
            ("other_regular_word", "refuses", "{}"),
            ("no_begin", "with an option", "the draft names {}"),
            ("rows_apart", "accepts", "same token texts from id 5 on, {}"),
        ),
        option=lambda how: shlex.join(llama_cpp_flags(how)),
        special=" --override-kv tokenizer.ggml.bos_token_id=int:{}",
        refused="llama-server starts and serves without the draft",
        sampling="llama-server samples at temperature 0.8, top-k 40, top-p 0.95 and min-p 0.05",
        sources=(
            Source("--spec-draft-… and --spec-ngram-…", "0c1e57098 common/arg.cpp", "b11669"),
            Source("--spec-draft-sampling", "pull request 27694, from b11368 on", "b11669"),
            Source("rows, ids from 5, bos, eos", "0c1e57098 common/speculative.cpp", "b11669"),
            Source("slots without -np", "0c1e57098 tools/server/server.cpp", ""),
            Source("--spec-synth-rates", "pull request 27711; b10649, not in b10644", "b11669"),
            Source("sampling of a request", "0c1e57098 common/common.h", "b11669"),
            Source("--spec-type draft-mtp", "pull request 22673", "b11669"),
        ),
    ),
    "tensorrt-llm": EngineRules(
        name="TensorRT-LLM",
        methods=("draft-model", "ngram", "eagle3", "mtp"),
        pins=("target",),
        form="written for TensorRT-LLM 1.3.0rc27 (llm_args.py at 00043967)",
        # It compares nothing; its guide warns of very low acceptance with another tokenizer.
        rules=(
            ("other_tokenizer", "accepts", f"it compares no tokens; {_UNCHECKED}"),
            ("always", "accepts", "same tokenizer"),
        ),
        option=lambda how: (
            "speculative_config: {"
            + ", ".join(f"{name}: {value}" for name, value in tensorrt_llm_fields(how).items())
            + "}"
        ),
        sources=(
            Source("Draft_Target, NGram and their fields", "00043967 llmapi/llm_args.py", ""),
            Source("draft_len_schedule", "00043967 llmapi/llm_args.py", ""),
            Source("revision, of the target alone", "0066b2a56 llmapi/llm_utils.py", ""),
            Source("n-grams of every length", "024997657 _torch/speculative/ngram.py", ""),
            Source("no comparison of vocabularies", "speculative-decoding.md of 1.4.0rc1", ""),
            Source("MTP", "00043967 llmapi/llm_args.py", ""),
        ),
    ),
    "transformers": EngineRules(
        name="transformers",
        reads_gguf=True,
        methods=("draft-model", "ngram", "mtp"),
        form="written for transformers 5.x; one request at a time, batches are not supported",
        # Equal vocab_size counts as the same tokenizer, and both tokenizers are then not allowed.
        rules=(
            ("recurrent", "refuses", "it assists no model with {}, as the target has"),
            ("other_size", "with an option", "{} rows: it treats the tokenizers as different"),
            ("other_word", "accepts", f"it compares only sizes; {_UNCHECKED}"),
            ("rows", "accepts", "vocab_size is {} in both"),
        ),
        option=lambda how: f"generate({transformers_arguments(how)})",
        short_context=_KEEPS_DRAFTING,
        sources=(
            Source("arguments of generate", "5.23.0 generation/utils.py", "5.23.0"),
            Source("equal vocab_size, recurrent state", "5.23.0 generation/utils.py", "5.23.0"),
            Source("prompt lookup", "5.23.0 generation/candidate_generator.py", "5.23.0"),
            Source("use_mtp", "5.23.0 generation/candidate_generator.py", "5.23.0"),
        ),
    ),
}
# The engines that draftbench can start, and the servers that it can measure on.
STARTED = tuple(name for name, rules in ENGINE_RULES.items() if rules.started)
DRIVEN = (*STARTED, "openai")


def repeat_flag(engine: str | None) -> str:
    """The flag of a sweep that measures everything several times on this runner (None: the built-in
    decoder), in other processes or by other starts of the servers.
    """
    return "--processes" if engine is None else "--restarts"
