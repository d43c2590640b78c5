"""vLLM, asked by `/v1/completions`. It gives a request's rounds one by one if it was started with
`--per-request-spec-decode-metrics detailed --enable-per-request-metrics`. Without the first flag,
which 0.28 and older lack, its counters are read around each request that is alone in flight. Seen
with 0.32:

- The ids hold the end token, a stop token, and the tokens of a stop string up to the one that
  completed it.
- Only steps with drafts are listed. Tokens accepted past the limit or the end of the response are
  counted. A request that ended at a stop string has no rounds.
- With speculation a `min_p` above 0 is refused. On a CPU it then writes noise above temperature 0
  (mean log p -11 where greedy text has -0.7, nothing accepted) and dies of a top-k.
- On a CPU, DFlash's keys of the text are normed in every layer by the first layer's weights.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from draftbench.drafts.kind import Method
from draftbench.drafts.speculation import Speculation
from draftbench.engines.engine import (
    Engine,
    ServePlan,
    ServerStart,
    Source,
    Starting,
    Version,
    Written,
)
from draftbench.engines.faults import garbage, unless_refused
from draftbench.engines.flags import revision_flags, with_length
from draftbench.engines.openai import OpenAiEvent, OpenAiServer
from draftbench.engines.server import (
    Answer,
    Ask,
    ServerFacts,
    TokenServer,
    accepted_at_least,
    margin_of,
)
from draftbench.errors import UsageError
from draftbench.hub import split_revision
from draftbench.records import DraftingMode, LookupRule, RoundCounts

# By this variable vLLM takes one of its two model runners, which look up prompts differently.
MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
# The first version whose answers tell their rounds; an older one ends at the flag that asks for it.
TELLS_ROUNDS = (0, 29)
# The first version that knows all fields written here, and lets engines with a schedule run in
# parallel, according to vLLM's wheels on PyPI.
_OLDEST = (0, 26)
# From these on, draft models and n-grams run on vLLM's second runner by default.
_DRAFT_RUNNER, _NGRAM_RUNNER = (0, 31), (0, 32)
_QUANTIZES = {"fp8": "fp8_per_channel"}
_TOLD = re.compile(
    r"\b(dtype|max_seq_len|tensor_parallel_size|pipeline_parallel_size|data_parallel_size"
    r"|quantization|kv_cache_dtype|enforce_eager|enable_chunked_prefill)=([^,()\s]{1,80})"
)
_SPECULATION = re.compile(
    r"SpeculativeConfig\(method='([\w-]{1,40})'(?:, model='?([^',]{1,400})'?)?"
    r"[^)]*?num_spec_tokens=(\d{1,3})"
)
_CACHING = re.compile(r'enable_prefix_caching="(True|False)"')


def speculative_config(speculation: Speculation) -> dict[str, Any]:
    """The fields of vLLM's `--speculative-config`. If it translates tokens, it drafts greedily."""
    length = {"num_speculative_tokens": speculation.k}
    if speculation.method == "raw":
        fields = length | with_length(speculation.raw or {}, speculation.k)
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
    if speculation.method == "suffix-alone":
        return {"method": "suffix", **length, "suffix_decoding_max_cached_requests": 0}
    if speculation.model is None:
        return {"method": speculation.method, **length}
    model, revision = split_revision(speculation.model)
    method = speculation.method.replace("draft-model", "draft_model")
    fields = {"method": method, "model": model, **length}
    if revision is not None:
        fields["revision"] = revision
    if not speculation.kind.is_model:
        return fields
    if level := _QUANTIZES.get(speculation.quant):
        fields["quantization"] = level
    if speculation.translated:
        fields |= {"use_heterogeneous_vocab": True, "draft_sample_method": "greedy"}
    elif speculation.mode is not DraftingMode.GREEDY:
        fields["draft_sample_method"] = "probabilistic"
    return fields


def drafting_flags(speculation: Speculation) -> list[str]:
    """vLLM's flags for drafting."""
    fields = json.dumps(speculative_config(speculation), separators=(",", ":"))
    return ["--speculative-config", fields]


def _misreads(method: Method, raw: Mapping[str, Any], layers: list[int], usual: list[int]) -> str:
    """How it uses a head differently from its training."""
    if method == "eagle3" and layers and len(layers) != 3:
        return f"takes the states of three layers, and this head reads {len(layers)}"
    if raw.get("markov_head_type", "vanilla") != "vanilla":
        return f"knows no {raw['markov_head_type']} Markov head"
    drafting = {**raw, **(raw.get("dflash_config") or {})}
    if method == "dflash" and drafting.get("sample_from_anchor"):
        return "does not start with a DFlash drafter that drafts at the last known token's place"
    if "speculators_model_type" in raw and method == "dspark" and "sample_from_anchor" not in raw:
        return "takes sample_from_anchor for false where config.json does not say it"
    # transformers_utils/configs/speculators/algos.py: of DFlash one flag for layers of both kinds,
    # true unless it is given; of DSpark none.
    kinds = (raw.get("transformer_layer_config") or {}).get("layer_types") or ["full_attention"]
    slides, both_ways = "sliding_attention" in kinds, raw.get("sliding_window_non_causal")
    if method == "dflash" and both_ways is False and set(kinds) != {"sliding_attention"}:
        return (
            "lets no place of a block see what follows, since config.json says that "
            "sliding_window_non_causal is false, which speculators means for sliding layers alone: "
            "write true into it if the head has none"
        )
    if "speculators_model_type" in raw and method == "dflash" and slides and both_ways is None:
        return (
            "takes sliding_window_non_causal for true, which config.json does not say: write false "
            "into it"
        )
    if "speculators_model_type" in raw and method == "dspark" and slides and both_ways:
        return "lets no place of a sliding layer see what follows, whatever config.json says of it"
    # gpu/spec_decode/eagle/eagle3_utils.py reads ids at the top alone.
    if (
        method == "eagle3"
        and "eagle_aux_hidden_state_layer_ids" not in raw
        and (layers not in ([], usual))
    ):
        return f"does not read the layer ids in eagle_config, and takes what enters {usual}"
    if layers != sorted(layers):
        return f"sorts the layers that a head reads, and this one reads {layers}"
    return ""


# What the log of a server that did not start says, and what helps.
_LOG_HINTS = {
    "No module named 'vllm'": "vllm is not installed in the Python that runs draftbench: name "
    'another, --engine-command "/path/to/python -m vllm.entrypoints.openai.api_server {args}"',
    "unrecognized arguments: --enable-per-request-metrics": "vLLM has this flag since 0.25: "
    "start that or a newer one",
    "Available memory on node": "set VLLM_CPU_KVCACHE_SPACE in the environment to the GiB that "
    'its cache may take, e.g. 1, or add --engine-args "--gpu-memory-utilization 0.3"',
    "Free memory on device": 'add --engine-args "--gpu-memory-utilization 0.5", or end what '
    "else holds memory there",
}


def _start_flags(start: ServerStart) -> list[str]:
    target, revision = revision_flags(start.target, "--revision")
    words = ["--model", target, *revision, "--no-enable-prefix-caching"]
    words += ["--logprobs-mode", "processed_logprobs", "--enable-per-request-metrics"]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    words += start.limits("--max-model-len", "--max-num-seqs", VLLM.default_max_concurrency)
    if start.speculation is not None:
        words += drafting_flags(start.speculation)
        if _tells_rounds(start.version):
            words += ["--per-request-spec-decode-metrics", "detailed"]
    return words


def _tells_rounds(version: str | None) -> bool:
    """Whether a vLLM's answers can tell their rounds; of an unknown version they are taken to."""
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})", version or "")
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= TELLS_ROUNDS


class VersionPage(msgspec.Struct):
    version: str


class VllmServerInfo(msgspec.Struct):
    vllm_config: str = ""


class VllmServer(TokenServer, OpenAiServer):
    engine = "vllm"
    returns_ids = True
    returns_since = "vLLM 0.10.2 and later do"
    constraints = frozenset({"json", "json_object", "regex", "choice", "grammar", "tool"})
    owner = "vllm"

    def body(self, ask: Ask) -> dict[str, Any]:
        body = super().body(ask)
        # Nothing is to be added to the ids of a prompt or an answer.
        body |= {"add_special_tokens": False, "ignore_eos": False, "min_tokens": 0}
        # With a salt of its own it shares no prefix with another request.
        body |= {"return_token_ids": True, "cache_salt": os.urandom(16).hex()}
        if ask.log_p:
            body |= {"logprobs": 0, "return_tokens_as_token_ids": True}
        return body

    def constrained(self, ask: Ask) -> dict[str, Any]:
        # A forced call is held to the schema of its arguments, as vLLM's chat route does.
        named = {"tool": "json"}
        given = {named.get(kind, kind): value for kind, value in (ask.constraint or {}).items()}
        return {"structured_outputs": given} if given else {}

    def take(self, event: OpenAiEvent, answer: Answer) -> None:
        super().take(event, answer)
        if event.metrics is None:
            return
        if event.metrics.generation_time_ms is not None:
            answer.decode_seconds = event.metrics.generation_time_ms / 1e3
        stated = event.metrics.speculative_decoding
        if stated is None:
            return
        drafted, accepted = stated.per_step_drafted, stated.per_step_accepted
        if drafted is not None and accepted is not None and len(drafted) != len(accepted):
            raise garbage("the server counts proposed and accepted tokens of different rounds")
        answer.counts = RoundCounts(
            rounds=stated.num_spec_steps,
            drafted=stated.num_draft_tokens,
            accepted=stated.num_accepted_draft_tokens,
            by_position=accepted_at_least(stated.acceptance_histogram),
            by_round=None
            if drafted is None or accepted is None
            else tuple(zip(drafted, accepted, strict=True)),
        )

    def rounds_of(self, answer: Answer, around: RoundCounts) -> RoundCounts | None:
        if answer.counts or answer.error or around.rounds is None or around.accepted is None:
            return answer.counts
        # A round writes what it accepts and one token more. The last may go past the end, and
        # another may have been begun; what is beyond these two is another client's.
        past_end = 2 * (len(around.by_position or ()) + 1)
        alone = around.rounds + around.accepted < answer.output_tokens + past_end
        return around if alone and not around.impossible_in(answer.output_tokens) else None

    def facts(self) -> ServerFacts:
        page = self.http.run(self.http.page("/metrics"))
        counters = self.counted_on(page).total
        caching = _CACHING.search(page)
        k = len(counters.by_position) if counters.by_position else 0 if page else None
        method = "none" if k == 0 else None
        settings: dict[str, str] = {}
        with unless_refused():  # it answers in developer mode only
            config = self.http.json("/server_info", type=VllmServerInfo).vllm_config
            settings = dict(_TOLD.findall(config))
            if speculation := _SPECULATION.search(config):
                method, k = speculation[1], int(speculation[3])
                if speculation[2]:
                    settings["speculative_model"] = speculation[2]
        version, card = self.http.json("/version", type=VersionPage).version, self._card()
        # Rounds that answers do not tell, and what other clients were answered.
        self.counts_around = counters.by_position is not None or counters.written is not None
        if card.root:
            settings["weights"] = PurePath(card.root).name
        return ServerFacts(
            engine=self.engine,
            version=version,
            model=self.model,
            context_length=card.max_model_len,
            prefix_cache=None if caching is None else caching[1] == "True",
            method=method,
            k=k,
            settings=settings,
        )

    def prompt_ids(self, prompt: Sequence[int] | str) -> list[int] | None:
        return self.one_token(prompt).choices[0].prompt_token_ids

    def margin(self, ids: Sequence[int]) -> float | None:
        answer = self.one_token(ids, logprobs=2, return_tokens_as_token_ids=True)
        stated = answer.choices[0].logprobs
        top = (stated.top_logprobs or [None])[0] if stated else None
        return margin_of((top or {}).values())


def _write(plan: ServePlan, version: Version) -> Written:
    """The JSON of `--speculative-config` for one version; k is its `num_speculative_tokens`.
    Raises: UsageError, this version cannot draft like this.
    """
    if version < _OLDEST:
        raise VLLM.too_old("0.26", "configuration that draftbench knows")
    words = ["vllm", "serve", plan.target]
    how = plan.speculation
    if plan.target_revision:
        words += ["--revision", plan.target_revision]
    to_do: list[str] = []
    fields = speculative_config(plan.speculation_at(plan.longest))
    if plan.schedule:
        fields["num_speculative_tokens_per_batch_size"] = [list(step) for step in plan.schedule]
        to_do += _unscheduled(plan, version)
    if plan.survival:
        fields["rejection_sample_method"] = "synthetic"
        fields["synthetic_acceptance_rates"] = list(plan.survival)
    mode = None
    if how.method == "ngram" and version < _NGRAM_RUNNER:
        to_do += VLLM.other_lookup(plan, "takes the first match in the prompt")
    elif "suffix" in how.method:
        to_do.append("install arctic-inference beside vLLM, whose suffix trees it uses")
    elif how.kind.is_model:
        greedy = how.mode is DraftingMode.GREEDY
        if plan.translated and not greedy:
            raise UsageError(
                "vLLM refuses this pair: its vocabularies differ",
                hint="it translates tokens of greedy drafts; sweep with --mode greedy",
            )
        if not plan.translated and version >= _DRAFT_RUNNER:
            to_do.append(
                "vLLM's default runner (0.31 to 0.33) runs a draft model without CUDA graphs: a "
                "small draft costs more there"
            )
        mode = DraftingMode.GREEDY if greedy else DraftingMode.SAMPLED_TEMPERATURE_ONLY
        fields.setdefault("draft_sample_method", "greedy")
    command = f'{shlex.join(words)} --speculative-config "$(cat FILE)"'
    return Written(json.dumps(fields), mode, bool(plan.schedule), command, to_do)


def _unscheduled(plan: ServePlan, version: Version) -> list[str]:
    """Where it drafts more than the schedule says, and what to do about it. EAGLE-3 heads and a
    single layer of the target's own follow it on both of its runners.
    """
    method, every = plan.speculation.method, f"{plan.longest} tokens at every load"
    notes = []
    if plan.speculation.kind.is_model and not plan.translated and version >= _DRAFT_RUNNER:
        notes.append(
            f"set {MODEL_RUNNER}=0: vLLM's default runner (0.31 to 0.33) drafts {every} and "
            "verifies only the schedule's"
        )
    elif method == "mtp" and plan.longest > 1:
        notes.append(
            f"if the target has several such layers, export for one load with --concurrency: vLLM "
            f"0.33 drafts {every} by them and verifies only the schedule's"
        )
    elif method in ("dflash", "dspark"):
        notes.append(
            "measure the speed there at each load: vLLM's pass over a block has the same width at "
            "every load, and is left out only where the schedule says 0"
        )
    return [
        *notes,
        f"serve without data parallelism: with it vLLM drops the schedule and drafts {every}",
    ]


VLLM = Engine(
    key="vllm",
    name="vLLM",
    methods=(
        *("draft-model", "ngram", "suffix", "suffix-alone"),
        *("eagle3", "mtp", "dflash", "dspark", "raw"),
    ),
    option=lambda how: shlex.join(drafting_flags(how)),
    own_dspark=lambda k: (
        f"""--speculative-config '{{"method":"dspark","num_speculative_tokens":{k}}}'"""
    ),
    # It always proposes k tokens; its older runner, which it uses on a CPU, takes the first
    # occurrence (v1/spec_decode/ngram_proposer.py).
    lookup=LookupRule(fills=True),
    older_lookup=(MODEL_RUNNER, LookupRule(first=True)),
    quantizes=_QUANTIZES,
    # `verify_equal_vocab_size_if_draft_model` compares sizes, unless words are translated.
    rules=(
        ("other_size", "with an option", "it translates tokens between vocabularies of {}"),
        ("other_tokenizer", "with an option", "it translates tokens, since {}"),
        ("rows", "accepts", "vocab_size is {} in both"),
    ),
    short_context="from 0.33 on it cuts the server's context to the draft's, {} tokens "
    "(target: {})",
    misreads=_misreads,
    head_defaults={"norm_before_residual": True},
    start=Starting(
        command="{python} -m vllm.entrypoints.openai.api_server {args}",
        flags=_start_flags,
        reserved_flags=(
            *("--model", "--port", "--speculative-config", "-sc"),
            *("--spec-method", "--spec-model", "--spec-tokens"),
        ),
        sampling_mode=DraftingMode.SAMPLED_TEMPERATURE_ONLY,
        takes_dtype=True,
        environment={"VLLM_NO_USAGE_STATS": "1"},
        # Otherwise it chooses which cores its threads are bound to.
        thread_environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        read_variables=(MODEL_RUNNER,),
        log_hints=_LOG_HINTS,
    ),
    server=VllmServer,
    default_max_concurrency=256,
    drafting_settings=("speculative_model", "enforce_eager", "enable_chunked_prefill"),
    number_types=("dtype", "quantization"),
    log_p_flag="--logprobs-mode processed_logprobs",
    form="written for vLLM 0.33, and parsed by vLLM 0.32",
    write=_write,
    synthetic="by position",
    sampling="vLLM samples by the checkpoint's generation_config.json",
    sources=(
        Source("fields of --speculative-config", "0.33.0 config/speculative.py", "0.32.0"),
        Source("draft lengths by batch size", "0.33.0 v1/spec_decode/dynamic", "0.32.0"),
        Source("vocab_size must be equal", "0.33.0 config/speculative.py", "0.32.0"),
        Source("fp8_per_channel", "0.33.0 config/quantization.py; not in 0.23", "0.32.0"),
        Source("a draft's schedule ignored, no CUDA graphs", "0.33.0, 0.31.0; not 0.30", ""),
        Source("a schedule of several own layers, of blocks", "0.33.0 gpu/spec_decode", ""),
        Source("no anchored DFlash", "0.33.0 gpu/spec_decode/dflash/speculator.py", ""),
        Source("the causality of speculators' DFlash", "0.33.0 speculators/algos.py", ""),
        Source("no schedule with data parallelism", "0.33.0 config/vllm.py", ""),
        Source("n-grams from the last match", "0.33.0 gpu/spec_decode/ngram; not in 0.31", ""),
        Source("use_heterogeneous_vocab", "0.25.0 config/speculative.py", "0.32.0"),
        Source("draft_sample_method of draft models", "0.23.0 v1/spec_decode", "0.32.0"),
        Source("context cut to the draft's", "0.33.0 config/vllm.py; not in 0.32", ""),
        Source("synthetic acceptance", "0.33.0 config/speculative.py; not in 0.19", "0.32.0"),
        Source("method mtp", "0.33.0 config/speculative.py", "0.32.0"),
        Source("method dspark without a model", "0.33.0 config/speculative.py", ""),
        Source("generation_config.json", "0.32.0 config/model.py", ""),
    ),
)
