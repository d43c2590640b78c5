"""The logged answer, as every API and logger keeps it, and calls that failed."""

import json

import pytest
from log_shapes import ANSWER, CHAT
from traffic.asked import QUERY, asked

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
        {"generations": [[{"text": "Hi"}]]},
        {"message": ANSWER, "done": True},
        {"response": "Hi", "done": True},
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


def test_an_answer_as_it_was_streamed_is_no_text_and_is_named():
    streamed = 'event: delta\ndata: {"choices": [{"delta": {"content": "Hi"}}]}\n\ndata: [DONE]\n'
    row = {"request": CHAT, "response": streamed}
    read = read_request(row, "log:1", QUERY)
    assert (read.request.response, read.unread) == (None, {"response": streamed})
    for text in ("data: the new oil", "Event: a fair"):
        assert asked({"prompt": "a", "response": text}).response == text
