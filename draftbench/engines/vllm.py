"""vLLM by its `/v1/completions`. It gives a request's rounds one by one if it was started with
`--per-request-spec-decode-metrics detailed --enable-per-request-metrics`. Without the first flag,
which 0.28 and older lack, its counters are read around each request that is alone in flight. Seen
with 0.32:

- The ids hold the end token, a stop token, and the tokens of a stop string up to the one that
  completed it.
- Only steps with drafts are listed. Tokens accepted past the limit or the end of the response are
  counted. A request that ended at a stop string has no rounds.
- With speculation a `min_p` above 0 is refused. On a CPU it then writes noise above temperature 0
  (mean log p -11 where greedy text has -0.7, nothing accepted) and dies of a top-k.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

import msgspec

from draftbench.engines.client import garbage, unless_refused
from draftbench.engines.counters import read_counters
from draftbench.engines.engine import (
    Answer,
    Ask,
    ServerFacts,
    ServerStart,
    TokenServer,
    accepted_at_least,
    margin_of,
)
from draftbench.engines.openai import OpenAi, OpenAiEvent
from draftbench.models.drafting import revision_flags, vllm_fields
from draftbench.records import DraftingMode, RoundCounts
from draftbench.traffic.constraints import KINDS

# By this variable vLLM takes one of its two model runners, which look up prompts differently.
MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_TOLD = re.compile(
    r"\b(dtype|max_seq_len|tensor_parallel_size|pipeline_parallel_size|data_parallel_size"
    r"|quantization|kv_cache_dtype|enforce_eager|enable_chunked_prefill)=([^,()\s]{1,80})"
)
_SPECULATION = re.compile(
    r"SpeculativeConfig\(method='([\w-]{1,40})'(?:, model='?([^',]{1,400})'?)?"
    r"[^)]*?num_spec_tokens=(\d{1,3})"
)
# The first version whose answers tell their rounds; an older one ends at the flag that asks for it.
TELLS_ROUNDS = (0, 29)
_CACHING = re.compile(r'enable_prefix_caching="(True|False)"')


class Version(msgspec.Struct):
    version: str


def _tells_rounds(version: str | None) -> bool:
    """Whether a vLLM's answers can tell their rounds; of an unknown version they are taken to."""
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})", version or "")
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= TELLS_ROUNDS


class VllmServerInfo(msgspec.Struct):
    vllm_config: str = ""


class Vllm(TokenServer, OpenAi):
    engine = "vllm"
    returns_ids = True
    returns_since = "vLLM 0.10.2 and later do"
    constraints = frozenset(KINDS)
    owner = "vllm"
    command = "{python} -m vllm.entrypoints.openai.api_server {args}"
    taken = (
        *("--model", "--port", "--speculative-config", "-sc"),
        *("--spec-method", "--spec-model", "--spec-tokens"),
    )
    draws = DraftingMode.SAMPLED_TEMPERATURE_ONLY
    variables = (MODEL_RUNNER,)
    advice: ClassVar[Mapping[str, str]] = {
        "No module named 'vllm'": "vllm is not installed in the Python that runs draftbench: name "
        'another, --engine-command "/path/to/python -m vllm.entrypoints.openai.api_server {args}"',
        "unrecognized arguments: --enable-per-request-metrics": "vLLM has this flag since 0.25: "
        "start that or a newer one",
        "Available memory on node": "set VLLM_CPU_KVCACHE_SPACE in the environment to the GiB that "
        'its cache may take, e.g. 1, or add --engine-args "--gpu-memory-utilization 0.3"',
        "Free memory on device": 'add --engine-args "--gpu-memory-utilization 0.5", or end what '
        "else holds memory there",
    }

    @classmethod
    def flags(cls, start: ServerStart) -> list[str]:
        target, revision = revision_flags(start.target, "--revision")
        words = ["--model", target, *revision, "--no-enable-prefix-caching"]
        words += ["--logprobs-mode", "processed_logprobs", "--enable-per-request-metrics"]
        words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
        words += start.limits("--max-model-len", "--max-num-seqs")
        if start.speculation is not None:
            fields = vllm_fields(start.speculation)
            words += ["--speculative-config", json.dumps(fields, separators=(",", ":"))]
            if _tells_rounds(start.version):
                words += ["--per-request-spec-decode-metrics", "detailed"]
        return words

    def body(self, ask: Ask) -> dict[str, Any]:
        body = super().body(ask)
        # Nothing is to be added to the ids of a prompt or an answer.
        body |= {"add_special_tokens": False, "ignore_eos": False, "min_tokens": 0}
        # With a salt of its own it shares no prefix with another request.
        body |= {"return_token_ids": True, "cache_salt": secrets.token_hex(16)}
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
        counters = read_counters(page)
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
        version, card = self.http.json("/version", type=Version).version, self._card()
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
