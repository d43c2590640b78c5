"""Shapes of logs, one row of each, and what draftbench makes of them.

    python scripts/log_shapes.py > docs/logs.md

Sources of the shapes: LiteLLM, StandardLoggingPayload and spend logs; Helicone, export with bodies;
Langfuse, observations by API, table and blob storage; OpenTelemetry, GenAI conventions 1.37 and
OTLP; OpenInference and OpenLLMetry, spans; LangSmith, runs; Amazon Bedrock, model invocation logs;
MLflow, `search_traces`; Datadog, spans; Anthropic, Messages and batches; OpenAI, batches and
Responses; Gemini, `generateContent` and batches; Cohere, `/v2/chat`; OpenRouter; Ollama,
`/api/chat` and `/api/generate`; llama.cpp, `/completion`; SGLang, `/generate`; TGI, `/generate`;
vLLM, benchmarks/datasets; AIPerf, custom data sets; Mooncake, Azure and BurstGPT, traces.
"""

from __future__ import annotations

import json
import re
from typing import Any

from draftbench.traffic import TrafficQuery
from draftbench.traffic.errors import (
    BadRowError,
    LengthsOnlyError,
    NoTrafficError,
    NotRepresentableError,
)
from draftbench.traffic.rows import read_request

USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief"}
ANSWER = {"role": "assistant", "content": "Hi"}
TOLD = [SYSTEM, USER]
COMPLETION = {"model": "m", "choices": [{"message": ANSWER}]}
CHAT = {"model": "m", "messages": [USER], "temperature": 0.7, "max_tokens": 9}
SAMPLED = {"temperature": 0.7, "max_tokens": 9}
SPAN_SETTINGS = {
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.max_tokens": 9,
}
SPAN_MESSAGES = [{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}]
SPAN = {
    **SPAN_SETTINGS,
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief"}],
    "gen_ai.input.messages": SPAN_MESSAGES,
    "gen_ai.output.messages": [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "text", "content": "Hi"},
            ],
            "finish_reason": "stop",
        }
    ],
}
LANGFUSE = {
    "id": "o",
    "type": "GENERATION",
    "model": "m",
    "modelParameters": {"temperature": "0.7", "max_tokens": "inf"},
    "output": ANSWER,
}
SHAREGPT = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]
THOUGHT = {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}
CALL = {"type": "function", "function": {"name": "ls", "arguments": {}}, "id": "c"}
CALLED = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "a.txt", "tool_call_id": "c"},
]
HUMAN = {"lc": 1, "type": "constructor", "id": ["langchain", "HumanMessage"],
         "kwargs": {"content": "Hello", "type": "human"}}  # fmt: skip
SPANNED = {
    "llm.invocation_parameters": json.dumps({"temperature": 0.7, "max_tokens": 9}),
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "Hello",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "Hi",
}
DEFAULT, GREEDY = {"temperature": 1.0}, {"temperature": 0.0}

# fmt: off
SHAPES = {
    "OpenAI chat, bare": (CHAT, [USER], None, SAMPLED),
    "OpenAI, no temperature": (
        {"model": "m", "messages": [USER]}, [USER], None, DEFAULT),
    "OpenAI, flattened": (
        {f"request.body.{name}": CHAT[name] for name in CHAT}, [USER], None, SAMPLED),
    "OpenAI, columns": (
        {"messages.0.role": "user", "messages.0.content": "Hello", "model": "m"},
        [USER], None, DEFAULT),
    "OpenAI, encoded twice": (
        {"request": json.dumps(json.dumps(CHAT))}, [USER], None, SAMPLED),
    "body as JSON text": ({"body": json.dumps(CHAT)}, [USER], None, SAMPLED),
    "OpenAI batch": (
        {"custom_id": "a", "url": "/v1/chat/completions", "body": CHAT,
         "response": {"status_code": 200, "body": COMPLETION}},
        [USER], "Hi", SAMPLED),
    "OpenAI Responses": (
        {"model": "m", "instructions": "Be brief", "input": "Hello", "temperature": 0.7,
         "max_output_tokens": 9,
         "output": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]},
        TOLD, THOUGHT, SAMPLED),
    "OpenAI Responses, items": (
        {"body": {"model": "m", "instructions": "Be brief", "max_output_tokens": 9, "input": [
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "Hello"}]}]}},
        TOLD, None, DEFAULT | {"max_tokens": 9}),
    "OpenAI Responses, shortest": (
        {"body": {"model": "gpt-5", "input": "Hello"}}, [USER], None, DEFAULT),
    "OpenAI embedding": (
        {"body": {"model": "text-embedding-3-small", "input": "Hello"}},
        NotRepresentableError, "input", {}),
    "Anthropic Messages": (
        {"model": "m", "system": "Be brief", "messages": [USER], "max_tokens": 9,
         "stop_sequences": ["."]},
        TOLD, None, DEFAULT | {"max_tokens": 9, "stop": (".",)}),
    "Anthropic Messages, logged": (
        {"request": {"model": "m", "system": [{"type": "text", "text": "Be brief"}],
                     "messages": [USER], "max_tokens": 9, "temperature": 0.7},
         "response": {"type": "message", "role": "assistant",
                      "content": [{"type": "thinking", "thinking": "hm"},
                                  {"type": "text", "text": "Hi"}]}},
        TOLD, THOUGHT, SAMPLED),
    "Anthropic batch": (
        {"custom_id": "a", "params": CHAT}, [USER], None, SAMPLED),
    "Anthropic, tools": (
        CHAT | {"messages": [
            USER,
            {"role": "assistant",
             "content": [{"type": "tool_use", "id": "c", "name": "ls", "input": {}}]},
            {"role": "user",
             "content": [{"type": "tool_result", "tool_use_id": "c", "content": "a.txt"}]}]},
        CALLED, None, SAMPLED),
    "OpenAI Responses, function items": (
        {"body": {"model": "m", "input": [
            USER, {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "a.txt"}]}},
        CALLED, None, DEFAULT),
    "Bedrock, Converse": (
        {"schemaType": "ModelInvocationLog", "modelId": "m",
         "input": {"inputBodyJson": {
             "system": [{"text": "Be brief"}],
             "messages": [{"role": "user", "content": [{"text": "Hello"}]}],
             "inferenceConfig": {"maxTokens": 9, "temperature": 0.7}}},
         "output": {"outputBodyJson": {"output": {"message": {
             "role": "assistant", "content": [{"text": "Hi"}]}}}}},
        TOLD, "Hi", SAMPLED),
    "Bedrock, InvokeModel": (
        {"modelId": "m", "input": {"inputBodyJson": {
            "anthropic_version": "bedrock-2023-05-31", "messages": [USER], "max_tokens": 9}},
         "output": {"outputBodyJson": {"role": "assistant",
                                       "content": [{"type": "text", "text": "Hi"}]}}},
        [USER], "Hi", DEFAULT | {"max_tokens": 9}),
    "Gemini": (
        {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
         "systemInstruction": {"parts": [{"text": "Be brief"}]},
         "generationConfig": {"temperature": 0.7, "maxOutputTokens": 9}},
        TOLD, None, SAMPLED),
    "Gemini, batch": (
        {"request": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
                     "generationConfig": SAMPLED},
         "response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}}]}},
        [USER], "Hi", SAMPLED),
    "OpenAI, Cohere's plan": (
        {"model": "m", "messages": [
            USER, {"role": "assistant", "tool_plan": "hm", "tool_calls": [CALL]}, CALLED[2]]},
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL], "tool_plan": "hm",
                "reasoning_content": "hm"}, CALLED[2]],
        None, DEFAULT),
    "OpenRouter": (
        {"body": CHAT | {"usage": {"include": True}, "provider": {"order": ["a"]}}},
        [USER], None, SAMPLED),
    "Bedrock, too large": (
        {"modelId": "m", "input": {"inputBodyS3Path": "s3://a/b"}},
        NoTrafficError, "kept elsewhere by the logger", {}),
    "LiteLLM, cut": (
        {"proxy_server_request": CHAT | {"messages": [{
            "role": "user", "content": "a... (litellm_truncated skipped 9 chars) ...z"}]}},
        NoTrafficError, "cut by the logger", {}),
    "LiteLLM, redacted": (
        CHAT | {"messages": [{"role": "user", "content": "redacted-by-litellm"}]},
        NoTrafficError, "redacted by the logger", {}),
    "LiteLLM standard payload": (
        {"call_type": "acompletion", "model": "m", "messages": [USER], "response": COMPLETION,
         "model_parameters": SAMPLED | {"stream": True}},
        [USER], "Hi", SAMPLED),
    "LiteLLM spend log": (
        {"request_id": "r", "messages": {}, "proxy_server_request": CHAT, "response": COMPLETION},
        [USER], "Hi", SAMPLED),
    "LiteLLM proxy request": (
        {"proxy_server_request": {"url": "u", "method": "POST", "body": CHAT}},
        [USER], None, SAMPLED),
    "LiteLLM, extra body": (
        {"call_type": "acompletion", "model": "m", "messages": [USER],
         "model_parameters": SAMPLED | {"extra_body": {}}},
        [USER], None, SAMPLED),
    "Helicone": (
        {"request_id": "r", "request_body": CHAT, "response_body": COMPLETION},
        [USER], "Hi", SAMPLED),
    "Helicone, CSV": (
        {"request_body": json.dumps(CHAT), "response_body": json.dumps(COMPLETION)},
        [USER], "Hi", SAMPLED),
    "Langfuse, messages": (LANGFUSE | {"input": TOLD}, TOLD, "Hi", {"temperature": 0.7}),
    "Langfuse, messages and tools": (
        LANGFUSE | {"input": {"messages": [USER], "tools": []}}, [USER], "Hi",
        {"temperature": 0.7}),
    "Langfuse, JSON text": (
        LANGFUSE | {"input": json.dumps(TOLD), "output": json.dumps(ANSWER)}, TOLD, "Hi",
        {"temperature": 0.7}),
    "Langfuse, completion": (
        LANGFUSE | {"input": "Once", "output": "upon"}, "Once", "upon", {"temperature": 0.7}),
    "Langfuse, blob storage": (
        {"type": "GENERATION", "provided_model_name": "m", "input": json.dumps({"messages": TOLD}),
         "model_parameters": json.dumps(SAMPLED | {"stop": '["."]'}),
         "output": json.dumps(ANSWER)},
        TOLD, "Hi", SAMPLED | {"stop": (".",)}),
    "Langfuse, cut": (
        LANGFUSE | {"input": "<truncated due to size exceeding limit>"},
        NoTrafficError, "cut by the logger", {}),
    "Langfuse, an image in a text": (
        LANGFUSE | {"input": "What is @@@langfuseMedia:type=image/png|id=a|source=bytes@@@?"},
        NoTrafficError, "kept elsewhere by the logger", {}),
    "a logger's mark at the end": (
        CHAT | {"messages": [{"role": "user", "content": "Once upon a ... [truncated]"}]},
        NoTrafficError, "cut by the logger", {}),
    "a body that its column was too short for": (
        {"request": json.dumps(CHAT)[:40]}, NoTrafficError, "cut by the logger", {}),
    "a call that ended in an error": (
        {"request": CHAT, "response": {"choices": [{"finish_reason": "error",
                                                    "message": ANSWER}]}},
        NoTrafficError, "the call failed", {}),
    "a failed call": (
        {"request": CHAT, "response": {"object": "error", "message": "too long", "code": 400}},
        NoTrafficError, "the call failed", {}),
    "LangSmith run": (
        {"run_type": "llm", "inputs": {"messages": [[HUMAN]]},
         "outputs": {"generations": [[{"text": "Hi"}]]},
         "extra": {"invocation_params": CHAT | {"messages": None}}},
        [USER], "Hi", SAMPLED),
    "LangChain messages": (
        {"messages": [{"type": "system", "content": "Be brief"},
                      {"type": "human", "content": "Hello"}, {"type": "ai", "content": "Hi"}]},
        TOLD, "Hi", GREEDY),
    "OpenInference span": ({"attributes": SPANNED}, [USER], "Hi", SAMPLED),
    "OpenLLMetry span": (
        {"attributes": {**SPAN_SETTINGS, "gen_ai.prompt.0.role": "user",
                        "gen_ai.prompt.0.content": "Hello", "gen_ai.completion.0.content": "Hi"}},
        [USER], "Hi", SAMPLED),
    "MLflow trace": (
        {"trace_id": "t", "request": json.dumps(CHAT), "response": json.dumps(COMPLETION)},
        [USER], "Hi", SAMPLED),
    "OpenTelemetry span": ({"name": "chat m", "attributes": SPAN}, TOLD, THOUGHT, SAMPLED),
    "OpenTelemetry, JSON text": (
        {"attributes": json.dumps({
            name: json.dumps(value) if isinstance(value, list) else value
            for name, value in SPAN.items()})},
        TOLD, THOUGHT, SAMPLED),
    "OpenTelemetry, columns": (SPAN, TOLD, THOUGHT, SAMPLED),
    "OpenTelemetry, table of texts": (
        {name: value if isinstance(value, str) else json.dumps(value)
         for name, value in SPAN.items()},
        TOLD, THOUGHT, SAMPLED),
    "Vercel AI SDK": (
        {"name": "ai.generateText.doGenerate", "attributes": {
            "ai.model.id": "m", "ai.settings.temperature": 0.7, "ai.settings.maxOutputTokens": 9,
            "ai.prompt.messages": json.dumps([USER]), "ai.response.text": "Hi"}},
        [USER], "Hi", SAMPLED),
    "PostHog": (
        {"event": "$ai_generation", "properties": {
            "$ai_model": "m", "$ai_input": [USER], "$ai_output_choices": [ANSWER],
            "$ai_model_parameters": SAMPLED}},
        [USER], "Hi", SAMPLED),
    "OpenAI, metadata": (
        {"input": [USER], "output": [{"message": ANSWER}], "metadata": {"model": "m", **SAMPLED}},
        [USER], "Hi", SAMPLED),
    "vLLM custom": (
        {"prompt": "Once", "output_tokens": 9}, "Once", None, GREEDY | {"max_tokens": 9}),
    "vLLM, constrained": (
        {"body": CHAT | {"structured_outputs": {"regex": "a+"}}},
        [USER], None, SAMPLED | {"constraint": {"regex": "a+"}}),
    "OpenAI, forced tool": (
        CHAT | {"tools": [{"type": "function", "function": {"name": "ls", "parameters": {}}}],
                "tool_choice": {"type": "function", "function": {"name": "ls"}}},
        [USER], None, SAMPLED | {"constraint": {"tool": {}}}),
    "SGLang /generate": (
        {"text": "Once", "sampling_params": {"temperature": 0.7, "max_new_tokens": 9}},
        "Once", None, SAMPLED),
    "SGLang, logged": (
        {"request": {"text": "Once", "rid": "r", "sampling_params": {"max_new_tokens": 9,
                                                                    "no_stop_trim": True}},
         "response": {"text": "upon", "meta_info": {}}},
        "Once", "upon", DEFAULT | {"max_tokens": 9}),
    "SGLang, shortest": (
        {"request": {"text": "Once", "rid": "r"}, "response": '{"text": "upon", "meta_info": {}}'},
        "Once", "upon", DEFAULT),
    "TGI, sampled": (
        {"inputs": "Once", "parameters": {"temperature": 0.7, "max_new_tokens": 9}},
        "Once", None, SAMPLED),
    "TGI, shortest": (
        {"request": {"inputs": "Once"}, "response": '[{"generated_text": "upon"}]'},
        "Once", "upon", DEFAULT),
    "Ollama /api/chat": (
        {"model": "m", "messages": [USER], "options": {"temperature": 0.7, "num_predict": 9}},
        [USER], None, SAMPLED),
    "Ollama /api/generate": (
        {"model": "m", "system": "Be brief", "prompt": "Hello", "response": "Hi",
         "options": {"temperature": 0.7, "num_predict": -1, "num_ctx": 4096}},
        TOLD, "Hi", {"temperature": 0.7}),
    "Ollama, raw": (
        {"model": "m", "prompt": "Once", "raw": True, "options": {"temperature": 0.7}},
        "Once", None, {"temperature": 0.7}),
    "Ollama, constrained": (
        {"model": "m", "prompt": "Hello", "format": "json", "options": {"temperature": 0.7}},
        [USER], None, {"temperature": 0.7, "constraint": {"json_object": True}}),
    "Ollama, not thinking": (
        {"model": "m", "messages": [USER], "think": False, "options": {"temperature": 0.7}},
        [USER], None, {"temperature": 0.7, "template": {"enable_thinking": False}}),
    "llama.cpp /completion": (
        {"prompt": "Once", "temperature": 0.7, "n_predict": 9, "repeat_penalty": 1.0},
        "Once", None, SAMPLED),
    "AIPerf single turn": (
        {"type": "single_turn", "text": "Once", "output_length": 9, "delay": 5},
        "Once", None, GREEDY | {"max_tokens": 9}),
    "AIPerf multi turn": (
        {"session_id": "s", "turns": [{"text": "Hello"}, {"text": "Shorter", "delay": 5}]},
        [USER], None, GREEDY),
    "AIPerf trace with text": (
        {"text_input": "Once", "output_length": 9}, "Once", None, GREEDY | {"max_tokens": 9}),
    "Spec-Bench, MT-Bench": (
        {"question_id": 81, "category": "writing", "turns": ["Hello", "Shorter"]},
        [USER], None, GREEDY),
    "ShareGPT": ({"conversations": SHAREGPT}, [USER], "Hi", GREEDY),
    "ShareGPT with roles": ({"conversations": [USER, ANSWER]}, [USER], "Hi", GREEDY),
    "LMSYS, WildChat": (
        {"model": "m", "conversation": [USER, ANSWER], "turn": 1}, [USER], "Hi", GREEDY),
    "OpenAI, capitals": (
        {"messages": [USER | {"role": "User"}, ANSWER | {"role": "Assistant"}]}, [USER], "Hi",
        GREEDY),
    "Alpaca": (
        {"instruction": "Greet", "input": "Bob", "output": "Hi Bob"},
        [{"role": "user", "content": "Greet\nBob"}], "Hi Bob", GREEDY),
    "Alpaca with system": (
        {"instruction": "Hello", "system": "Be brief", "output": "Hi"}, TOLD, "Hi", GREEDY),
    "ShareGPT with a system column": (
        {"system": "Be brief", "conversations": SHAREGPT}, TOLD, "Hi", GREEDY),
    "messages with a system column": (
        {"system_prompt": "Be brief", "messages": [USER, ANSWER]}, TOLD, "Hi", GREEDY),
    "messages, Python's": (
        {"messages": str([USER, ANSWER])}, [USER], "Hi", GREEDY),
    "messages, as text": (
        {"prompt": json.dumps({"messages": TOLD})}, TOLD, None, GREEDY),
    "what only looks like messages": (
        {"prompt": "[HumanMessage(content='Hello')]"},
        BadRowError, "the prompt looks like messages, but cannot be read as such", {}),
    "Dolly": (
        {"instruction": "Who did it?", "context": "Bob did it.", "response": "Bob"},
        [{"role": "user", "content": "Who did it?\nBob did it."}], "Bob", GREEDY),
    "a system text beside a wrapper": (
        {"system_prompt": [{"text": "Be brief"}], "request": CHAT}, TOLD, None, SAMPLED),
    "a setting given twice": (
        {"temperature": 0.2, "request": CHAT},
        NotRepresentableError, "several values of temperature", {}),
    "two texts": (
        {"prompt": "Summarise:", "text": "Once upon a time"}, NotRepresentableError, "text", {}),
    "a text, rendered too": (
        {"instruction": "Greet", "output": "Hi", "text": "### Asked:\nGreet\n### Answer:\nHi"},
        [{"role": "user", "content": "Greet"}], "Hi", GREEDY),
    "choices of a question": (
        {"prompt": "Which is a mammal?", "choices": ["dog", "fish"]},
        NotRepresentableError, "choices", {}),
    "a prompt that the server keeps": (
        {"body": {"model": "m", "prompt": {"id": "p"}, "input": "Hello"}},
        NotRepresentableError, "prompt", {}),
    "a template and what it is filled with": (
        {"prompt": "Sum up {text}", "variables": {"text": "Once"}},
        NotRepresentableError, "variables", {}),
    "documents beside messages": (
        {"messages": [USER], "documents": [{"text": "Once"}]},
        NotRepresentableError, "documents", {}),
    "an answer that is begun": (
        {"params": CHAT | {"model": "claude-5", "messages": [USER, ANSWER]}},
        NotRepresentableError, "an assistant message for the model to continue", {}),
    "reasoning that only the server has": (
        {"model": "m", "input": [USER, {"type": "reasoning", "id": "r", "summary": []}, USER]},
        NotRepresentableError, "reasoning that is not in the log", {}),
    "a text with a file": (
        {"messages": [{"role": "user",
                       "content": [{"type": "text", "text": "What?", "file": {"file_id": "f"}}]}]},
        NotRepresentableError, "message content of type file", {}),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        NotRepresentableError, "message content of type image_url", {}),
    "images beside messages": ({"messages": [USER], "images": ["a.png"]},
                               NotRepresentableError, "images", {}),
    "messages of a data set": ({"messages": [USER, ANSWER]}, [USER], "Hi", GREEDY),
    "prompt of a data set": ({"prompt": "Once", "completion": "upon"}, "Once", "upon", GREEDY),
    "Mooncake trace": (
        {"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]},
        LengthsOnlyError, "a trace of lengths only, without any text", {}),
    "Azure trace": (
        {"TIMESTAMP": "t", "ContextTokens": "5", "GeneratedTokens": "2"},
        LengthsOnlyError, "a trace of lengths only, without any text", {}),
    "BurstGPT trace": (
        {"Timestamp": "5", "Model": "m", "Request tokens": "5", "Response tokens": "2"},
        LengthsOnlyError, "a trace of lengths only, without any text", {}),
}


PAGE = """\
# What becomes of a log

A row of each kind of log that draftbench knows, and what it reads from it; written by
`scripts/log_shapes.py`, which runs the reader. [Formats](formats.md#traffic) has the rules;
`draftbench traffic FILE` says what it makes of yours. A temperature in brackets is assumed: 1 is
the default of servers, 0 is greedy.

| log | a row | what is asked | temperature | most tokens | stop | logged answer |
|---|---|---|---|---|---|---|
"""


# What `jq` makes of a row: its program, a row, what is then asked, and with what.
RECIPES: dict[str, tuple[str, Any, str | list[Any], dict[str, Any]]] = {
    "Requests in a list (GenAI-Perf)": (
        ".data[].payload[]", {"data": [{"payload": [CHAT]}]}, [USER], SAMPLED),
    "Requests in base64 (SageMaker)": (
        ".captureData.endpointInput.data|@base64d|fromjson",
        {"captureData": {"endpointInput": {"data": "eyJwcm9tcHQiOiAiT25jZSJ9"}}}, "Once", {}),
    "Attributes with types (OpenTelemetry's OTLP)": (
        ".resourceSpans[].scopeSpans[].spans[] | "
        ".attributes |= (map({key, value: (.value|to_entries[0].value)})|from_entries)",
        {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [
            {"key": "gen_ai.request.temperature", "value": {"doubleValue": 0.7}},
            {"key": "gen_ai.request.max_tokens", "value": {"intValue": "9"}},
            {"key": "gen_ai.input.messages",
             "value": {"stringValue": json.dumps(SPAN_MESSAGES)}}]}]}]}]},
        [USER], SAMPLED),
    "A prompt of several fields": (
        '{prompt: "\\(.context)\\n\\(.question)"}',
        {"context": "Bob did it.", "question": "Who?"}, "Bob did it.\nWho?", {}),
    "The turns before an instruction (Alpaca's `history`)": (
        '{messages: [(.history[]|{role: "user", content: .[0]}, {role: "assistant", '
        'content: .[1]}), {role: "user", content: .instruction}]}',
        {"instruction": "Hello", "history": [["Hello", "Hi"]], "output": "Hi"},
        [USER, ANSWER, USER], {}),
    "Greedy by default (TGI)": (
        ".parameters |= if .do_sample or .top_p or .top_k or .typical_p then . "
        "else {temperature: 0} + . end",
        {"inputs": "Once", "parameters": {"max_new_tokens": 9}}, "Once", {}),
    "Answers that begin with the prompt, without `echo` beside them": (
        ".prompt as $asked | .response |= ltrimstr($asked)",
        {"prompt": "Once", "response": "Once upon"}, "Once", {"answer": " upon"}),
    "One of several models": (
        'select(.request.model == "m")', {"request": CHAT}, [USER], SAMPLED),
}
# fmt: on
_RECIPES = """
## Recipes

With `jq -c '…' FILE`, before draftbench reads the log:

| what | `jq` |
|---|---|
"""


def page() -> str:
    """The first row of each kind of log, the names of the others that are read, and recipes."""
    first: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for name, shape in SHAPES.items():
        if not isinstance(shape[1], type):
            first.setdefault(re.split(r"[,\W_]", name)[0].lower(), (name, shape))
    shown = {name for name, _ in first.values()}
    read = [name for name, shape in SHAPES.items() if not isinstance(shape[1], type)]
    others = "; ".join(name for name in read if name not in shown)
    lines = "".join(map(_line, first.values()))
    recipes = "".join(
        "| {} | `{}` |\n".format(name, query.replace("|", "\\|"))
        for name, (query, *_) in RECIPES.items()
    )
    return f"{PAGE}{lines}\nAlso read, with a test each: {others}.\n{_RECIPES}{recipes}"


def _line(shape: tuple[str, tuple[Any, ...]]) -> str:
    name, (row, *_) = shape
    text = json.dumps(row, ensure_ascii=False)
    _, asked, assumed, *_ = read_request(text.encode(), name, TrafficQuery(name, b"key"))
    messages = [f"{said['role']}: {_said(said)}" for said in asked.messages or ()]
    temperature = f"{asked.sampling.temperature:g}"
    held = f"<br>(only with an engine: {', '.join(asked.constraint or ())})"
    cells = [
        ("<br>".join(messages) or str(asked.prompt)) + held * bool(asked.constraint),
        f"({temperature})" if "temperature" in "".join(assumed) else temperature,
        str(asked.max_tokens or ""),
        " ".join(asked.stop),
        _said(asked.response) if isinstance(asked.response, dict) else asked.response or "",
    ]
    return (
        "| "
        + " | ".join(cell.replace("\n", "<br>") for cell in [name, f"`{text}`", *cells])
        + " |\n"
    )


def _said(message: dict[str, Any]) -> str:
    """What a message says: its reasoning in brackets, its text, and the tools that it calls."""
    thought = message.get("reasoning_content")
    called = [f"{call['function']['name']}(…)" for call in message.get("tool_calls", ())]
    return " ".join(filter(None, [f"({thought})" * bool(thought), message["content"], *called]))


if __name__ == "__main__":
    print(page(), end="")
