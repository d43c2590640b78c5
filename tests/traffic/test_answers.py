"""The logged answer, as every API and logger keeps it, and calls that failed."""

import json

import pytest
from log_shapes import ANSWER, CHAT
from traffic.asked import QUERY, asked
from traffic.written import KEPT, STREAMED, output

from draftbench.traffic.errors import BadRowError, NoTrafficError, NotRepresentableError
from draftbench.traffic.rows import read_request


@pytest.mark.parametrize(
    "text",
    [
        *('{"choices": ["A"]}', '[{"text": "A"}]', '{"role": "user"}', '{"content": "A"}', '"A"'),
        *('{"output": "A"}', '{"response": "A"}', '{"message": "A"}', '{"text": "A"}', "[1]"),
    ],
)
def test_an_answer_that_is_json_stays_an_answer(text):
    assert asked({"prompt": "a", "response": text}).response == text


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": {"content": "Hi"}}]},
        {"choices": [{"text": "Hi"}, {"text": "Ho"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]},
        {"output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}}},
        {"generations": [[{"text": "Hi"}, {"text": "Ho"}]]},
        {"message": ANSWER, "done": True},
        {"model": "m", "response": "Hi", "done": True},
        {"content": "Hi", "stop": True, "tokens_predicted": 1},
        {"generated_text": "Hi"},
        [{"generated_text": "Hi"}],
        {"text": "Hi", "meta_info": {}},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}}]},
        {"status_code": 200, "body": {"choices": [{"message": ANSWER}]}},
        [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}]}],
    ],
)
def test_an_api_s_answer_kept_as_text_is_read_as_what_it_holds(answer):
    text = json.dumps(answer)
    for kept_as in (answer, text, json.dumps(text)):
        assert asked({"prompt": "a", "response": kept_as}).response == "Hi"
        assert (
            asked({"prompt": "a", "log": {"said": kept_as}}, response_field="log.said").response
            == "Hi"
        )


def test_a_named_answer_that_holds_no_text_is_a_bad_row():
    with pytest.raises(BadRowError, match="the logged response is not a text"):
        asked({"prompt": "a", "said": {"score": 1}}, response_field="said")
    called = {"choices": [{"message": {"content": None, "tool_calls": []}}]}
    assert asked({"prompt": "a", "said": called}, response_field="said").response is None


@pytest.mark.parametrize(
    "failure",
    [
        {"response": {"object": "error", "message": "too long", "code": 400}},
        {"response": json.dumps({"error": {"message": "too long"}})},
        {"response": "Internal Server Error"},
        {"response": "502 Bad Gateway"},
        {"response": {"status_code": 500, "body": {}}},
        {"response": {"status": 500, "body": {"message": "upstream timed out"}}},
        {"response": {"choices": [{"finish_reason": "error", "message": ANSWER}]}},
        {"response": {"choices": [{"error": {"code": 502}, "message": ANSWER}]}},
        {"choices": [{"finish_reason": "error", "message": ANSWER}]},
        {"response": "Request timed out.", "success": False},
        {"response": {"error": "no route"}},
        {"response": {"type": "error", "error": {"type": "overloaded_error"}}},
        {"response": None, "error": {"message": "too long"}},
        {"status": "failure"},
        {"level": "ERROR"},
        {"response_status": 429},
    ],
)
def test_a_call_that_failed_is_no_traffic(failure):
    with pytest.raises(NoTrafficError, match=r"^the call failed\Z"):
        asked({"request": CHAT} | failure)
    prompts = {"prompt": "a", "error": "NullPointerException", "status": "failed"}
    assert asked(prompts).prompt == "a"  # a data set about errors


@pytest.mark.parametrize("reasoning", ["reasoning_content", "reasoning"])
def test_the_reasoning_before_an_answer_is_part_of_it(reasoning):
    said = {**ANSWER, reasoning: "Let me think."}
    response = asked({"request": CHAT, "response": {"choices": [{"message": said}]}}).response
    assert response == {**ANSWER, "reasoning_content": "Let me think."}
    hidden = {"completion_tokens_details": {"reasoning_tokens": 36}}
    counted = {"choices": [{"message": ANSWER}], "usage": hidden}
    response = asked({"request": CHAT, "response": counted}).response
    assert response == {**ANSWER, "reasoning_content": None}


@pytest.mark.parametrize("choices", ["A) three B) four", ["three", "four"], {"text": ["three"]}])
def test_the_choices_of_a_question_are_no_answer_but_a_part_of_it(choices):
    for row in ({"prompt": "2 + 2?"}, {"messages": [{"role": "user", "content": "2 + 2?"}]}):
        with pytest.raises(NotRepresentableError, match=r"^choices$"):
            asked(row | {"choices": choices})


def test_a_field_for_an_answer_that_holds_none_is_named_as_unread():
    row = {"prompt": "2 + 2?", "result": {"score": 1}, "output": 4, "response": "four"}
    read = read_request(row, "log:1", QUERY)
    assert (read.request.response, read.unread) == ("four", {"result": {"score": 1}, "output": 4})
    silent = {"choices": [{"message": {"content": None}}]}
    assert read_request({"prompt": "a"} | silent, "log:1", QUERY).unread == {}


@pytest.mark.parametrize(
    "answer",
    ["Conflict", "Gone", "Not Found", '{"error": "no date"}', '{"message": "x", "code": 404}'],
)
def test_an_answer_that_speaks_of_an_error_is_an_answer(answer):
    assert asked({"request": CHAT, "response": answer}).response == answer
    choices = [{"finish_reason": "stop", "error": None, "message": ANSWER | {"content": answer}}]
    assert asked({"request": CHAT, "response": {"choices": choices}}).response == answer


def told(*chunks, **fields):
    """A row of a log whose answer was kept as the chunks of a stream."""
    return {"request": CHAT, "response": list(chunks), **fields}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("api", STREAMED)
def test_an_answer_kept_as_it_was_streamed_is_all_of_its_chunks_or_none(api, kept):
    keep, chunks = KEPT[kept], STREAMED[api](["Hi", " there"])
    assert asked({"request": CHAT, "response": keep(chunks)}).response == "Hi there"
    # A client that went away, a log that keeps only the beginning, and what nobody knows.
    ends = ('"stop"', '": true', "message_stop", "messageStop", "completed", "STOP")
    last = max(at for at, each in enumerate(chunks) if any(end in json.dumps(each) for end in ends))
    if api == "TGI":
        last = len(chunks) - 1
    assert asked({"request": CHAT, "response": keep(chunks[:last])}).response is None
    if isinstance(whole := keep(chunks), str):
        cut = whole[: whole.rindex("{") + 2]
        assert asked({"request": CHAT, "response": cut}).response is None
    odd = [*chunks[:1], {"frobnicated": "Ho"}, *chunks[1:]]
    assert asked({"request": CHAT, "response": keep(odd)}).response is None


def test_a_stream_of_one_chunk_is_a_stream():
    for write in STREAMED.values():
        for keep in KEPT.values():
            assert asked({"request": CHAT, "response": keep(write(["Hi"]))}).response == "Hi"


def test_chunks_that_do_not_say_which_is_the_last_are_joined():
    chunks = [{"choices": [{"text": text, "index": 0}]} for text in (" upon", " a", " time")]
    assert asked(told(*chunks)).response == " upon a time"
    assert (
        asked({"request": CHAT, "response": [{"text": " upon"}, {"text": " a"}]}).response is None
    )


def test_reasoning_and_calls_of_tools_are_streamed_too():
    pieces = [
        {"reasoning_content": "Let me"},
        {"reasoning_content": " see."},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "ls", "arguments": '{"a'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}]},
    ]
    call = {"type": "function", "function": {"name": "ls", "arguments": {"a": 1}}, "id": "c"}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    said |= {"reasoning_content": "Let me see."}
    assert asked(told(*({"choices": [{"delta": each}]} for each in pieces))).response == said
    events = [
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "tool_use", "id": "c", "name": "ls", "input": {}}},
        *({"type": "content_block_delta", "index": 1,
           "delta": {"type": "input_json_delta", "partial_json": text}}
          for text in ('{"a', '": 1}')),
        {"type": "message_stop"},
    ]  # fmt: skip
    thought = {"type": "thinking_delta", "thinking": "Let me see."}
    thought = {"type": "content_block_delta", "index": 0, "delta": thought}
    assert asked(told(thought, *events)).response == said
    # Arguments that were cut.
    assert asked(told(*({"choices": [{"delta": each}]} for each in pieces[:-1]))).response is None


@pytest.mark.parametrize(
    "text",
    [
        *("data: the new oil", "Event: a fair", ": a colon first", "id: 7\nname: Bob"),
        *('{"a": 1}\n{"a": 2}', '{"text": "a"}{"text": "b"}'),
    ],
)
def test_a_text_that_only_looks_streamed_is_an_answer(text):
    assert asked({"prompt": "a", "response": text}).response == text


def test_a_stream_that_nobody_knows_is_no_answer_and_is_named():
    streamed = 'event: delta\ndata: {"frobnicated": "Hi"}\n\n'
    read = read_request({"request": CHAT, "response": streamed}, "log:1", QUERY)
    assert (read.request.response, read.unread) == (None, {"response": streamed})


@pytest.mark.parametrize(
    "printed",
    [
        "<async_generator object at 0x7f>",
        "<generator object Stream.__stream__ at 0x7F00ab>",
        "<function answer.<locals>.inner at 0x7f>",
        "ChatCompletionMessage(content='Hi', role='assistant')",
        "[TextBlock(citations=None, text='Hi', type='text')]",
        "AIMessage(content='Hi', additional_kwargs={})",
        "<Response [200]>",
        "content='Hi' additional_kwargs={} response_metadata={}",
        "id='chatcmpl-1' choices=[Choice(finish_reason='stop')] model='m'",
        "not serializable object of type: <class 'openai.Stream'>",
        "Object of type Stream is not JSON serializable",
        "<unserializable>",
        "[object ReadableStream]",
        "ReadableStream { locked: false, state: 'readable', supportsBYOB: false }",
        "Promise { <pending> }",
    ],
)
def test_what_a_program_prints_of_an_object_is_no_answer_and_is_named(printed):
    read = read_request({"request": CHAT, "response": printed}, "log:1", QUERY)
    assert (read.request.response, read.unread) == (None, {"response": printed})


@pytest.mark.parametrize(
    "text",
    [
        *("<b>Hi</b>", "print(x=1)", "Point(x=1, y=2)", "Message sent (to=Bob)", "0x7f"),
        "Why is an object of type set not JSON serializable?",
        "The generator object at 0x7f is yours.",
        "content = 'Hi'",
        "Response: it depends on x=1",
        "<Response>Hi</Response>",
    ],
)
def test_an_answer_that_speaks_of_objects_is_an_answer(text):
    assert asked({"request": CHAT, "response": text}).response == text


ECHO = {"model": "m", "prompt": "Once upon", "max_tokens": 9}


@pytest.mark.parametrize("setting", ["echo", "return_full_text"])
def test_an_answer_that_repeats_the_prompt_is_what_comes_after_it(setting):
    def answer(value, text):
        body = ECHO | {setting: value}
        return asked({"request": body, "response": {"choices": [{"text": text}]}}).response

    for value in (True, "true", "True", 1):
        assert answer(value, "Once upon a time") == " a time"
        assert answer(value, " a time") is None  # part of it may be missing
        assert answer(value, "Once upon") is None
    for value in (False, None, "false"):
        assert answer(value, "Once upon a time") == "Once upon a time"


def test_a_repeated_prompt_is_known_whichever_object_asks_for_it():
    row = {"inputs": "Once", "parameters": {"do_sample": True, "return_full_text": True}}
    assert asked(row | {"response": [{"generated_text": "Once upon"}]}).response == " upon"
    row = {"request": CHAT | {"echo": True}, "response": {"choices": [{"message": ANSWER}]}}
    assert asked(row).response is None  # how the template renders the messages is not known
    chunks = [{"choices": [{"text": text}]} for text in ("Once", " upon", " a")]
    assert asked({"request": ECHO | {"echo": True}, "response": chunks}).response == " a"


PARTS = [{"text": "Par"}, {"text": "is"}]
QUIZ = {"question": "Capital?", "choices": [{"text": "Paris", "correct": True}, {"text": "Rome"}]}


@pytest.mark.parametrize(
    ("response", "said"),
    [
        # Without the companions of an API's choices it is what the model wrote.
        (json.dumps(QUIZ), json.dumps(QUIZ)),
        ([{"type": "text", "text": "The grass is "}, {"type": "text", "text": "green."}],
         "The grass is green."),
        ({"candidates": [{"content": {"role": "model", "parts": PARTS}}]}, "Paris"),
        ({"output": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "content": [{"type": "output_text", "text": "Paris"}]},
        ]}, {"reasoning_content": None, "role": "assistant", "content": "Paris"}),
    ],
)  # fmt: skip
def test_an_answer_in_parts_is_all_of_them_and_no_part_of_what_the_model_wrote(response, said):
    assert asked({"prompt": "a", "response": response}).response == said


@pytest.mark.parametrize(
    "written",
    [
        {"response": "Hi", "done": True},
        {"content": "Hi", "stop": True},
        {"generated_text": "Hi", "score": 1},
        [{"generated_text": "Hi", "score": 1}],
        {"role": "assistant", "content": "Hi", "mood": "glad"},
        {"type": "ping"},
    ],
)
def test_json_that_a_model_may_have_written_is_its_own(written):
    text = json.dumps(written)
    assert asked({"prompt": "a", "response": text}).response == text


def chat_chunks(*deltas):
    return [{"choices": [{"delta": each, "index": 0}]} for each in deltas]


CALLED_LS = {"type": "function", "function": {"name": "ls", "arguments": {"a": 1}}}
LS = {"name": "ls", "arguments": '{"a'}
MORE = {"arguments": '": 1}'}


@pytest.mark.parametrize(
    ("deltas", "more"),
    [
        ([{"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "Let "}]},
          {"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "me."}]},
          {"content": "Hi"}],
         {"content": "Hi", "reasoning_content": "Let me."}),
        ([{"function_call": LS}, {"function_call": MORE}], {"tool_calls": [CALLED_LS]}),
        ([{"function_call": LS}, {"function_call": {"name": "ls", **MORE}}],
         {"tool_calls": [CALLED_LS]}),
        ([{"tool_calls": [{"index": 0, "id": "c", "function": LS}]},
          {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "ls", **MORE}}]}],
         {"tool_calls": [CALLED_LS | {"id": "c"}]}),
        ([{"tool_calls": [{"id": "c", "function": LS}]}, {"tool_calls": [{"function": MORE}]}],
         {"tool_calls": [CALLED_LS | {"id": "c"}]}),
        # Two calls, each whole, of which the server gives no index, or one for all.
        ([{"tool_calls": [{"function": CALLED_LS["function"]}]}] * 2,
         {"tool_calls": [CALLED_LS, CALLED_LS]}),
        ([{"tool_calls": [{"index": 0, "id": name, "function": {"name": "ls", "arguments": "{}"}}]}
          for name in "cd"],
         {"tool_calls": [
             {"type": "function", "id": name, "function": {"name": "ls", "arguments": {}}}
             for name in "cd"]}),
    ],
)  # fmt: skip
def test_the_pieces_of_a_streamed_answer_are_joined_however_they_are_numbered(deltas, more):
    said = {"role": "assistant", "content": None, **more}
    assert asked(told(*chat_chunks(*deltas))).response == said


def test_what_else_a_stream_says_costs_no_answer():
    cited = {"type": "citations_delta", "citation": {"cited_text": "x"}}
    blocks = [
        {"type": "content_block_delta", "index": 0, "delta": each}
        for each in (
            {"type": "text_delta", "text": "Hi"},
            cited,
            {"type": "text_delta", "text": "!"},
        )
    ]
    assert asked(told(*blocks, {"type": "message_stop"})).response == "Hi!"
    gemini = STREAMED["Gemini"](["Hi", "!"])
    gemini[-1]["candidates"][0]["finishReason"] = None
    for last in ({"content": {"role": "model"}, "finishReason": "STOP"}, {"finishReason": "STOP"}):
        assert asked(told(*gemini, {"candidates": [last]})).response == "Hi!"
    called = {"toolUse": {"toolUseId": "c", "name": "ls"}}
    pieces = [{"toolUse": {"input": text}} for text in ('{"a', '": 1}')]
    bedrock = [{"contentBlockStart": {"start": called, "contentBlockIndex": 0}}]
    bedrock += [{"contentBlockDelta": {"delta": it, "contentBlockIndex": 0}} for it in pieces]
    response = asked(told(*bedrock, {"messageStop": {"stopReason": "tool_use"}})).response
    assert response["tool_calls"] == [CALLED_LS | {"id": "c"}]


def test_a_search_of_the_server_before_a_message_costs_no_answer():
    search = {"type": "web_search_call", "id": "w", "status": "completed"}
    (message,) = output("Hi")["output"]
    for items in ([search, message], [{"type": "reasoning", "summary": []}, search, message]):
        response = asked({"request": CHAT, "response": {"output": items}}).response
        assert (response if isinstance(response, str) else response["content"]) == "Hi"


def test_of_several_messages_behind_one_request_none_is_its_answer():
    call = {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "a.txt"}
    (message,) = output("Hi")["output"]
    called = {"role": "assistant", "content": None, "tool_calls": [CALLED_LS | {"id": "c"}]}
    told = {"role": "tool", "tool_call_id": "c", "content": "a.txt"}
    said = [{"role": "assistant", "content": text} for text in ("H", "i")]
    for items in ([call, result, message], [called, told, said[1]], said, [message, message]):
        assert asked({"request": CHAT, "response": {"output": items}}).response is None
    whole = [{"role": "user", "content": "Hello"}, said[0]]
    assert asked({"request": CHAT, "response": {"output": whole}}).response == "H"


def test_calls_and_reasoning_beside_vercels_text_are_of_its_answer():
    prompt = {"ai.prompt.messages": json.dumps([{"role": "user", "content": "Hello"}])}
    calls = [{"toolCallId": "c", "toolName": "ls", "input": {"a": 1}}]
    span = {"ai.response.text": "Hi", "ai.response.reasoning": "hm"}
    span["ai.response.toolCalls"] = json.dumps(calls)
    for row in (prompt | span, {"attributes": prompt | span}):
        response = asked(row).response
        assert (response["content"], response["reasoning_content"]) == ("Hi", "hm")
        assert response["tool_calls"] == [CALLED_LS | {"id": "c"}]


def test_what_a_client_raises_is_no_answer():
    for text in ("Error code: 429 - {'error': {}}", "litellm.RateLimitError: too many"):
        with pytest.raises(NoTrafficError):
            asked({"request": CHAT, "response": text})


def test_a_message_that_another_answer_continues_leaves_the_row_out():
    begun = {"role": "assistant", "content": "{"}
    row = {"model": "m", "messages": [{"role": "user", "content": "Hello"}, begun]}
    with pytest.raises(NotRepresentableError):
        asked(row | {"response": '"a": 1}'})
    assert asked(row | {"response": "{"}).response == "{"


@pytest.mark.parametrize("text", ["b'Hi'", 'b"It\'s"'])
def test_bytes_that_python_printed_are_no_answer(text):
    assert asked({"request": CHAT, "response": text}).response is None
