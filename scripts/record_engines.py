"""Records what a running vLLM or llama-server answers, for the tests of the adapters.

    python scripts/record_engines.py URL FILE

Asks the server at URL everything that an adapter asks and writes the raw exchanges to FILE
(tests/engines/recorded/NAME.json). The tests read them as if the server answered again, so record
anew when an engine changes, and run `pytest tests/engines/test_recorded.py`.

The project's recordings were made with these servers (see the names of the files):

    llama-server -m T.gguf -md D.gguf --spec-type draft-simple --spec-draft-n-max 4 --metrics -np 1
    cd draftbench/embedded; VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server
        --model target --dtype float32 --no-enable-prefix-caching
        --enable-per-request-metrics --per-request-spec-decode-metrics detailed
        --speculative-config '{"method": "draft_model", "model": "distilled",
                               "num_speculative_tokens": 4}'

and the plain ones without what speculates; the plain vLLM with its prefix cache. Those of the
embedded head: `{"method": "eagle3", "model": "head", "num_speculative_tokens": 3}` in place of
vLLM's draft model, and of the files that scripts/embedded_gguf.py writes

    llama-server -m target.gguf -md head.gguf --spec-type draft-eagle3 --spec-draft-n-max 3
        --spec-draft-p-min 0 --metrics -np 1
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from draftbench.engines.connect import connect
from draftbench.engines.drive import drive
from draftbench.engines.faults import AnswerError
from draftbench.engines.server import Answer, Ask, Server, ServerFacts
from draftbench.records import RoundCounts, Sampling

# Python for the embedded family; what is soon answered in full, by target; characters of several
# tokens each.
TEXTS = (
    "import os\n\ndef main(argv):\n",
    {
        "target": 'if __name__ == "__main__":\n    main()\n',
        "qwen1.5": "<|im_start|>user\nSay only: hi<|im_end|>\n<|im_start|>assistant\n",
    },
    "names = ['🪿', '𓀀', '🪿', '𓀀', '🪿', '",
)


@dataclass
class Scene:
    """What an adapter gets from one visit to a server."""

    facts: ServerFacts
    prompts: list[list[int]]
    answers: dict[str, Answer]
    counted: RoundCounts
    margin: float | None
    refused: AnswerError


def visit(server: Server) -> Scene:
    """Everything that an adapter asks of a server, in a fixed order."""
    facts = server.facts()
    target = Path(facts.model or "").name.removesuffix(".gguf")
    texts = [t if isinstance(t, str) else t[target] for t in TEXTS]
    prompts = [server.tokenize(text) for text in texts]
    server.echo(prompts[:2])
    asks = {
        "greedy": Ask(("greedy", 0), prompts[0], 24, Sampling(seed=1)),
        "sampled": Ask(
            ("sampled", 0), prompts[0], 24, Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=2)
        ),
        "stop string": Ask(("stop string", 0), prompts[0], 24, Sampling(seed=1), stop=("(",)),
        "end": Ask(("end", 0), prompts[1], 48, Sampling(seed=3)),
        "characters": Ask(("characters", 0), prompts[2], 24, Sampling(seed=1)),
        "log p": Ask(("log p", 0), prompts[0], 8, Sampling(seed=1), log_p=True),
        "one token": Ask(("one token", 0), prompts[0], 1, Sampling(seed=1)),
    }
    if server.engine == "vllm" and facts.k != 0:
        del asks["sampled"]  # vLLM 0.32 on a CPU dies of a top-k beside speculation
    before = server.counters()
    answers = {a.ask.key[0]: a for a in drive(server, list(asks.values()), concurrency=1)}
    counted = server.counters().since(before)
    margin = server.margin(prompts[0])
    try:
        server.http.json(
            server.route, server.body(Ask(("", 0), prompts[0] * 5000, 1, Sampling())), type=dict
        )
        raise AssertionError("a prompt beyond every context was accepted")
    except AnswerError as error:
        refused = error
    return Scene(facts, prompts, answers, counted, margin, refused)


class Recorder(httpx2.AsyncBaseTransport):
    """Passes requests through and keeps what came back, pieces joined."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        exchange = {
            "method": request.method,
            "path": request.url.path,
            "status": response.status_code,
            "content": "",
        }
        self.exchanges.append(exchange)
        stream = response.stream

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in stream:  # type: ignore[union-attr]
                exchange["content"] += piece.decode()
                yield piece

        kind = response.headers.get("content-type", "")
        exchange["type"] = kind
        return httpx2.Response(
            response.status_code, headers={"content-type": kind}, content=pieces()
        )


def shortened(path: str, content: str) -> str:
    """An answer without parts that no adapter reads, as the server's environment."""
    if path == "/server_info" and "vllm_config" in content:
        return json.dumps({"vllm_config": json.loads(content)["vllm_config"]})
    if path == "/metrics":
        kept = re.compile(
            "spec_decode|tokens_total|tokens_predicted_total|cached|cache_(hits|config)"
        )
        return "".join(f"{line}\n" for line in content.splitlines() if kept.search(line))
    return content


class Player(httpx2.AsyncBaseTransport):
    """Answers with recorded exchanges, which must be asked for in their order."""

    def __init__(self, exchanges: list[dict[str, Any]]) -> None:
        self._coming = iter(exchanges)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = next(self._coming)
        asked = request.method, request.url.path
        assert asked == (exchange["method"], exchange["path"])
        return httpx2.Response(
            exchange["status"],
            headers={"content-type": exchange["type"]},
            content=exchange["content"].encode(),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what a running server answers.")
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    recorder = Recorder()
    server = connect(arguments.url, transport=recorder)
    scene = visit(server)
    server.close()
    for name, answer in scene.answers.items():
        print(f"{name}: {answer.output_tokens} tokens, {answer.error or answer.finish}")
    for exchange in recorder.exchanges:
        exchange["content"] = shortened(exchange["path"], exchange["content"])
    recorded = {
        "engine": server.engine,
        "version": scene.facts.version,
        "exchanges": recorder.exchanges,
    }
    arguments.file.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
