"""What the target reads for a request, and where its response ends."""

import pytest

from draftbench.errors import RefusedError
from draftbench.measure.prompts import LostAnswerError

TEMPLATE = (
    "{% if tools %}[{{ tools | length }} tools]{% endif %}"
    "{% if mood %}[{{ mood }}]{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"})
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ({"prompt": "  def f(x):\n"}, "  def f(x):\n"),
        ({"messages": CHAT}, "<system>be brief<user>hello<assistant>"),
        (
            {"messages": CHAT[1:], "tools": (TOOL, TOOL), "template": {"mood": "calm"}},
            "[2 tools][calm]<user>hello<assistant>",
        ),
    ],
)
def test_a_prompt_is_read_as_it_is_and_a_chat_by_the_targets_template(text, make, asked, read):
    text.tokenizer.chat_template = TEMPLATE
    prompt = text.prompt(make.request(**{"prompt": None, **asked}), 64, 512)
    assert text.tokenizer.decode(prompt.tokens) == read


@pytest.mark.parametrize(("template", "drops"), [(TEMPLATE, False), ("{{ messages }}", True)])
def test_a_template_that_writes_no_tools_drops_them(text, make, template, drops):
    text.tokenizer.chat_template = template
    assert text.drops_tools(make.request(None, messages=CHAT, tools=(TOOL,))) is drops


def test_a_chat_without_a_template_names_the_row_and_what_to_do(text, make):
    with pytest.raises(RefusedError, match=r"log\.jsonl:3 is a chat, and `target`") as caught:
        text.prompt(make.request(None, messages=CHAT), 64, 512)
    assert "suite:completion" in caught.value.hint


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("'System role not supported'", "System role not supported"),
        ("'no such role: ' + messages[0].content", "no such role:…"),
        ("messages[0].content", "TemplateError"),
    ],
)
def test_a_template_that_refuses_says_why_in_its_own_words_and_quotes_no_chat(
    text, make, raised, words
):
    text.tokenizer.chat_template = f"{{{{ raise_exception({raised}) }}}}"
    with pytest.raises(RefusedError) as caught:
        text.prompt(make.request(None, messages=CHAT), 64, 512)
    assert (caught.value.message, caught.value.reason) == (
        f"the chat template of `target` refuses log.jsonl:3 ({words})",
        f"the chat template refuses it ({words})",
    )
    assert "be brief" not in caught.value.message + caught.value.hint


THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}[{{ m.reasoning_content }}]"
    "{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "({{ c.function.arguments | tojson }}){% endfor %}{% if m.role == 'assistant' %}<|endoftext|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
LS = {"type": "function", "function": {"name": "ls", "arguments": {"at": "."}}}


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ({"content": "Rain.", "reasoning_content": "Let me think"}, "[Let me think]Rain."),
        ({"content": None, "tool_calls": [LS]}, 'ls({"at": "."})'),
    ],
)
def test_reasoning_and_calls_of_an_answer_are_put_back_as_the_template_writes_them(
    text, make, answer, written
):
    text.tokenizer.chat_template = THINKING
    response = {"role": "assistant", **answer}
    request = make.request(None, messages=CHAT, response=response)
    assert text.shown(text.answer(request)) == written


@pytest.mark.parametrize(
    ("template", "answer", "reason"),
    [
        (TEMPLATE, {"reasoning_content": "hm"}, "reasoning that the template does not write"),
        (TEMPLATE, {"tool_calls": [LS]}, "a call of a tool that the template does not write"),
        (THINKING, {"reasoning_content": None}, "reasoning that is not in the log"),
    ],
)
def test_an_answer_that_cannot_be_put_back_says_what_is_lost(text, make, template, answer, reason):
    text.tokenizer.chat_template = template
    response = {"role": "assistant", "content": "Rain.", **answer}
    with pytest.raises(LostAnswerError, match=reason):
        text.answer(make.request(None, messages=CHAT, response=response))


@pytest.mark.parametrize(("most", "room", "limit"), [(24, 100, 24), (24, 5, 5), (24, 1, 1)])
def test_a_response_is_limited_by_the_context_too(text, make, most, room, limit):
    request = make.request("import os\n")
    length = len(text.tokenizer("import os\n")["input_ids"])
    assert text.prompt(request, most, length + room).limit == limit
    assert text.prompt(request, most, length) is None  # no room for a token


def test_an_end_token_ends_the_response(text):
    assert text.end_tokens == {0}
    assert text.ends([5, 0], ())
    assert not text.ends([0, 5], ())


@pytest.mark.parametrize(
    ("written", "stop", "at"),
    [
        ("main|loop|()| is", ("nloop(",), 2),  # over several tokens
        ("main|loop|()| is", ("main",), 0),
        ("main|loop|()| is", ("other", ") i"), 3),
        ("main|loop|()| is", ("absent",), None),
        ("。", ("。",), 2),  # three bytes, each a token
        ("end| a| b", ("end",), 0),  # and not once more: it was there before
    ],
)
def test_a_stop_string_ends_the_response_with_the_token_that_completes_it(text, written, stop, at):
    tokens = text.tokenizer(written.replace("|", ""))["input_ids"]
    assert len(tokens) == max(3, len(written.split("|")))
    found = [i for i in range(len(tokens)) if text.ends(tokens[: i + 1], stop)]
    assert found == ([] if at is None else [at])
