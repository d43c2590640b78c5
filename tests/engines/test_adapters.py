"""What each engine is asked, field by field, and how what it says of itself is read."""

from contextlib import nullcontext
from dataclasses import replace

import httpx2
import msgspec
import pytest
from engines.scripted_server import SHAPES, VERSION, ScriptedServer

from draftbench.engines.client import Http
from draftbench.engines.drive import drive
from draftbench.engines.every import SERVERS
from draftbench.engines.faults import AnswerError, Fault
from draftbench.engines.server import Answer, Ask, ServerFacts
from draftbench.errors import EngineError
from draftbench.records import Sampling

GREEDY = Ask(("r", 0), [5, 6, 7], 9, Sampling(seed=3))
DRAWN = Ask(
    ("r", 0),
    [5, 6],
    9,
    Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, seed=2**33),
    stop=("\n\n", "END"),
    log_p=True,
)


@pytest.fixture
def adapter():
    made = []

    def make(engine, answer=None):
        def respond(request):
            return httpx2.Response(404) if answer is None else answer

        made.append(SERVERS[engine](Http("http://x", transport=httpx2.MockTransport(respond)), "m"))
        return made[-1]

    yield make
    for server in made:
        server.close()


OPENAI = {
    "model": "m", "prompt": [5, 6, 7], "max_tokens": 9, "n": 1, "temperature": 0.0, "top_k": 0,
    "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "seed": 3, "stop": [], "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip
BODIES = {
    "openai": OPENAI,
    "vllm": OPENAI
    | {"return_token_ids": True, "add_special_tokens": False, "ignore_eos": False, "min_tokens": 0},
    "sglang": {
        "input_ids": [5, 6, 7],
        "sampling_params": {
            "max_new_tokens": 9, "n": 1, "temperature": 0.0, "top_k": -1, "top_p": 1.0,
            "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "sampling_seed": 3, "stop": [], "ignore_eos": False,
            "min_new_tokens": 0,
        },
        "stream": True, "return_prompt_token_ids": True, "return_logprob": False,
    },
    "llama.cpp": {
        "prompt": [5, 6, 7], "n_predict": 9, "temperature": 0.0, "top_k": 0, "top_p": 1.0,
        "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
        "dynatemp_range": 0.0, "mirostat": 0, "dry_multiplier": 0.0, "repeat_penalty": 1.0,
        "repeat_last_n": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 3,
        "stop": [], "ignore_eos": False, "cache_prompt": False, "return_tokens": True,
        "stream": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("engine", BODIES)
def test_every_sampling_field_is_sent_neutral_values_included(adapter, engine):
    """A salt keeps every request out of the prefix cache, in which others are."""
    server = adapter(engine)
    bodies = [server.body(GREEDY), server.body(GREEDY)]
    salts = [
        body.pop(name) for body in bodies for name in ("cache_salt", "extra_key") if name in body
    ]
    assert bodies == [BODIES[engine]] * 2
    assert len(set(salts)) == (2 if engine in ("vllm", "sglang") else 0)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("openai", {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 2**33}),
        ("vllm", {"top_k": 40, "stop": ["\n\n", "END"], "logprobs": 0, "seed": 2**33}),
        ("sglang", {"return_logprob": True}),
        ("llama.cpp", {"top_k": 40, "n_probs": 1, "post_sampling_probs": True, "seed": 2}),
    ],
)
def test_a_request_s_own_settings_are_sent(adapter, engine, expected):
    # A seed of llama.cpp has 32 bits, of which the last value means a random one.
    body = adapter(engine).body(DRAWN)
    assert {name: body[name] for name in expected} == expected
    if engine == "sglang":
        params = body["sampling_params"]
        assert (params["top_k"], params["min_p"], params["stop"]) == (40, 0.05, ["\n\n", "END"])


@pytest.mark.parametrize("engine", BODIES)
def test_text_goes_out_where_no_ids_are_at_hand(adapter, engine):
    body = adapter(engine).body(Ask(("r", 0), "def f", 9, Sampling()))
    assert body["text" if engine == "sglang" else "prompt"] == "def f"


FACTS = {
    "vllm": ServerFacts("vllm", VERSION, "org/target", 4096, k=4),
    "llama.cpp": ServerFacts(
        "llama.cpp", VERSION, "org/target", 4096, None, "draft-simple", 4,
        {"slots": "2", "weights": "target"},
    ),
    "sglang": ServerFacts(
        "sglang", VERSION, "org/target", 4096, False, "STANDALONE", 4,
        {"max_running_requests": "48", "weights": "target"},
    ),
    "openai": ServerFacts("openai", None, "org/target", 4096),
}  # fmt: skip


@pytest.mark.parametrize("engine", SHAPES)
def test_a_server_s_facts_are_what_it_says_of_itself(connected, engine):
    server = connected(ScriptedServer(engine, k=4))
    assert server.facts() == FACTS[engine]


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "sglang"])
def test_a_server_that_does_not_speculate_says_so(connected, engine):
    facts = connected(ScriptedServer(engine)).facts()
    assert (facts.method, facts.k) == ("none", 0)


@pytest.mark.parametrize("engine", SHAPES)
def test_prompts_that_are_read_as_sent_pass_the_echo(connected, engine):
    play = ScriptedServer(engine)
    server = connected(play)
    server.echo([[5, 6, 7], [5, 9]])
    assert len(play.bodies) == 2
    assert not any(body.get("stream") for body in play.bodies)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_prompt_that_was_read_with_another_id_is_an_error(connected, engine):
    server = connected(ScriptedServer(engine, faults={1: "wrong ids"}))
    with pytest.raises(AnswerError, match="other token ids than were sent") as caught:
        server.echo([[5, 6, 7], [5, 9]])
    assert caught.value.fault is Fault.OTHER_IDS


def test_a_token_that_the_server_puts_before_the_prompt_is_an_error(connected):
    class Adding(ScriptedServer):
        def answer(self, body):
            body["prompt"].insert(0, 1)
            return super().answer(body)

    server = connected(Adding("llama.cpp"))
    with pytest.raises(AnswerError) as caught:
        server.echo([[5, 6, 7]])
    assert caught.value.fault is Fault.OTHER_IDS


@pytest.mark.parametrize(("text", "same"), [("def f(a, ...):", True), ("def f(b, ...):", False)])
def test_spaces_that_llama_server_leaves_out_of_the_prompt_it_shows_are_no_other_ids(
    connected, text, same
):
    class Showing(ScriptedServer):
        def told(self, path, body):
            return {"content": text} if path == "/detokenize" else super().told(path, body)

    server = connected(Showing("llama.cpp"))
    with nullcontext() if same else pytest.raises(AnswerError, match="other token ids"):
        server.echo([[*map(ord, "def f(a,...):")]])


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "sglang"])
def test_two_beginnings_of_a_prompt_are_an_error_before_anything_is_sent(connected, engine):
    play = ScriptedServer(engine)
    server = connected(play)
    with pytest.raises(EngineError, match="beginning-of-sequence token twice"):
        server.echo([[1, 1, 6], [1, 1, 9]])
    assert play.bodies == []


def test_equal_first_tokens_of_prompts_that_begin_differently_are_no_beginning(connected):
    server = connected(ScriptedServer())
    server.echo([[6, 6, 7], [5, 9]])


def test_a_server_without_ids_is_no_vllm_that_can_be_driven(connected):
    class Old(ScriptedServer):
        def events(self, body, wrong):
            for event in super().events(body, wrong):
                for choice in event["choices"] if event != "[DONE]" else ():
                    choice["prompt_token_ids"] = choice["token_ids"] = None
                yield event

    server = connected(Old())
    with pytest.raises(EngineError, match="does not return token ids") as caught:
        server.echo([[5, 6]])
    assert "0.10.2" in caught.value.hint


SCHEMA = {"type": "object"}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
HELD = [
    ("openai", {"json": SCHEMA}, {"response_format": NAMED}),
    ("openai", {"json_object": True}, {"response_format": {"type": "json_object"}}),
    ("vllm", {"json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
    ("vllm", {"tool": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
    ("vllm", {"choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
    ("llama.cpp", {"json": SCHEMA}, {"json_schema": SCHEMA}),
    ("llama.cpp", {"json_object": True}, {"json_schema": {"type": "object"}}),
    ("llama.cpp", {"grammar": "root ::= x"}, {"grammar": "root ::= x"}),
    ("llama.cpp", {"choice": ["a", "é"]}, {"grammar": 'root ::= "a" | "é"'}),
    ("sglang", {"json": SCHEMA}, {"sampling_params": {"json_schema": '{"type": "object"}'}}),
    ("sglang", {"json_object": True}, {"sampling_params": {"json_schema": '{"type": "object"}'}}),
    ("sglang", {"regex": "a+"}, {"sampling_params": {"regex": "a+"}}),
    ("sglang", {"grammar": "root ::= x"}, {"sampling_params": {"ebnf": "root ::= x"}}),
]


@pytest.mark.parametrize(("engine", "constraint", "fields"), HELD)
def test_every_engine_is_told_what_holds_an_answer_in_its_own_words(
    adapter, engine, constraint, fields
):
    server = adapter(engine)
    assert constraint.keys() <= server.constraints
    told = server.body(replace(GREEDY, constraint=constraint))
    plain = server.body(GREEDY)
    for name, value in fields.items():
        if isinstance(value, dict) and name in plain:
            added = {inner: told[name][inner] for inner in told[name].keys() - plain[name].keys()}
            assert added == value
        else:
            assert told[name] == value


def test_fields_that_a_black_box_refuses_are_left_out_where_they_are_neutral(connected):
    server = connected(ScriptedServer("openai", refuses=frozenset({"top_k"})))
    server.echo(["some text"])
    plain = Ask(("r", 0), "text", 4, Sampling())
    drawn = Ask(("r", 1), "text", 4, Sampling(temperature=1.0, top_k=5))
    good, bad = drive(server, [plain, drawn], concurrency=1)
    assert good.error is None
    assert (bad.error, bad.reason) == (
        Fault.REFUSED,
        "the server takes neither `top_k` nor `min_p`",
    )


def test_a_black_box_that_counts_nothing_is_refused(connected):
    class Silent(ScriptedServer):
        def events(self, body, wrong):
            yield from ({**e, "usage": None} for e in super().events(body, wrong) if e != "[DONE]")

    server = connected(Silent("openai"))
    with pytest.raises(EngineError, match="does not say how many tokens it wrote"):
        server.echo(["text"])


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "sglang"])
def test_texts_become_tokens_and_chats_become_prompts(connected, engine):
    server = connected(ScriptedServer(engine))
    assert server.tokenize("ab") == [97, 98]
    chat = [{"role": "user", "content": "hi"}]
    assert server.apply_template(chat) == (
        str(chat) if engine == "llama.cpp" else [*map(ord, str(chat))]
    )


@pytest.mark.parametrize(
    ("engine", "method", "arguments"),
    [
        ("openai", "tokenize", ("a",)),
        ("openai", "apply_template", ([],)),
    ],
)
def test_what_an_engine_cannot_do_is_an_error_that_names_a_way(adapter, engine, method, arguments):
    with pytest.raises(EngineError, match=f"of kind `{engine}` cannot") as caught:
        getattr(adapter(engine), method)(*arguments)
    assert "--target" in caught.value.hint


def test_the_margin_is_between_the_two_best_tokens(adapter):
    top = {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:1": -0.5, "token_id:2": -1.75}]}
    vllm = {"choices": [{"text": "a", "logprobs": top}]}
    both = [{"logprob": -0.5}, {"logprob": -1.75}]
    llama = {"completion_probabilities": [{"id": 1, "logprob": -0.5, "top_logprobs": both}]}
    top = [[[-0.5, 1, None], [-1.75, 2, None]]]
    meta = {"completion_tokens": 1, "output_top_logprobs": top}
    sglang = {"text": "a", "output_ids": [1], "meta_info": meta}
    for engine, answer in (("vllm", vllm), ("llama.cpp", llama), ("sglang", sglang)):
        server = adapter(engine, httpx2.Response(200, json=answer))
        assert server.margin([5, 6]) == 1.25


def read(server, *events, limit=9):
    answer = Answer(Ask(("r", 0), [5, 6, 7], limit, Sampling()))
    for event in events:
        server.read(msgspec.json.encode(event), answer)
    return answer


def test_sglang_s_events_hold_all_ids_again_or_the_new_ones_alone(adapter):
    def event(ids, count, text):
        return {"text": text, "output_ids": ids, "meta_info": {"completion_tokens": count}}

    again = read(adapter("sglang"), event([1], 1, "a"), event([1, 2, 3], 3, "abc"))
    alone = read(adapter("sglang"), event([1], 1, "a"), event([2, 3], 3, "bc"))
    assert again.tokens == alone.tokens == [1, 2, 3]
    assert again.text == alone.text == "abc"


def test_sglang_s_ids_that_do_not_add_up_are_garbage(adapter):
    with pytest.raises(AnswerError, match="do not add up"):
        read(adapter("sglang"), {"output_ids": [1], "meta_info": {"completion_tokens": 4}})


def test_sglang_s_abort_is_a_failure_with_its_reason(adapter):
    finish = {"type": "abort", "message": "out of pages"}
    meta = {"completion_tokens": 0, "finish_reason": finish}
    with pytest.raises(AnswerError, match="out of pages") as caught:
        read(adapter("sglang"), {"output_ids": [], "meta_info": meta})
    assert caught.value.fault is Fault.FAILED


def llama(content, tokens, predicted, **more):
    return {"content": content, "tokens": tokens, "tokens_predicted": predicted, **more}


def test_ids_that_llama_server_leaves_out_of_a_character_are_found_by_its_text(adapter):
    server = adapter("llama.cpp", httpx2.Response(200, json={"tokens": [9284, 103, 123]}))
    answer = read(server, llama("a", [64], 1), llama("🪿", [123], 4), llama("b", [65], 5))
    server.http.run(server.settle(answer))
    assert answer.tokens == [64, 9284, 103, 123, 65]


@pytest.mark.parametrize(
    ("found", "last", "count"),
    [
        *((found, llama("🪿", [123], 4), 4)
          for found in ([103, 123], [9284, 103, 7], [1, 2, 3, 123], [])),
        # Of a character that the limit cut.
        ([1], llama("", [], 3, stop=True, stop_type="limit"), 3),
    ],
)  # fmt: skip
def test_ids_that_are_not_found_again_are_unknown(adapter, found, last, count):
    server = adapter("llama.cpp", httpx2.Response(200, json={"tokens": found}))
    answer = read(server, llama("a", [64], 1), last)
    server.http.run(server.settle(answer))
    assert (answer.tokens, answer.count) == (None, count)


@pytest.mark.parametrize(
    "events", [[llama("a", [1, 2], 1)], [llama("a", [1], 5), llama("", [], 3)]]
)
def test_llama_server_s_ids_that_do_not_add_up_are_garbage(adapter, events):
    with pytest.raises(AnswerError, match="do not add up"):
        read(adapter("llama.cpp"), *events)


def test_llama_server_s_probability_of_a_drafted_token_is_none(adapter):
    own = {"id": 1, "prob": 0.25, "top_probs": [{"prob": 0.5}]}
    drafted = {"id": 2, "prob": 1.0, "top_probs": []}
    events = [llama("a", [1], 1, completion_probabilities=[own])]
    assert read(adapter("llama.cpp"), *events).log_p == [pytest.approx(-1.3862943611)]
    events += [llama("b", [2], 2, completion_probabilities=[drafted]), llama("c", [3], 3)]
    assert read(adapter("llama.cpp"), *events).log_p is None
