"""A row whose values are of any other type than its form has is read, or refused in words: a
stranger wrote it, and --skip-bad must be able to skip it.
"""

import json
import random
from copy import deepcopy

import pytest
from log_shapes import CHAT, SHAPES, USER
from traffic.asked import QUERY
from traffic.written import STREAMED

from draftbench.traffic import TrafficQuery, load
from draftbench.traffic import rows as reader
from draftbench.traffic.errors import BadRowError, NoTrafficError, NotRepresentableError
from draftbench.traffic.rows import MISSHAPEN, read_request

# Fields that forms read and that the rows of docs/logs.md lack.
MORE = [
    {"instruction": "Hello", "output": "Hi", "history": [["a", "b"]], "context": "c"},
    {
        "llm.input_messages": [
            {"message": {**USER, "contents": [{"message_content": {"type": "text", "text": "c"}}]}}
        ],
        "llm.tools": [{"tool": {"json_schema": "{}"}}],
    },
    {"gen_ai.input.messages": [USER], "llm.request.functions": [{"name": "f"}]},
    *({"request": CHAT, "response": write(["Hi", " there"])} for write in STREAMED.values()),
    {
        "request": CHAT,
        "response": [
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}]}
        ],
    },
    {"model": "m", "messages": [USER], "status": 200, "error": "", "timestamp": "2026"},
    {"contents": [{"parts": [{"functionResponse": {"response": {}}}, {"thought": True}]}]},
]
VALUES = [
    *(None, True, 0, 1.5, "", "a", "[1]", "9" * 4301, [], {}, [5], [None], [[1]], ["x"]),
    *({"a": 1}, {"type": ["x"]}, {"type": 5}, {"text": [1]}, {"content": 5}, {"role": [1]}),
    *({"key": "a", "value": [1]}, USER, {"role": "user", "content": [{"type": {}}]}),
]


def values(row):
    """The holder and the name of each value in a row."""
    for name in row if isinstance(row, dict) else range(len(row)):
        yield row, name
        if isinstance(row[name], dict | list):
            yield from values(row[name])


def misshapen():
    """Each row of docs/logs.md with one to three of its values replaced, 40 times."""
    draw = random.Random(1)
    for row in [*(row for row, *_ in SHAPES.values()), *MORE]:
        for _ in range(40):
            other = deepcopy(row)
            for _ in range(draw.choice((1, 1, 2, 3))):
                holder, name = draw.choice(list(values(other)))
                holder[name] = deepcopy(draw.choice(VALUES))
            yield other


def refusal(row):
    try:
        read_request(json.dumps(row).encode(), "log:1", QUERY)
    except (BadRowError, NotRepresentableError, NoTrafficError) as error:
        return str(error)
    return None


def test_a_form_says_itself_what_is_wrong_with_a_row():
    refusals = [refusal(row) for row in misshapen()]
    assert len(refusals) > 2000
    assert MISSHAPEN not in refusals
    assert 0.1 < refusals.count(None) / len(refusals) < 0.9


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"prompt": {"role": "user", "content": [{"type": ["x"]}]}},
            "messages[0] has a part whose `type` is not a text",
        ),
        (
            {"llm.input_messages": [{"message": USER}], "llm.tools": 5},
            "`tools`: expected a list, got an integer",
        ),
        (
            {"gen_ai.input.messages": [USER], "llm.request.functions": [[1]]},
            "a function of `tools` is not an object",
        ),
        (
            {
                "llm.input_messages": [
                    {"message": {"role": "user", "contents": [{"message_content": "a"}]}}
                ]
            },
            "message content of type message_content",
        ),
        ({"model": "m", "messages": [USER], "status": "9" * 4301}, None),
        # No tools, and those of the call: not two values.
        (
            {
                "llm.input_messages": [{"message": USER}],
                "llm.tools": [],
                "llm.invocation_parameters": json.dumps(
                    {"tools": [{"type": "function", "function": {"name": "f"}}]}
                ),
            },
            None,
        ),
    ],
)
def test_a_value_of_another_type_is_named(row, reason):
    assert refusal(row) == reason


@pytest.mark.parametrize("error", [TypeError, ValueError, AttributeError, KeyError, IndexError])
def test_whatever_a_form_does_not_foresee_is_a_bad_row_that_can_be_skipped(
    tmp_path, monkeypatch, error
):
    find = reader.find_request

    def unforeseen(row, *places):
        if "odd" in row:
            raise error("as Python puts it")
        return find(row, *places)

    monkeypatch.setattr(reader, "find_request", unforeseen)
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "Hello"}\n{"prompt": "Bye", "odd": 1}\n')
    traffic = load(TrafficQuery(str(log), b"key", skip_bad=True))
    assert (len(traffic.requests), traffic.bad) == (1, 1)
    assert [each.reason for each in traffic.summary.bad_rows] == [MISSHAPEN]
