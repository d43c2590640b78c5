"""A server on loopback that plays vLLM, llama-server, SGLang or any OpenAI server, well or badly.

It writes for each prompt the tokens that `write` says, in rounds of `k` drafted tokens of which
`accepts` (in turn) are accepted. `faults` names what goes wrong with which request for text,
counted from 0: "die" (nothing answers from then on), "hang", "refuse", "busy", "garbage", "half"
(the connection breaks), "early" (the stream ends without an end), "wrong ids" (it read another
prompt), "giant", "too many" (tokens), "failed", "alive" (nothing but
comments), or one of `QUOTES`, which repeat the prompt.

    with ScriptedServer("vllm", k=4, faults={3: "half"}) as server:
        for answer in drive(connect(server.url), asks, concurrency=1): …
        server.bodies  # what was asked
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

Write = Callable[[Sequence[int], int], Sequence[int]]
OWNERS = {"vllm": "vllm", "llama.cpp": "llamacpp", "sglang": "sglang", "openai": "somebody"}
VERSION = "9.8.7"


def counting(prompt: Sequence[int], limit: int) -> list[int]:
    """As many tokens as asked for, counting on from the last id of the prompt."""
    return [(prompt[-1] + 1 + i) % 1000 for i in range(limit)]


@dataclass
class ScriptedServer:
    engine: str = "vllm"
    k: int = 0
    accepts: Sequence[int] = (0,)
    write: Write = counting
    end: int | None = None  # the end token; an answer is over after it
    pace: float = 0.0  # seconds of a round
    faults: Mapping[int, str] = field(default_factory=dict)
    model: str = "org/target"
    refuses: frozenset[str] = frozenset()  # fields of a body that are refused
    counts: bool = True  # whether it shows counters
    version: str = VERSION
    token: str | None = None  # the bearer token that it wants
    states: Callable[[int], int] = int  # the tokens of `usage`, by those that it wrote
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of requests for text
    headers: list[dict[str, str]] = field(default_factory=list)  # of all requests

    def __enter__(self) -> ScriptedServer:
        outer = self

        class Handler(_Handler):
            play = outer

        self._lock = threading.Lock()
        self._counts = {"rounds": 0, "drafted": 0, "kept": 0, "written": 0}
        self._positions = [0] * self.k
        self._released = threading.Event()  # ends what hangs
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.dead = False
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self.die()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def die(self) -> None:
        if not self.dead:
            self.dead = True
            self._http.shutdown()
            self._http.server_close()

    # What it says of itself

    def told(self, path: str, body: Any) -> Any:
        """The JSON answer of a route that writes no text; None where there is no such route."""
        if path == "/tokenize":
            text = body.get("prompt", body.get("content"))
            return {"tokens": [*map(ord, text if text is not None else str(body["messages"]))]}
        if path == "/detokenize":
            return {"content": "".join(map(chr, body["tokens"]))}
        card = {"id": self.model, "owned_by": OWNERS[self.engine], "max_model_len": 4096}
        of_sglang = {"version": VERSION, "model_path": self.model, "context_length": 4096}
        of_sglang |= {"disable_radix_cache": True, "max_running_requests": 48}
        if self.k:
            of_sglang |= {"speculative_algorithm": "STANDALONE"}
            of_sglang |= {"speculative_num_draft_tokens": self.k + 1}
        of_llama = {"total_slots": 2, "model_path": self.model, "build_info": VERSION}
        of_llama |= {"default_generation_settings": {"n_ctx": 4096}}
        routes = {
            (self.engine, "/v1/models"): {"data": [card]},
            ("vllm", "/version"): {"version": self.version},
            ("llama.cpp", "/props"): of_llama,
            ("llama.cpp", "/apply-template"): {"prompt": str(body.get("messages"))},
            ("sglang", "/server_info"): of_sglang,
        }
        return routes.get((self.engine, path))

    def metrics(self) -> str:
        prefix = {"llama.cpp": "llamacpp"}.get(self.engine, self.engine)
        names = {
            "rounds": "spec_decode_num_drafts",
            "drafted": "spec_decode_num_draft_tokens",
            "kept": "spec_decode_num_accepted_tokens",
        }
        with self._lock:
            lines = [
                f'{prefix}:{names[name]}_total{{model_name="m"}} {value}.0'
                for name, value in (self._counts if self.k else {}).items()
                if name in names
            ]
            written = {"llama.cpp": "tokens_predicted", "sglang": ""}.get(
                self.engine, "generation_tokens"
            )
            if written:
                lines.append(f"{prefix}:{written}_total {self._counts['written']}")
            lines += [
                f'{prefix}:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {count}'
                for i, count in enumerate(self._positions)
            ]
        return "\n".join(["# TYPE x counter", *lines, ""])

    # What it writes

    def rounds_of(self, count: int) -> list[tuple[int, int]]:
        """(drafted, accepted) by round of an answer of `count` tokens, past its end included."""
        rounds, written = [], 1
        for accepted in itertools.cycle(self.accepts):
            if written >= count:
                return rounds
            rounds.append((self.k, accepted))
            written += accepted + 1
        return rounds

    def answer(self, body: Mapping[str, Any]) -> tuple[list[list[int]], str, list[Any]]:
        """The tokens by piece, the reason of the end, and the rounds."""
        prompt, limit = prompt_of(body), limit_of(body)
        tokens = list(self.write(prompt, limit))[:limit]
        finish = "length"
        if self.end in tokens:
            tokens, finish = tokens[: tokens.index(self.end) + 1], "stop"
        elif len(tokens) < limit:
            finish = "stop"
        rounds = self.rounds_of(len(tokens)) if self.k else []
        sizes = [1, *(accepted + 1 for _, accepted in rounds)] if self.k else [1] * len(tokens)
        ends = list(itertools.accumulate(sizes))
        pieces = [tokens[e - n : e] for n, e in zip(sizes, ends, strict=True)]
        with self._lock:
            self._counts["written"] += len(tokens)
            self._counts["rounds"] += len(rounds)
            self._counts["drafted"] += sum(drafted for drafted, _ in rounds)
            self._counts["kept"] += sum(accepted for _, accepted in rounds)
            for _, accepted in rounds:
                for position in range(accepted):
                    self._positions[position] += 1
        return [piece for piece in pieces if piece], finish, rounds

    def events(self, body: Mapping[str, Any], wrong: bool) -> Iterator[Any]:
        """The events of a streamed answer, as the engine shapes them."""
        pieces, finish, rounds = self.answer(body)
        prompt = prompt_of(body)
        read = [*prompt[:-1], prompt[-1] + 1] if wrong else list(prompt)
        yield from SHAPES[self.engine](self, pieces, finish, rounds, read)


def prompt_of(body: Mapping[str, Any]) -> list[int]:
    prompt = body.get("prompt", body.get("input_ids", body.get("text")))
    return [*map(ord, prompt)] if isinstance(prompt, str) else list(prompt)


def limit_of(body: Mapping[str, Any]) -> int:
    params = body.get("sampling_params", body)
    return params.get("max_tokens", params.get("n_predict", params.get("max_new_tokens")))


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(97 + token % 26) for token in tokens)


def _vllm(server: ScriptedServer, pieces, finish, rounds, read) -> Iterator[Any]:
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1
        choice = {
            "index": 0,
            "text": letters(piece),
            "token_ids": piece,
            "finish_reason": finish if last else None,
            "prompt_token_ids": read if i == 0 else None,
        }
        yield {"id": "x", "model": server.model, "choices": [choice]}
    count = server.states(sum(map(len, pieces)))
    final = {"choices": [], "usage": {"prompt_tokens": len(read), "completion_tokens": count}}
    if server.k and server.version == VERSION:
        drafted, accepted = ([each[side] for each in rounds] for side in (0, 1))
        told = {
            "acceptance_histogram": [accepted.count(j) for j in range(server.k + 1)],
            "num_spec_steps": len(rounds),
            "num_accepted_draft_tokens": sum(accepted),
            "num_draft_tokens": sum(drafted),
            "per_step_accepted": accepted or None,
            "per_step_drafted": drafted or None,
        }
        final["metrics"] = {"speculative_decoding": told}
    yield final
    yield "[DONE]"


def _llama_cpp(server: ScriptedServer, pieces, finish, rounds, read) -> Iterator[Any]:
    tokens = list(itertools.chain.from_iterable(pieces))  # an event each, sent together
    for written, token in enumerate(tokens, start=1):
        counted = {"tokens_predicted": written, "tokens_evaluated": len(read)}
        yield {"content": letters([token]), "tokens": [token], "stop": False, **counted}
    timings = {"cache_n": 0}
    if rounds:
        drafted, accepted = (sum(each[side] for each in rounds) for side in (0, 1))
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    yield {
        "content": "",
        "tokens": [],
        "stop": True,
        "tokens_predicted": len(tokens),
        "tokens_evaluated": len(read),
        "timings": timings,
        "stop_type": "limit" if finish == "length" else "eos",
        "generation_settings": {"speculative.types": "none,draft-simple" if server.k else "none"},
    }


def _sglang(server: ScriptedServer, pieces, finish, rounds, read) -> Iterator[Any]:
    ids: list[int] = []
    accepted = [a for _, a in rounds]
    for i, piece in enumerate(pieces):
        ids = ids + piece
        last = i == len(pieces) - 1
        meta = {
            "prompt_tokens": len(read),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "finish_reason": {"type": finish} if last else None,
        }
        if server.k:
            meta |= {
                "spec_verify_ct": len(rounds),
                "spec_num_correct_drafts": sum(accepted),
                "spec_num_proposed_drafts": server.k * len(rounds),
                "spec_correct_drafts_histogram": [accepted.count(j) for j in range(server.k + 1)],
            }
        yield {"text": letters(ids), "output_ids": ids, "prompt_token_ids": read, "meta_info": meta}
    yield "[DONE]"


def _openai(server: ScriptedServer, *answer: Any) -> Iterator[Any]:
    """What vLLM writes, without what OpenAI's servers do not."""
    for event in _vllm(server, *answer):
        if event != "[DONE]":
            event.pop("metrics", None)
            for choice in event["choices"]:
                del choice["token_ids"], choice["prompt_token_ids"]
        yield event


def _words(prompt: object) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in str(prompt))


# How servers repeat a prompt while they fail: a status and a body, or (200) an event of a stream.
QUOTES: Mapping[str, tuple[int, Callable[[Any], str]]] = {
    "422": (
        422,
        lambda prompt: json.dumps(
            {"detail": [{"type": "missing", "loc": ["body", "n"], "input": {"prompt": prompt}}]}
        ),
    ),
    "plain": (500, lambda prompt: f"cannot answer {prompt}"),
    "html": (502, lambda prompt: f"<html><pre>\n{prompt}\n</pre></html>"),
    "busy 429": (429, lambda p: json.dumps({"error": {"message": f"too many requests: {p}"}})),
    "cut": (500, lambda prompt: json.dumps({"error": {"message": str(prompt)}})[:-9]),
    "escaped": (400, lambda prompt: f'{{"error": "{_words(prompt)}"}}'),
    "event": (200, lambda prompt: json.dumps({"error": {"message": f"lost {prompt}"}})),
    "finish": (
        200,
        lambda p: json.dumps({"choices": [{"text": "a", "finish_reason": str(p)}]}),
    ),
}
SHAPES = {"vllm": _vllm, "llama.cpp": _llama_cpp, "sglang": _sglang, "openai": _openai}
ROUTES = {"llama.cpp": "/completion", "sglang": "/generate"}


class _Handler(BaseHTTPRequestHandler):
    play: ClassVar[ScriptedServer]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        with contextlib.suppress(ConnectionError):  # a client that hangs up
            self._serve(body)

    def _serve(self, body: Any) -> None:
        play = self.play
        play.headers.append(dict(self.headers))
        if play.token and self.headers.get("Authorization") != f"Bearer {play.token}":
            self._json({"error": {"message": "no such key"}}, 401)
        elif self.path == "/metrics" and play.counts:
            self._whole(play.metrics().encode(), 200)
        elif self.path == ROUTES.get(play.engine, "/v1/completions"):
            self._generate(body)
        elif (told := play.told(self.path, body)) is not None:
            self._json(told)
        else:
            self._json({"error": {"message": "no such route"}}, 404)

    def _generate(self, body: dict[str, Any]) -> None:
        play = self.play
        with play._lock:
            fault = play.faults.get(len(play.bodies))
            play.bodies.append(body)
        self._misbehave(fault, body) if fault else self._well(body)

    def _well(self, body: dict[str, Any], *, wrong: bool = False) -> None:
        play = self.play
        if refused := play.refuses & body.keys():
            self._json({"error": {"message": f"unknown field {sorted(refused)[0]}"}}, 400)
            return
        events = [*play.events(body, wrong)]
        if not body.get("stream"):
            self._json(merged(play.engine, events, prompt_of(body)))
            return
        self._begin()
        for event in events:
            self._event(event)
            if play.pace and event != "[DONE]":
                time.sleep(play.pace)
        self._chunk(b"")

    def _misbehave(self, fault: str, body: dict[str, Any]) -> None:
        match fault:
            case _ if fault in QUOTES:
                status, quote = QUOTES[fault]
                text = quote(body.get("prompt", body.get("input_ids")))
                if status != 200:
                    self._whole(text.encode(), status)
                    return
                self._begin()
                self._event(text)
                self._event("[DONE]")
                self._chunk(b"")
            case "wrong ids":
                self._well(body, wrong=True)
            case "too many":
                self._well({**body, **many(body)})
            case "refuse":
                self._json({"error": {"message": "not\x1b[31m this"}}, 400)
            case "busy":
                self._json({"detail": "come later"}, 503)
            case "alive":
                self._begin()
                with contextlib.suppress(ConnectionError):
                    while not self.play._released.wait(0.1):
                        self._chunk(b": still here\n\n")
            case "die":
                threading.Thread(target=self.play.die).start()
                self._break()
            case _:
                self._break_off(fault, [*self.play.events(body, False)])

    def _break_off(self, fault: str, events: list[Any]) -> None:
        """Begin a stream that ends badly."""
        half = events[: max(1, len(events) // 2)]
        raw = b"<html>\xff\x00</html>" if fault == "garbage" else None
        if fault == "failed":
            half = [{"error": {"message": "out of \x1b[31mmemory", "code": 500}}]
        elif fault == "giant":
            half = [half[0] | {"padding": "x" * 100_000}] * 10_000
        self._begin()
        with contextlib.suppress(ConnectionError):  # the client has had enough
            for event in half if raw is None else ():
                self._event(event)
            if raw is not None:
                self._chunk(b"data: " + raw + b"\n\n")
        if fault == "hang":
            self.play._released.wait(30)
        if fault in ("hang", "half"):
            self._break()
        else:
            with contextlib.suppress(ConnectionError):
                self._chunk(b"")

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, event: Any) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        self._chunk(f"data: {text}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _break(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.close()

    def _json(self, value: Any, status: int = 200) -> None:
        self._whole(json.dumps(value).encode(), status)

    def _whole(self, raw: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def many(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request for one token more than was asked for."""
    if "sampling_params" in body:
        params = body["sampling_params"]
        return {"sampling_params": params | {"max_new_tokens": params["max_new_tokens"] + 1}}
    name = "max_tokens" if "max_tokens" in body else "n_predict"
    return {name: body[name] + 1}


def merged(engine: str, events: Sequence[Any], prompt: Sequence[int]) -> Any:
    """The events of a streamed answer as one document."""
    events = [event for event in events if event != "[DONE]"]
    if engine == "sglang":
        return events[-1]
    if engine == "llama.cpp":
        tokens = [token for event in events for token in event["tokens"]]
        text = "".join(event["content"] for event in events)
        return events[-1] | {"tokens": tokens, "content": text, "prompt": "".join(map(chr, prompt))}
    choice = dict(events[0]["choices"][0])
    for event in events[1:-1]:
        for name in ("text", "token_ids"):
            if name in choice:
                choice[name] = choice[name] + event["choices"][0][name]
        choice["finish_reason"] = event["choices"][0]["finish_reason"]
    return events[-1] | {"choices": [choice]}
