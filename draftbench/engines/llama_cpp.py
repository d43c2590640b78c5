"""llama.cpp's llama-server, asked by its own route `/completion`. Seen with 0.7:

- The ids hold the end token, and the tokens of a stop string up to the one that completed it.
- A streamed event holds one id, even where a character was spread over several tokens. The missing
  ids are asked for by tokenizing the event's text, and stay unknown if that gives another number of
  ids or another last one.
- `timings` sum a request's drafted and accepted tokens, those past its end included; a drafted end
  token counts only if it is the last one drafted.
- An unsure token at which a draft stops is not counted as drafted, nor a round that proposes none;
  an answer without a proposal has no counts. No route tells at which threshold a draft stops.
- Rounds and positions are counted for all requests together, so the counters are read before and
  after a request that is alone in flight. A last token for which nothing is drafted is no round.
- Log-probabilities of tokens that a draft proposed are not computed.
- Where several requests are answered at once and the draft's tokens are chosen in the graph, as by
  default, blocks of more than one token are drafted wrongly (DFlash, DSpark), and with an EAGLE-3
  head the answers break off.
- Truncation (top-k, top-p, min-p) comes before the temperature. A draft proposes its best token at
  any temperature, accepted where the target's sampler draws the same one. Replay needs no
  probabilities for that: the responses are those draws.
- It scores no prompt, and does not say whether it caches prompts; every request asks it not to.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, ClassVar

import msgspec

from draftbench.drafts.kind import Method
from draftbench.drafts.speculation import Speculation
from draftbench.engines.counters import Counters
from draftbench.engines.engine import (
    Engine,
    ServePlan,
    ServerStart,
    Source,
    Starting,
    Version,
    Written,
)
from draftbench.engines.faults import garbage, other_ids
from draftbench.engines.flags import passed_flags
from draftbench.engines.openai import OpenAiServer
from draftbench.engines.pair_rules import PairFacts, named
from draftbench.engines.server import (
    Answer,
    Ask,
    Id,
    Server,
    ServerEvent,
    ServerFacts,
    Tokens,
    check_beginnings,
    event_of,
    margin_of,
    one_token,
)
from draftbench.memory import level_of
from draftbench.records import Amount, Count, DraftingMode, LookupRule, RoundCounts

UNKNOWN = -1  # an id that the stream did not tell
# Builds: the first known with today's flags, with --spec-synth-rates, and with
# --spec-draft-sampling.
_OLDEST, _RATES, _SAMPLING = (9626, 0), (10649, 0), (11368, 0)

# SPEC_VOCAB_MAX_SIZE_DIFFERENCE: vocabularies may differ by as many rows.
_MOST_ROWS_APART = 128
# The program that makes a head's .gguf file.
_CONVERT_HEAD = "llama.cpp's `convert_hf_to_gguf.py HEAD --target-model-dir TARGET`"
_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}
_ROUNDED = re.compile(r"^\w+:tokens_predicted_total(?:\{[^\n]*\})? [\d.]+e", re.MULTILINE)


def drafting_flags(speculation: Speculation) -> list[str]:
    """llama-server's flags for drafting since they were renamed in April 2026. Without a rule every
    round drafts k tokens, however sure the draft is; prompt lookup uses n-grams of one size.
    """
    if speculation.method == "raw":
        return passed_flags(speculation)
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
    threshold = 0 if speculation.stop is None else speculation.stop.threshold
    return [*words, "--spec-draft-p-min", f"{threshold:g}"]


def _for_several(speculation: Speculation | None, concurrency: int) -> list[str]:
    """What a head needs to draft for several requests at once as it does for each alone."""
    head = speculation is not None and speculation.method in ("eagle3", "mtp", "dflash", "dspark")
    return ["--no-spec-draft-backend-sampling"] if head and concurrency > 1 else []


def _own_findings(pair: PairFacts) -> dict[str, str]:
    """What it asks besides: begin and end tokens count only where the target adds them."""
    words, target, draft = pair.vocabulary, pair.target_tokenizer, pair.draft_tokenizer
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
        "rows_apart": f"sizes differ by {apart} rows" if apart else "same size",
        "other_regular_word": named(words.first_regular_difference),
        "other_kind": f"{target.kind} and {draft.kind}" if target.kind != draft.kind else "",
        "other_end": next(iter(other_ends), ""),
        "no_begin": "no bos token" if target.adds_bos and "bos_token" not in draft.ids else "",
    }


def _misreads(method: Method, raw: Mapping[str, Any], layers: list[int], usual: list[int]) -> str:
    """How it uses a head differently from its training."""
    if method == "eagle3" and layers and len(layers) != 3:
        return f"takes the states of three layers, and this head reads {len(layers)}"
    if raw.get("markov_head_type", "vanilla") != "vanilla":
        return f"knows no {raw['markov_head_type']} Markov head"
    if raw.get("fc_norm") or raw.get("norm_output"):
        return "knows neither fc_norm nor norm_output"
    if method not in ("dflash", "dspark"):
        return ""
    layer = raw.get("transformer_layer_config") or raw
    drafting = {**layer, **raw, **(raw.get("dflash_config") or {})}
    if method == "dflash" and "speculators_model_type" in raw:
        return "converts DFlash drafters in their authors' format alone, not in that of speculators"
    if method == "dflash" and drafting.get("sample_from_anchor"):
        return "drafts nothing at the last known token's place, where this head drafts the next"
    if drafting.get("target_hidden_size", layer.get("hidden_size")) != layer.get("hidden_size"):
        return "takes the target's states to be as wide as the drafter"
    # conversion/qwen.py writes no other key that says what a place sees.
    stated = raw.get("is_causal", (raw.get("dflash_config") or {}).get("causal", raw.get("causal")))
    slides = "sliding_attention" in (drafting.get("layer_types") or ())
    if slides and stated is None and not raw.get("sliding_window_non_causal"):
        return "lets places of sliding layers see the whole block, and this head's see none later"
    return ""


def _start_flags(start: ServerStart) -> list[str]:
    concurrency = start.concurrency
    # The context is shared out evenly; without -np there are four places.
    context = 0 if start.context_length is None else start.context_length * concurrency
    words = ["-m", start.target, "-np", str(concurrency), "-c", str(context)]
    words += ["--metrics", "--no-cache-prompt", "--cache-ram", "0"]
    if start.threads is not None:
        words += ["--threads", str(start.threads)]
    if start.speculation is None:
        return words
    own = drafting_flags(start.speculation)
    return [*words, *own, *_for_several(start.speculation, concurrency)]


class Timings(msgspec.Struct):
    cache_n: Count | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None
    predicted_ms: Amount | None = None  # after the first token


class Top(msgspec.Struct):
    logprob: float | None = None
    prob: Amount | None = None


class Probability(Top):
    top_logprobs: list[Top] | None = None
    top_probs: list[Top] | None = None


class LlamaCppEvent(ServerEvent):
    content: str = ""
    tokens: tuple[Id, ...] = ()
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    prompt: str | None = None
    stop: bool = False
    stop_type: str = ""
    timings: Timings | None = None
    completion_probabilities: list[Probability] | None = None
    generation_settings: dict[str, Any] | None = None


class DefaultSettings(msgspec.Struct):
    n_ctx: Count | None = None


class Props(msgspec.Struct):
    total_slots: Count | None = None
    model_path: str | None = None
    model_ftype: str | None = None
    build_info: str | None = None
    default_generation_settings: DefaultSettings | None = None


class Detokenized(msgspec.Struct):
    content: str


class AppliedTemplate(msgspec.Struct):
    prompt: str


class LlamaServer(Server):
    engine = "llama.cpp"
    route = "/completion"
    counts_around = True
    constraints = frozenset({"json", "json_object", "choice", "grammar"})
    owner = "llamacpp"
    counter_names: ClassVar[Mapping[str, str]] = {
        **OpenAiServer.counter_names,  # vLLM's, but for one
        "written": "tokens_predicted_total",
    }

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling = ask.sampling
        body: dict[str, Any] = {
            "prompt": ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt),
            "n_predict": ask.limit,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "min_p": sampling.min_p or 0.0,
            "typical_p": 1.0,
            "top_n_sigma": -1.0,
            "xtc_probability": 0.0,
            "dynatemp_range": 0.0,
            "mirostat": 0,
            "dry_multiplier": 0.0,
            "repeat_penalty": 1.0,
            "repeat_last_n": 0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": -1 if sampling.seed is None else sampling.seed % (2**32 - 1),
            "stop": list(ask.stop),
            "ignore_eos": False,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }
        if ask.log_p:
            body |= {"n_probs": 1, "post_sampling_probs": True}
        match ask.constraint:
            case {"json": schema}:
                body["json_schema"] = schema
            case {"json_object": _}:
                body["json_schema"] = {"type": "object"}
            case {"grammar": grammar}:
                body["grammar"] = grammar
            case {"choice": texts}:
                quoted = (json.dumps(text, ensure_ascii=False) for text in texts)
                body["grammar"] = f"root ::= {' | '.join(quoted)}"
        return body

    def read(self, data: bytes, answer: Answer) -> None:
        if (event := event_of(data, LlamaCppEvent, answer)) is None:
            return
        assert answer.tokens is not None
        answer.text += event.content
        written = event.tokens_predicted
        new = len(event.tokens) if written is None else written - answer.count
        if (not event.tokens and not event.stop and new) or new < len(event.tokens):
            raise garbage("the ids do not add up to `tokens_predicted`")
        if missing := min(new, answer.ask.limit) - len(event.tokens):
            answer.gaps.append((answer.count, new, event.content))
            answer.tokens += [UNKNOWN] * missing
        answer.tokens += event.tokens
        answer.count += new
        if event.completion_probabilities is not None and answer.log_p is not None:
            for stated in event.completion_probabilities:
                if not stated.top_probs or not stated.prob:
                    answer.log_p = None  # it came from a draft
                    break
                answer.log_p.append(math.log(stated.prob))
        if event.stop:
            answer.ended = True
            answer.finish = _FINISH.get(event.stop_type, event.stop_type)
            answer.prompt_tokens = event.tokens_evaluated or 0
            if event.timings:
                answer.cached_tokens = event.timings.cache_n
                if event.timings.draft_n_accepted is not None:
                    answer.counts = RoundCounts(
                        drafted=event.timings.draft_n, accepted=event.timings.draft_n_accepted
                    )
                if event.timings.predicted_ms is not None:
                    answer.decode_seconds = event.timings.predicted_ms / 1e3

    def counted_on(self, page: str) -> Counters:
        counts = super().counted_on(page)
        # Six digits of a larger number are no exact count.
        return counts.without("written") if _ROUNDED.search(page) else counts

    def rounds_of(self, answer: Answer, around: RoundCounts) -> RoundCounts | None:
        # An answer without sums drafted nothing. Other sums hold another client's requests.
        stated = answer.counts or RoundCounts(drafted=0, accepted=0)
        same = (around.drafted, around.accepted) == (stated.drafted, stated.accepted)
        if not same or around.by_position is None or sum(around.by_position) != stated.accepted:
            return answer.counts
        return answer.counts if around.impossible_in(answer.output_tokens) else around

    async def settle(self, answer: Answer) -> None:
        tokens = answer.tokens
        for start, count, text in answer.gaps:
            body = {"content": text, "add_special": False, "parse_special": False}
            found = (await self.http.fetch("/tokenize", body, type=Tokens)).tokens if text else []
            if tokens is None or len(found) != count or found[-1] != tokens[start + count - 1]:
                answer.tokens = None
                return
            tokens[start : start + count] = found

    def facts(self) -> ServerFacts:
        props = self.http.json("/props", type=Props)
        written = one_token(self, " ", LlamaCppEvent)
        types = str((written.generation_settings or {}).get("speculative.types", ""))
        methods = [name for name in types.split(",") if name not in ("", "none")]
        weights = props.model_path and PurePath(props.model_path).name
        stated = {"weights": weights, "ftype": props.model_ftype, "slots": props.total_slots}
        settings = {name: str(value) for name, value in stated.items() if value}
        counted = self.counters().total.by_position
        return ServerFacts(
            engine=self.engine,
            version=props.build_info,
            model=self.model or props.model_path,
            context_length=(props.default_generation_settings or DefaultSettings()).n_ctx,
            method=",".join(methods) or ("none" if types else None),
            k=len(counted) if counted else None if methods or not types else 0,
            settings=settings,
        )

    def echo(self, prompts: Sequence[Sequence[int] | str]) -> None:
        check_beginnings(prompts)
        for prompt in prompts:
            answer = one_token(self, prompt, LlamaCppEvent)
            if isinstance(prompt, str):
                continue
            text = self.http.json("/detokenize", {"tokens": list(prompt)}, type=Detokenized).content
            read = text if answer.prompt is None else answer.prompt
            # Only one of the two has the spaces before punctuation.
            same = read.replace(" ", "") == text.replace(" ", "")
            if answer.tokens_evaluated != len(prompt) or not same:
                raise other_ids()

    def tokenize(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": True}
        return self.http.json("/tokenize", body, type=Tokens).tokens

    def apply_template(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self.http.json(
            "/apply-template", {"messages": messages}, type=AppliedTemplate
        ).prompt

    def margin(self, ids: Sequence[int]) -> float | None:
        stated = one_token(self, ids, LlamaCppEvent, n_probs=2).completion_probabilities
        return margin_of(t.logprob for t in (stated[0].top_logprobs or ())) if stated else None


def _write(plan: ServePlan, version: Version) -> Written:
    """The llama-server command, with the flags of one build; k is its `n-max`.
    Raises: UsageError, this build cannot draft like this.
    """
    if version < _OLDEST:
        raise LLAMA_CPP.too_old("b9626", "flags that draftbench knows")
    how = speculation = plan.speculation
    mode: DraftingMode | None = None
    (longest, shortest), concurrency = how.lookup, plan.concurrency
    differences, to_do = list[str](), list[str]()
    if speculation.stacked and how.k < shortest:  # prompt lookup could find nothing
        differences.append(f"the draft alone, as {LLAMA_CPP.too_short(shortest)}")
        speculation = replace(speculation, stacked=False)
    elif speculation.stacked and not how.kind.is_model and plan.engine != "llama.cpp":
        differences.append(
            "behind prompt lookup llama.cpp accepts a little less of a head than the run says"
        )
    if how.method == "ngram" or speculation.stacked:
        if longest > shortest:
            to_do += LLAMA_CPP.other_lookup(plan, f"only looks up n-grams of {shortest} tokens")
        if how.k < shortest:
            to_do.append(f"{LLAMA_CPP.too_short(shortest)}: with k = {how.k} it drafts nothing")
    if concurrency > 1:
        to_do.append(
            f"add -c N with {concurrency} times a request's tokens, or --kv-unified: "
            f"-np {concurrency} divides the context among as many requests"
        )
    target = LLAMA_CPP.file_of(plan.target, plan.target_quant, "target")
    converted = [plan.target] if target != plan.target else []
    if plan.draft is not None:
        head = not how.kind.is_model
        file = LLAMA_CPP.file_of(plan.draft, how.quant, "head" if head else "draft")
        speculation = replace(speculation, model=file)
        if file != plan.draft and head:
            to_do.append(f"{_CONVERT_HEAD} makes the head's GGUF file")
        elif file != plan.draft:
            converted.append(plan.draft)
    if how.kind.is_model:
        mode = DraftingMode.GREEDY
        # When llama.cpp samples drafts, it uses a request's temperature and seed, not top-k or
        # top-p.
        if how.mode is not mode and version >= _SAMPLING:
            mode = DraftingMode.SAMPLED_TEMPERATURE_ONLY
            to_do.append(
                "measure acceptance there: it draws from the draft's ten best tokens only, so "
                "fewer are accepted than in the run; builds before b11368 do not start with "
                "--spec-draft-sampling, and --engine-version b9626 writes for them"
            )
        speculation = replace(speculation, mode=mode)
        for quant in dict.fromkeys((how.quant, plan.target_quant)):
            if arguments := level_of(quant).llama_quantize:
                to_do.append(f"nearest to {quant} is `llama-quantize {arguments}`")
    if converted:
        to_do.append(
            f"convert {' and '.join(f'`{model}`' for model in converted)} to GGUF files of these "
            "names"
        )
    words = ["llama-server", "-m", target, *drafting_flags(speculation)]
    words += _for_several(speculation, concurrency)
    words += ["-np", str(concurrency), "--metrics"]  # 4 without -np
    if plan.survival:
        if version < _RATES:
            raise LLAMA_CPP.too_old("b10649", "acceptance to play back")
        words += ["--spec-synth-rates", ",".join(map(str, plan.survival))]
    if plan.on_gpu and how.method != "ngram":
        words += ["-ngl", "99", "-ngld", "99"]
    return Written(shlex.join(words), mode, differences=differences, to_do=to_do)


LLAMA_CPP = Engine(
    key="llama.cpp",
    name="llama.cpp",
    methods=("draft-model", "ngram", "eagle3", "mtp", "dflash", "dspark", "raw"),
    option=lambda how: shlex.join(drafting_flags(how)),
    own_dspark=lambda k: f"-md DSPARK.gguf --spec-type draft-dspark --spec-draft-n-max {k}",
    # Prompt lookup first, whatever order --spec-type names (common/speculative.cpp).
    stacks=True,
    # By the draft's ten best tokens, DFlash 2's candidates, or DSpark's head for it. A block is
    # drafted at once, and cut.
    stops=("draft-model", "eagle3", "mtp", "dflash", "dspark"),
    # The newest token is not looked at (common/ngram-map.cpp).
    lookup=LookupRule(unseen=1, begin=1, one_size=True),
    rounds_activations=True,
    rules=(
        ("other_kind", "refuses", "the vocabularies are {}"),
        ("too_far_apart", "refuses", f"sizes may be {_MOST_ROWS_APART} apart, here {{}}"),
        ("other_end", "refuses", "{}"),
        ("other_regular_word", "refuses", "{}"),
        ("no_begin", "with an option", "the draft names {}"),
        ("rows_apart", "accepts", "same token texts from id 5 on, {}"),
    ),
    own_findings=_own_findings,
    most_rows_apart=_MOST_ROWS_APART,
    special=" --override-kv tokenizer.ggml.bos_token_id=int:{}",
    refused="llama-server starts and serves without the draft",
    converter="llama.cpp's convert_hf_to_gguf.py",
    head_converter=_CONVERT_HEAD,
    reads_gguf=True,
    misreads=_misreads,
    start=Starting(
        command="llama-server {args}",
        flags=_start_flags,
        reserved_flags=(
            *("-m", "--model", "--port", "-np", "--parallel"),
            *("-md", "--model-draft", "--spec-draft-model", "--draft", "--draft-n", "--draft-max"),
            *("--spec-type", "--spec-draft-n-max", "--spec-draft-n-min"),
            *("--spec-draft-p-min", "--draft-p-min"),
        ),
        seconds=2.0,
        # --spec-draft-sampling takes only the draft's ten best tokens, unlike replay.
        sampling_mode=None,
    ),
    server=LlamaServer,
    max_concurrency_names=("slots", "-np"),
    shares_context=True,
    number_types=("ftype",),
    metrics_flag="llama-server: --metrics",
    form="flags of builds from May 2026 on (pull requests 22397 and 22964)",
    write=_write,
    pins=(),
    synthetic="by position",
    sampling="llama-server samples at temperature 0.8, top-k 40, top-p 0.95 and min-p 0.05",
    sources=(
        Source("--spec-draft-… and --spec-ngram-…", "0c1e57098 common/arg.cpp", "b11669"),
        Source("--spec-draft-sampling", "pull request 27694, from b11368 on", "b11669"),
        Source("rows, ids from 5, bos, eos", "0c1e57098 common/speculative.cpp", "b11669"),
        Source("slots without -np", "0c1e57098 tools/server/server.cpp", ""),
        Source("--spec-synth-rates", "pull request 27711; b10649, not in b10644", "b11669"),
        Source("sampling of a request", "0c1e57098 common/common.h", "b11669"),
        Source("--spec-type draft-mtp", "pull request 22673", "b11669"),
        Source("--spec-type draft-dspark", "pull requests 25784 and 26452", ""),
        Source("--spec-draft-p-min", "0c1e57098 common/speculative.cpp", "b11669"),
        Source("heads of several requests", "pull requests 25532, 26958; tried", "b11669"),
    ),
)
