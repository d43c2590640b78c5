"""llama.cpp's llama-server by its own route `/completion`. Seen with 0.7:

- The ids hold the end token, and the tokens of a stop string up to the one that completed it.
- A streamed event holds one id, even where a character was spread over several tokens. The missing
  ids are asked for by tokenizing the event's text, and stay unknown if that gives another number of
  ids or another last one.
- `timings` sum a request's drafted and accepted tokens, those past its end included; a drafted end
  token counts only if it is the last one drafted.
- Rounds and positions are counted for all requests together, so the counters are read before and
  after a request that is alone in flight. A last token for which nothing is drafted is no round.
- Log-probabilities of tokens that a draft proposed are not computed.
- Truncation (top-k, top-p, min-p) comes before the temperature. A draft proposes its best token at
  any temperature, accepted where the target's sampler draws the same one. Replay needs no
  probabilities for that: the responses are those draws.
- It scores no prompt, and does not say whether it caches prompts; every request asks it not to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from draftbench.engines.client import garbage, other_ids
from draftbench.engines.engine import (
    Answer,
    Ask,
    Id,
    Server,
    ServerEvent,
    ServerFacts,
    ServerStart,
    Tokens,
    check_beginnings,
    event_of,
    margin_of,
    one_token,
)
from draftbench.models.drafting import llama_cpp_flags
from draftbench.records import Amount, Count, RoundCounts

UNKNOWN = -1  # an id that the stream did not tell
_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}


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


class LlamaCpp(Server):
    engine = "llama.cpp"
    route = "/completion"
    counts_around = True
    constraints = frozenset({"json", "json_object", "choice", "grammar"})
    owner = "llamacpp"
    command = "llama-server {args}"
    taken = (
        *("-m", "--model", "--port", "-np", "--parallel"),
        *("-md", "--model-draft", "--spec-draft-model", "--draft", "--draft-n", "--draft-max"),
        *("--spec-type", "--spec-draft-n-max"),
    )
    draws = None  # --spec-draft-sampling takes only the draft's ten best tokens, unlike replay

    @classmethod
    def flags(cls, start: ServerStart) -> list[str]:
        requests = start.concurrency
        # The context is shared out evenly; without -np there are four places.
        context = 0 if start.context_length is None else start.context_length * requests
        words = ["-m", start.target, "-np", str(requests), "-c", str(context)]
        words += ["--metrics", "--no-cache-prompt", "--cache-ram", "0"]
        if start.threads is not None:
            words += ["--threads", str(start.threads)]
        return words if start.speculation is None else [*words, *llama_cpp_flags(start.speculation)]

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
        counted = self.counters().by_position
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
