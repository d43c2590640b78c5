"""A request means the same wherever it stands in a row, and however the row is kept."""

import csv
import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_shapes import ANSWER, CHAT, SAMPLED, SHAPES, SPAN_MESSAGES, SPAN_SETTINGS, USER
from scenes import query
from traffic.asked import asked

from draftbench.errors import TrafficError
from draftbench.traffic import load
from draftbench.traffic.constraints import KINDS
from draftbench.traffic.errors import BadRowError, NoTrafficError, NotRepresentableError
from draftbench.traffic.json_paths import unpacked
from draftbench.traffic.request_formats import BODIES, PARTS

BODY = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "temperature": st.sampled_from([0, 0.5, 1]),
        "top_p": st.sampled_from([0.5, 1]),
        "max_tokens": st.sampled_from([-1, 1, 9]),
        "stop": st.sampled_from([".", ["a", "b"]]),
        "seed": st.integers(0, 9),
        "n": st.integers(1, 3),
        "frequency_penalty": st.sampled_from([0, 0.0, 0.5]),
        "logit_bias": st.sampled_from([{}, {"5": 1}]),
        "regex": st.sampled_from([None, "a+"]),
        "format": st.sampled_from(["", "json", {"type": "object"}]),
        "truncation": st.sampled_from(["auto", "disabled"]),
        "options": st.just({"temperature": 0.3, "num_predict": 4}),
        "extra_body": st.sampled_from([{}, {"top_k": 5}, {"extra_body": {"min_p": 0.1}}]),
        "system": st.just("Be brief"),
    },
)
CONTENT = st.sampled_from(
    [
        {"messages": [USER]},
        {"messages": [USER, ANSWER, USER]},
        {"prompt": "Once"},
        {"input": [USER]},
        {"input": "Hello", "instructions": "Be brief"},
        {"text": "Once"},
        {"text": "Once", "sampling_params": {"temperature": 0.7}},
        {"inputs": "Once"},
        {"inputs": "Once", "parameters": {"top_k": 3}},
    ]
)


def nested(place, body):
    for name in reversed(place.split(".")):
        body = {name: body}
    return body


def table(path, row):
    """A row as a table without types has it: texts and JSON texts."""
    with path.open("w", newline="") as file:
        cells = csv.DictWriter(file, row)
        cells.writeheader()
        cells.writerow({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()})
    return path


# What a log can do to the body of a call: a row, and the path to its prompt where it needs one.
WRAPPERS = {
    **{place: lambda body, place=place: nested(place, body) for place in (*BODIES, *PARTS)},
    **{
        f"{place}, JSON text": lambda body, place=place: nested(place, json.dumps(body))
        for place in BODIES
    },
    "JSON text of JSON text": lambda body: {"request": json.dumps(json.dumps(body))},
    "dotted columns": lambda body: {f"request.body.{name}": body[name] for name in body},
    "a table's row": lambda body: {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()
    },
    "LiteLLM": lambda body: (
        {name: body[name] for name in body if name in ("model", *PROMPTS)}
        | {"model_parameters": {k: v for k, v in body.items() if k not in ("model", *PROMPTS)}}
    ),
}
PROMPTS = (
    *("messages", "prompt", "input", "text", "inputs", "system", "instructions"),
    *("parameters", "sampling_params", "options"),
)


def outcome(row, **fields):
    """What is read, or that it is refused: of several reasons any may be named."""
    try:
        return asked(row, **fields)
    except (BadRowError, NotRepresentableError):
        return "refused"


# A busy machine takes seconds to draw a body.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(body=BODY, content=CONTENT, wrapper=st.sampled_from(sorted(WRAPPERS)))
def test_a_request_means_the_same_whatever_wraps_it(body, content, wrapper):
    bare = body | content
    assert outcome(WRAPPERS[wrapper](bare)) == outcome(bare)


@given(body=BODY, content=CONTENT, place=st.sampled_from(["a.b", "request.body", "data"]))
def test_a_path_to_the_prompt_means_what_the_bare_request_means(body, content, place):
    bare = body | content
    prompt = next(iter(content))
    assert outcome(nested(place, bare), prompt_field=f"{place}.{prompt}") == outcome(bare)


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("request_body.messages", {"request_body": CHAT}),
        ("messages", {"messages": [USER], "model": "m", "model_parameters": SAMPLED}),
        ("input", {"input": [USER], "modelParameters": SAMPLED}),
        ("request", {"request": json.dumps(CHAT)}),
        ("a.b.messages", {"a": {"b": {"messages": [USER]}, "parameters": SAMPLED}}),
        ("a.b.messages", {"a": SAMPLED | {"b": {"messages": [USER]}}}),
        ("a.call", {"a": SAMPLED | {"call": {"messages": [USER]}}}),
        ("x.y.chat", {"x": json.dumps(SAMPLED | {"y": {"chat": [USER]}})}),
        ("data.chat", {"data.chat": [USER], "data.temperature": 0.7, "data.max_tokens": 9}),
        ("chat", {"chat": [USER], "request": SAMPLED}),
        ("gen_ai.prompt", {"gen_ai.prompt": json.dumps([USER]), **SPAN_SETTINGS}),
        (
            "attributes.gen_ai.input.messages",
            {"attributes": {"gen_ai.input.messages": SPAN_MESSAGES, **SPAN_SETTINGS}},
        ),
    ],
)
def test_a_path_to_the_prompt_finds_the_parameters_around_it(path, row):
    assert asked(row, prompt_field=path) == asked(CHAT)


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("request.body.q", {"request": {"body": {"q": "Once"}}}),
        ("q", {"q": "Once", "model": "m"}),
        ("a.q", {"a": {"q": "Once"}, "gen_ai.request.model": "m"}),
        ("a.b.messages", {"a": {"model": "m", "b": {"messages": [USER]}}}),
    ],
)
def test_a_prompt_that_was_sent_to_a_server_has_a_servers_temperature(path, row):
    assert asked(row, prompt_field=path).sampling.temperature == 1.0


@pytest.mark.parametrize("name", [name for name in SHAPES if SHAPES[name][1] is not BadRowError])
def test_a_table_of_texts_means_what_its_objects_mean(name, tmp_path):
    row = SHAPES[name][0]
    try:
        meant = asked(row)
    except (BadRowError, NotRepresentableError, NoTrafficError):
        with pytest.raises(TrafficError):
            load(query(table(tmp_path / "log.csv", row)))
        return
    kinds = frozenset(KINDS)
    (request,) = load(query(table(tmp_path / "log.csv", row), constraints=kinds)).requests
    assert msgspec.structs.replace(request, source="log:1") == meant


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("['One' 'Two']", None),
        ("['One', 'Two']", ["One", "Two"]),
        ("""["It's"\n 'Two' "Three"]""", None),
        ("[{'text': 'Say \" \"'}]", [{"text": 'Say " "'}]),
    ],
)
def test_texts_side_by_side_as_numpy_writes_them_are_no_list(text, turns):
    assert unpacked(text) == (turns or text)


HALF = "cut \\ud83d"  # of a character, as JSON may write it
HALVED = f'{{"prompt": "{HALF}"}}'


@pytest.mark.parametrize(
    "text",
    [
        f'{{"model": "m", "messages": [{{"role": "user", "content": "{HALF}"}}]}}',
        f'{{"request": {json.dumps(HALVED)}}}',
        f'{{"request": {json.dumps(HALVED)}, "response": "Hi there"}}',
        f'{{"request": {HALVED[:-1]}, "n": 1e999, "seed": NaN}}}}',
        f'{{"prompt": "{HALF}", "\\udc00": "{HALF}"}}',
    ],
)
def test_half_a_character_is_read_as_other_programs_read_it(text):
    request = asked(text.encode())
    said = request.prompt or request.messages[0]["content"]
    assert said == "cut \ufffd"


def test_whole_characters_stay_whole_beside_half_of_one():
    text = '{"prompt": "\\ud83d\\ude00 \\ude00 \ufeff"}'
    assert asked(text.encode()).prompt == "\U0001f600 \ufffd \ufeff"


def test_only_a_body_that_ends_too_early_was_cut():
    body = HALVED[:-1] + ', "temperature": 0}'
    for end in (3, 12, len(body) - 1):
        with pytest.raises(NoTrafficError, match="cut by the logger"):
            asked({"request": body[:end]})
    for broken in ('{"prompt": a}', f"{HALVED} and more"):
        with pytest.raises(BadRowError):
            asked({"request": broken})
