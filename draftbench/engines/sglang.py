"""SGLang, asked by its own route `/generate`. Untried: written after the fields of its sources
(0.5.23), tested with answers of that shape.

- The ids hold the token that ended the response.
- Every event repeats all ids, unless the server was started with incremental streaming; the number
  in `completion_tokens` shows which.
- `spec_num_proposed_drafts` assumes that every round drafts the same number of tokens.
- A new `extra_key` with each request keeps its prompt out of the prefix cache.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

import msgspec

from draftbench.drafts.kind import Method
from draftbench.drafts.speculation import Speculation
from draftbench.engines.engine import (
    KEEPS_DRAFTING,
    Engine,
    ServePlan,
    ServerStart,
    Source,
    Starting,
    Version,
    Written,
)
from draftbench.engines.faults import failure, garbage
from draftbench.engines.flags import passed_flags, revision_flags
from draftbench.engines.server import (
    Answer,
    Ask,
    Id,
    ServerEvent,
    ServerFacts,
    TokenServer,
    accepted_at_least,
    check_prompt,
    event_of,
    margin_of,
    one_token,
)
from draftbench.records import Count, DraftingMode, RoundCounts

_QUANTIZES = {"fp8": "fp8"}
# What SGLang calls the kinds of constraints.
_CONSTRAINTS = {"json": "json_schema", "json_object": "json_schema"}
_CONSTRAINTS |= {"regex": "regex", "grammar": "ebnf"}
# The methods that may draft other lengths at other loads (EAGLE and EAGLE3 to SGLang).
_ADAPTIVE = ("eagle3", "mtp")
# [log-probability, id, text]
LogProb = tuple[float | None, Id, str | None]


def drafting_flags(speculation: Speculation) -> list[str]:
    """SGLang's flags for drafting a chain of k tokens, though SGLang could draft a tree. A draft's
    quantization is always written out, since its default is the target's.
    """
    if speculation.method == "raw":
        return passed_flags(speculation)
    draft_tokens = ["--speculative-num-draft-tokens", str(speculation.k + 1)]
    if speculation.method == "ngram":
        words = ["--speculative-algorithm", "NGRAM", *draft_tokens]
        return [*words, "--speculative-ngram-max-bfs-breadth", "1"]
    algorithms = {"draft-model": "STANDALONE", "mtp": "NEXTN"}
    algorithm = algorithms.get(speculation.method, speculation.method.upper())
    words = ["--speculative-algorithm", algorithm]
    model, pinned = revision_flags(speculation.model or "", "--speculative-draft-model-revision")
    words += ["--speculative-draft-model-path", model] if model else []
    chain = ["--speculative-num-steps", str(speculation.k), "--speculative-eagle-topk", "1"]
    if speculation.kind.is_model:
        level = _QUANTIZES.get(speculation.quant, "unquant")
        quantization = ["--speculative-draft-model-quantization", level]
        return [*words, *chain, *draft_tokens, *quantization, *pinned]
    if speculation.method == "dflash":  # its block holds the last accepted token too
        return [*words, *pinned, "--speculative-dflash-block-size", str(speculation.k + 1)]
    if speculation.method == "dspark":
        return [*words, *pinned, "--speculative-dspark-block-size", str(speculation.k)]
    return [*words, *pinned, *chain, *draft_tokens]


def _misreads(method: Method, raw: Mapping[str, Any], layers: list[int], usual: list[int]) -> str:
    """How it uses a head differently from its training
    (model_runner_components/spec_aux_hidden_state.py).
    """
    if method == "eagle3" and not raw.get("eagle_config") and layers not in ([], usual):
        return f"reads no layer ids but those in eagle_config, and takes what enters {usual}"
    if method not in ("dflash", "dspark"):
        return ""
    if "speculators_model_type" in raw:
        return "reads block drafters in their authors' format alone, not in that of speculators"
    drafting = {**raw, **(raw.get("dflash_config") or {})}
    if method == "dflash" and drafting.get("sample_from_anchor"):
        return "drafts nothing at the last known token's place, where this head drafts the next"
    return ""


def _start_flags(start: ServerStart) -> list[str]:
    target, revision = revision_flags(start.target, "--revision")
    words = ["--model-path", target, *revision, "--disable-radix-cache", "--enable-metrics"]
    usual = SGLANG.default_max_concurrency
    words += start.limits("--context-length", "--max-running-requests", usual)
    return words if start.speculation is None else [*words, *drafting_flags(start.speculation)]


class Finish(msgspec.Struct):
    type: str
    message: str | None = None


class MetaInfo(msgspec.Struct):
    finish_reason: Finish | None = None
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count | None = None
    spec_verify_ct: Count | None = None
    spec_num_correct_drafts: Count | None = None
    spec_num_proposed_drafts: Count | None = None
    spec_correct_drafts_histogram: list[Count] | None = None
    output_token_logprobs: list[LogProb] | None = None
    output_top_logprobs: list[list[LogProb] | None] | None = None


class SglangEvent(ServerEvent):
    text: str | None = None
    output_ids: tuple[Id, ...] = ()
    prompt_token_ids: list[Id] | None = None
    meta_info: MetaInfo | None = None


class SglangServerInfo(msgspec.Struct):
    version: str | None = None
    model_path: str | None = None
    context_length: Count | None = None
    max_running_requests: Count | None = None
    disable_radix_cache: bool | None = None
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_eagle_topk: Count | None = None
    speculative_num_draft_tokens: Count | None = None
    dtype: str | None = None
    quantization: str | None = None
    tp_size: Count | None = None


class SglangServer(TokenServer):
    engine = "sglang"
    constraints = frozenset(_CONSTRAINTS)
    route = "/generate"
    returns_since = "SGLang of 0.5.23 or near does"
    bytes_per_token = 256 << 10  # all ids come again with every token
    owner = "sglang"
    counter_names: ClassVar[Mapping[str, str]] = {
        "rounds": "spec_verify_calls_total",  # passes of the target
        "written": "generation_tokens_total",
    }

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling = ask.sampling
        held = {_CONSTRAINTS[kind]: value for kind, value in (ask.constraint or {}).items()}
        if "json_schema" in held:
            schema = {"type": "object"} if held["json_schema"] is True else held["json_schema"]
            held["json_schema"] = json.dumps(schema)
        text = isinstance(ask.prompt, str)
        return {
            "text" if text else "input_ids": ask.prompt if text else list(ask.prompt),
            "sampling_params": {
                "max_new_tokens": ask.limit,
                "n": 1,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k or -1,
                "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
                "min_p": sampling.min_p or 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "sampling_seed": sampling.seed,
                "stop": list(ask.stop),
                "ignore_eos": False,
                "min_new_tokens": 0,
                **held,
            },
            "stream": True,
            "return_prompt_token_ids": True,
            "return_logprob": ask.log_p,
            "extra_key": os.urandom(16).hex(),
        }

    def read(self, data: bytes, answer: Answer) -> None:
        if (event := event_of(data, SglangEvent, answer)) is None:
            return
        if (stated := event.meta_info) is None:
            raise failure("nothing")
        assert answer.tokens is not None
        if event.prompt_token_ids is not None:
            check_prompt(event.prompt_token_ids, answer.ask.prompt)
        if len(event.output_ids) == stated.completion_tokens:  # all of them again
            new = event.output_ids[answer.count :]
            answer.text = event.text or ""
        else:
            new = event.output_ids
            answer.text += event.text or ""
        if answer.count + len(new) != stated.completion_tokens:
            raise garbage("the ids do not add up to `completion_tokens`")
        answer.tokens += new
        answer.count += len(new)
        answer.prompt_tokens, answer.cached_tokens = stated.prompt_tokens, stated.cached_tokens
        if stated.spec_num_correct_drafts is not None:
            histogram = stated.spec_correct_drafts_histogram
            answer.counts = RoundCounts(
                rounds=stated.spec_verify_ct,
                drafted=stated.spec_num_proposed_drafts,
                accepted=stated.spec_num_correct_drafts,
                by_position=accepted_at_least(histogram) if histogram else None,
            )
        if stated.output_token_logprobs is not None:
            values = [value for value, _, _ in stated.output_token_logprobs if value is not None]
            again = len(values) == answer.count
            answer.log_p = values if again else [*(answer.log_p or ()), *values]
        if stated.finish_reason is not None:
            if stated.finish_reason.type == "abort":
                raise failure(stated.finish_reason.message or "aborted")
            answer.finish = stated.finish_reason.type

    def facts(self) -> ServerFacts:
        stated = self.http.json("/server_info", type=SglangServerInfo)
        names = ["dtype", "quantization", "tp_size"]
        names += ["max_running_requests", "speculative_eagle_topk"]
        settings = {n: str(v) for n in names if (v := getattr(stated, n))}
        if stated.model_path:
            settings["weights"] = PurePath(stated.model_path).name
        if stated.speculative_draft_model_path:
            settings["speculative_model"] = stated.speculative_draft_model_path
        drafting, no_cache = stated.speculative_num_draft_tokens, stated.disable_radix_cache
        return ServerFacts(
            engine=self.engine,
            version=stated.version,
            model=self.model or stated.model_path,
            context_length=stated.context_length,
            prefix_cache=None if no_cache is None else not no_cache,
            method=stated.speculative_algorithm or "none",
            k=drafting - 1 if drafting and stated.speculative_algorithm else 0,
            settings=settings,
        )

    def prompt_ids(self, prompt: Sequence[int] | str) -> list[int] | None:
        return one_token(self, prompt, SglangEvent).prompt_token_ids

    def margin(self, ids: Sequence[int]) -> float | None:
        answer = one_token(self, ids, SglangEvent, return_logprob=True, top_logprobs_num=2)
        stated = answer.meta_info
        top = (stated.output_top_logprobs or [None])[0] if stated else None
        return margin_of(value for value, _, _ in top or ())


def _write(plan: ServePlan, version: Version) -> Written:
    """The launch command, the same for every version; k is its `num_steps`. Draft lengths by load
    stand in a file, with the smallest batch of each; one candidate is never adapted.
    """
    scheduled = bool(plan.schedule) and plan.speculation.method in _ADAPTIVE
    how = plan.speculation_at(plan.longest) if scheduled else plan.speculation
    words = ["python", "-m", "sglang.launch_server", "--model-path", plan.target]
    if plan.survival:  # the length includes the target's token
        words.insert(0, f"SGLANG_SIMULATE_ACC_LEN={1 + sum(plan.survival):.4g}")
    if plan.target_revision:
        words += ["--revision", plan.target_revision]
    if plan.concurrency > SGLANG.default_max_concurrency:
        words += ["--max-running-requests", str(plan.concurrency)]
    words += drafting_flags(how)
    to_do, mode = [], DraftingMode.GREEDY if how.kind.is_model else None
    if how.method == "ngram":
        to_do = SGLANG.other_lookup(plan, "looks up n-grams in the texts of all requests")
    if not scheduled:
        return Written(shlex.join(words), mode, to_do=to_do)
    several = ", and only if the target has one such layer" * (how.method == "mtp")
    to_do.append(
        f"serve without attention data parallelism and two-batch overlap{several}: else SGLang "
        f"drafts {plan.longest} tokens at every load"
    )
    steps = {str(first): {"candidate_steps": [k]} for first, _, k in plan.schedule}
    words += ["--speculative-adaptive", "--speculative-adaptive-config", "FILE"]
    return Written(json.dumps(steps), mode, scheduled, shlex.join(words), to_do)


SGLANG = Engine(
    key="sglang",
    name="SGLang",
    methods=("draft-model", "ngram", "eagle3", "mtp", "dflash", "dspark", "raw"),
    option=lambda how: shlex.join(drafting_flags(how)),
    misreads=_misreads,
    own_dspark=lambda k: f"--speculative-algorithm DSPARK --speculative-dspark-block-size {k}",
    quantizes=_QUANTIZES,
    # `_validate_vocab_compatibility`: config.vocab_size, then both get_vocab() as a whole.
    rules=(
        ("other_size", "refuses", "it needs equal vocab_size, here {}"),
        ("other_vocabulary", "refuses", "it needs the same tokens in both, and {}"),
        ("always", "accepts", "the same vocabulary in both"),
    ),
    short_context=KEEPS_DRAFTING,
    start=Starting(
        command="{python} -m sglang.launch_server {args}",
        flags=_start_flags,
        reserved_flags=(
            *("--model-path", "--model", "--port", "--speculative-algorithm"),
            *("--speculative-num-steps", "--speculative-num-draft-tokens"),
            *("--speculative-draft-model-path", "--speculative-draft-model"),
        ),
        log_hints={
            "No module named 'sglang'": "sglang is not installed in the Python that runs "
            "draftbench: name another, --engine-command "
            '"/path/to/python -m sglang.launch_server {args}"'
        },
    ),
    server=SglangServer,
    default_max_concurrency=48,  # as soon as it speculates
    max_concurrency_names=("max_running_requests", "--max-running-requests"),
    drafting_settings=("speculative_model", "speculative_eagle_topk", "max_running_requests"),
    number_types=("dtype", "quantization"),
    form="written for SGLang 0.5.23",
    write=_write,
    synthetic="at their mean",
    sampling="SGLang samples by the checkpoint's generation_config.json",
    sources=(
        Source("flags of STANDALONE and NGRAM", "0.5.23 arg_groups/fields/spec.py", "0.5.23"),
        Source("equal vocabularies", "0.5.23 speculative/standalone_worker_v2.py", "0.5.23"),
        Source("generation_config.json", "0.5.23 arg_groups/fields/serving.py", "0.5.23"),
        Source("48 requests at once", "0.5.23 arg_groups/speculative_hook.py", "0.5.23"),
        Source("no rejection sampling", "0.5.23 arg_groups/speculative_hook.py", ""),
        Source("the draft's context", "0.5.23 speculative/standalone_worker_v2.py", ""),
        Source("mean of synthetic acceptance", "0.5.23 speculative/spec_utils.py", ""),
        Source("draft lengths by load", "0.5.23 speculative/adaptive_spec_params.py", "0.5.23"),
        Source("NEXTN", "0.5.23 arg_groups/speculative_hook.py", "0.5.23"),
        Source("DSPARK of the target", "0.5.23 arg_groups/speculative_hook.py", ""),
        Source("block sizes of DFLASH and DSPARK", "0.5.23 arg_groups/speculative_hook.py", ""),
        Source("the format of block drafters", "0.5.23 speculative/dflash_utils.py", ""),
    ),
)
