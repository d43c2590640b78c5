"""Answers as APIs write them, whole and streamed, and as logs keep what was streamed."""

import json


def message(text):
    return {"role": "assistant", "content": text}


def output(text):
    return {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}


# A whole answer.
WHOLE = {
    "OpenAI chat": lambda text: {"choices": [{"index": 0, "message": message(text)}]},
    "completions": lambda text: {"choices": [{"index": 0, "text": text}]},
    "its choices alone": lambda text: [{"message": message(text)}],
    "Responses": output,
    "Anthropic": lambda text: {"type": "message", "content": [{"type": "text", "text": text}]},
    "Bedrock": lambda text: {
        "output": {"message": {"role": "assistant", "content": [{"text": text}]}}
    },
    "Gemini": lambda text: {
        "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}]
    },
    "Ollama, chat": lambda text: {"model": "m", "message": message(text), "done": True},
    "Ollama": lambda text: {"model": "m", "response": text, "done": True},
    "llama.cpp": lambda text: {"content": text, "stop": True, "tokens_predicted": 2},
    "TGI": lambda text: [{"generated_text": text}],
    "SGLang": lambda text: {"text": text, "meta_info": {"finish_reason": {"type": "stop"}}},
    "LangSmith": lambda text: {"generations": [[{"text": text}]]},
    "batch": lambda text: {
        "status_code": 200, "body": {"choices": [{"message": message(text)}]}
    },
    "a message": message,
}  # fmt: skip


def _each(pieces, chunk):
    """A chunk for each piece, and whether it is the last."""
    last = len(pieces) - 1
    return [chunk(piece, at == last) for at, piece in enumerate(pieces)]


def _reason(last):
    return {"index": 0, "finish_reason": "stop" if last else None}


def _openai(pieces):
    chunks = _each(pieces, lambda it, end: {"choices": [{"delta": {"content": it}} | _reason(end)]})
    chunks[0]["choices"][0]["delta"]["role"] = "assistant"
    # A second answer, and the count of tokens.
    other = {"choices": [{"delta": {"content": "no"}, "index": 1, "finish_reason": None}]}
    return [other, *chunks, {"choices": [], "usage": {"completion_tokens": 2}}]


def _tgi(pieces):
    chunks = [{"token": {"text": it, "special": False}, "generated_text": None} for it in pieces]
    end = {"token": {"text": "</s>", "special": True}, "generated_text": "".join(pieces)}
    return [*chunks, end]


def _sglang(pieces):
    return [
        {"text": "".join(pieces[: at + 1]),
         "meta_info": {"finish_reason": {"type": "stop"} if at == len(pieces) - 1 else None}}
        for at in range(len(pieces))
    ]  # fmt: skip


def _gemini(text, last):
    end = {"finishReason": "STOP" if last else None}
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}} | end]}


def _bedrock(pieces):
    return [
        {"messageStart": {"role": "assistant"}},
        *({"contentBlockDelta": {"delta": {"text": it}, "contentBlockIndex": 0}} for it in pieces),
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": {"outputTokens": 2}}},
    ]


def _anthropic(pieces):
    return [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": it}}
            for it in pieces
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]


def _responses(pieces):
    return [
        {"type": "response.created", "response": {"id": "r"}},
        *({"type": "response.output_text.delta", "delta": it} for it in pieces),
        {"type": "response.completed", "response": output("".join(pieces))},
    ]


# The chunks in which pieces of an answer are streamed, of which one says that it is the last.
STREAMED = {
    "OpenAI chat": _openai,
    "its choices alone": lambda pieces: _each(
        pieces, lambda it, end: {"delta": {"content": it}} | _reason(end)
    ),
    "completions": lambda pieces: _each(
        pieces, lambda it, end: {"choices": [{"text": it} | _reason(end)]}
    ),
    "Ollama, chat": lambda pieces: _each(
        pieces, lambda it, end: {"model": "m", "message": message(it), "done": end}
    ),
    "Ollama": lambda pieces: _each(
        pieces, lambda it, end: {"model": "m", "response": it, "done": end}
    ),
    "llama.cpp": lambda pieces: _each(
        pieces, lambda it, end: {"content": it, "stop": end, "tokens_predicted": 1}
    ),
    "TGI": _tgi,
    "SGLang": _sglang,
    "Gemini": lambda pieces: _each(pieces, _gemini),
    "Bedrock": _bedrock,
    "Anthropic": _anthropic,
    "Responses": _responses,
}


def sse(*chunks):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)


# How logs keep the chunks.
KEPT = {
    "list": list,
    "JSON text": json.dumps,
    "JSON text of JSON text": lambda chunks: json.dumps(json.dumps(chunks)),
    "lines": lambda chunks: "\n".join(map(json.dumps, chunks)) + "\n",
    "events": lambda chunks: sse(*chunks) + "data: [DONE]\n\n",
    "events with comments": lambda chunks: ": KEEPALIVE\n\nretry: 3000\n\n" + sse(*chunks),
    "events with names": lambda chunks: "".join(
        f"id: {at}\r\nevent: delta\r\ndata:{json.dumps(chunk)}\r\n\r\n"
        for at, chunk in enumerate(chunks)
    ),
}
